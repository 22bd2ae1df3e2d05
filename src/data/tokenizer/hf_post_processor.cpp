#include "data/tokenizer/hf_post_processor.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/strings.h"
#include "data/tokenizer/hf_byte_level.h"
#include "data/tokenizer/hf_pattern.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxSteps = 64;

bool is_space(char32_t c) {
  return c == byte_code_points()[' '] || is_white_space(c);
}

uint64_t count_leading_spaces(std::string_view text) {
  uint64_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) {
    const CodePoint c = code_point_at(text, pos);
    if (!is_space(c.value)) break;
    pos += c.num_bytes;
  }
  return count;
}

uint64_t count_trailing_spaces(std::string_view text) {
  uint64_t count = 0;
  for (size_t end = text.size(); end > 0; ++count) {
    const CodePoint c = code_point_before(text, end);
    if (!is_space(c.value)) break;
    end -= c.num_bytes;
  }
  return count;
}

/// Offsets without the white space that the tokens begin and end with.
void trim_offsets(std::vector<PlacedToken>& tokens, bool add_prefix_space) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    PlacedToken& token = tokens[i];
    uint64_t leading = count_leading_spaces(token.text);
    const uint64_t trailing = count_trailing_spaces(token.text);
    if (leading > 0) {
      // A single space at the start was put there by the pre-tokenizer.
      if ((i == 0 || token.begin == 0) && add_prefix_space && leading == 1) leading = 0;
      token.begin = std::min(token.begin + leading, token.end);
    }
    if (trailing > 0 && token.end >= trailing) {
      token.end = std::max(token.end - trailing, token.begin);
    }
  }
}

}  // namespace

PostProcessor PostProcessor::parse(const JsonField& field, int64_t id_bound) {
  PostProcessor processor;
  processor.parse_step(field, id_bound);
  return processor;
}

void PostProcessor::parse_step(const JsonField& field, int64_t id_bound) {
  const JsonField type_field = field.at("type");
  const std::string& type = type_field.as_string(kMaxTextBytes);
  if (type == "ByteLevel") {
    Step step;
    step.add_prefix_space = field.at("add_prefix_space").as_bool();
    if (field.at("trim_offsets").as_bool()) steps_.push_back(std::move(step));
  } else if (type == "TemplateProcessing") {
    if (std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.is_template; })) {
      field.fail("a second template is not supported");
    }
    steps_.push_back(parse_template(field, id_bound));
  } else if (type == "Sequence") {
    for (const JsonField& step : field.at("processors").elements(kMaxSteps)) {
      parse_step(step, id_bound);
    }
  } else {
    type_field.fail(
        fmt::format("the post-processor \"{}\" is not supported; known are ByteLevel, "
                    "TemplateProcessing and Sequence",
                    printable(type)));
  }
}

PostProcessor::Step PostProcessor::parse_template(const JsonField& field, int64_t id_bound) {
  Step step;
  step.is_template = true;
  const JsonField specials = field.at("special_tokens");
  for (const JsonField& entry : field.at("single").elements(kMaxSteps)) {
    Part part;
    if (const auto sequence = entry.find("Sequence")) {
      const JsonField id = sequence->at("id");
      if (id.as_string(kMaxTextBytes) != "A") id.fail("a single text is the sequence \"A\"");
      part.is_text = true;
    } else {
      const JsonField id = entry.at("SpecialToken").at("id");
      const std::string& name = id.as_string(kMaxTextBytes);
      if (!specials.has(name.c_str())) {
        id.fail(fmt::format("\"{}\" is not among the special tokens", printable(name)));
      }
      const JsonField special = specials.at(name.c_str());
      const auto ids = special.at("ids").elements(kMaxSteps);
      const auto texts = special.at("tokens").elements(kMaxSteps);
      if (ids.size() != texts.size()) special.fail("\"ids\" and \"tokens\" differ in length");
      for (size_t i = 0; i < ids.size(); ++i) {
        part.specials.push_back({ids[i].as_integer(0, id_bound - 1), texts[i].as_string(1 << 12)});
      }
    }
    step.parts.push_back(std::move(part));
  }
  return step;
}

std::vector<PlacedToken> PostProcessor::apply(std::vector<PlacedToken> tokens,
                                              bool add_special_tokens) const {
  // Parts of the template stay apart until the end: trimming knows the first token of each.
  std::vector<std::vector<PlacedToken>> lists;
  lists.push_back(std::move(tokens));
  for (const Step& step : steps_) {
    if (!step.is_template) {
      for (auto& list : lists) trim_offsets(list, step.add_prefix_space);
      continue;
    }
    std::vector<std::vector<PlacedToken>> filled;
    for (const Part& part : step.parts) {
      if (part.is_text) {
        filled.push_back(lists.front());
      } else if (add_special_tokens) {
        filled.emplace_back();
        for (const Special& special : part.specials) {
          filled.back().push_back({special.id, special.text, 0, 0});
        }
      }
    }
    lists = std::move(filled);
  }
  if (lists.size() == 1) return std::move(lists.front());
  std::vector<PlacedToken> out;
  for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

}  // namespace longship::data::hf
