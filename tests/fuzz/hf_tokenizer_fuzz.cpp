// A tokenizer.json up to the first "\n===\n", and a text after it. Whatever they are, the reader
// gives a DataError, or a tokenizer whose offsets lie in the text and whose ids decode.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/hf_unicode.h"

namespace {

void check(const longship::data::HfTokenizer& tokenizer, std::string_view text) {
  using namespace longship;
  const data::HfEncoding encoding = tokenizer.encode(text, true);
  if (encoding.ids.size() != encoding.offsets.size()) std::abort();
  for (const int64_t id : encoding.ids) {
    if (id < 0 || id >= tokenizer.id_bound()) std::abort();
  }
  for (const auto& range : encoding.offsets) {
    if (range.first < 0 || range.second < range.first) std::abort();
  }
  try {
    const std::string all = tokenizer.decode(encoding.ids, false);
    if (data::hf::to_valid_utf8(all) != all) std::abort();
    tokenizer.decode(encoding.ids, true);
  } catch (const ShapeError&) {  // a template's id in a gap of the vocabulary
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using longship::data::HfTokenizer;
  constexpr std::string_view kSeparator = "\n===\n";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find(kSeparator);
  try {
    const auto tokenizer = HfTokenizer::from_bytes(input.substr(0, cut), "fuzz.json");
    for (const std::string_view text :
         {"Pick up the cup, it's 12 cm!\r\n ab", "\xe6\x8b\xbf  \xff\xc3 e\xcc\x81\xcc\xa3 <s>"}) {
      check(*tokenizer, text);
    }
    if (cut != std::string_view::npos) {
      check(*tokenizer, input.substr(cut + kSeparator.size()));
    }
  } catch (const longship::DataError&) {
  }
  return 0;
}
