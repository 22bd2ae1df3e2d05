// SentencePiece model files: any bytes give CheckpointError or a tokenizer that encodes and
// decodes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/tokenizer/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using longship::data::SentencePieceTokenizer;
  try {
    const auto tokenizer =
        SentencePieceTokenizer::from_bytes({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const std::string_view text :
         {"Task: pick up_the bowl, State: -1 0 255;\nAction: ", "\xe6\x8b\xbf  \xff\xc3 a b ab aab",
          "\xef\xac\x81 \xe2\x91\xa0 A\xcc\x8a"}) {
      const auto ids = tokenizer->encode(text);
      tokenizer->decode(ids);
    }
  } catch (const longship::CheckpointError&) {
  }
  return 0;
}
