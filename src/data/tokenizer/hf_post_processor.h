#pragma once
// The key "post_processor" of a tokenizer.json: what happens to the tokens of a whole text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/hf_json.h"

namespace longship::data::hf {

/// A token of a text: `text` is the token's own (byte-level) text, the offsets are code points of
/// the original text.
struct PlacedToken {
  int64_t id = 0;
  std::string_view text;
  uint64_t begin = 0, end = 0;
};

/// ByteLevel (cuts white space off the offsets), TemplateProcessing (tokens before and behind the
/// text) and Sequence with at most one template. Immutable and thread-safe.
class PostProcessor {
 public:
  PostProcessor() = default;
  /// Ids of the template's tokens must be below `id_bound`. Throws DataError for other types and
  /// for fields that do not fit.
  static PostProcessor parse(const JsonField& field, int64_t id_bound);

  /// The tokens of the template stand for the empty place 0..0; they are left out without
  /// `add_special_tokens`. The result may refer to texts of this object.
  std::vector<PlacedToken> apply(std::vector<PlacedToken> tokens, bool add_special_tokens) const;

 private:
  struct Special {
    int64_t id = 0;
    std::string text;
  };
  struct Part {
    bool is_text = false;
    std::vector<Special> specials;
  };
  struct Step {
    bool is_template = false;
    bool add_prefix_space = false;  // of ByteLevel: the first token's single space is no one's
    std::vector<Part> parts;
  };

  void parse_step(const JsonField& field, int64_t id_bound);
  static Step parse_template(const JsonField& field, int64_t id_bound);

  std::vector<Step> steps_;
};

}  // namespace longship::data::hf
