#pragma once
// Prompts of GR00T N1.6 and N1.7, as text and as token ids. Sources: Isaac-GR00T
// processing_gr00t_n1d6.py (formalize_language, text before pictures) with the chat template of
// Eagle-Block2A-2B-v2, pinned by tests/golden/groot_preprocess/prompt_n16; and
// processing_gr00t_n1d7.py (pictures before text) with the token structure of Qwen3-VL.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/config.h"

namespace longship::models {

/// Ids of a text, special tokens in it as one id each, nothing added.
using GrootTokenize = std::function<std::vector<int64_t>(std::string_view text)>;

/// Python's re.sub(r"[^\w\s]", "", text.lower()): lower case, then only letters, numbers, "_" and
/// white space of Unicode stay. `task` is UTF-8; throws DataError naming the first byte that is
/// not.
std::string formalize_language(std::string_view task);

/// The chat template's text of a task with `pictures` pictures, placeholders in it. N1.6:
///   <|im_start|>system\nYou are a helpful assistant.<|im_end|>\n
///   <|im_start|>user\n{task}<image-1><image-2>...<|im_end|>\n
/// N1.7 (without a system turn):
///   <|im_start|>user\n(<|vision_start|><|image_pad|><|vision_end|>)*{task}<|im_end|>\n
std::string groot_prompt(GrootVersion version, std::string_view task, int64_t pictures);

/// groot_prompt() with every placeholder replaced by what the model reads for it, `counts[k]`
/// tokens for picture k. N1.6: "<image k><img>" + "<IMG_CONTEXT>" * n + "</img>", k from 1; N1.7:
/// "<|image_pad|>" * n.
std::string groot_expanded_prompt(GrootVersion version, std::string_view task,
                                  std::span<const int64_t> counts);

/// Token ids of groot_expanded_prompt(); `image_token` is the id that stands for a row of a
/// picture. The text is tokenised with one such token per picture, which is then repeated: what
/// stands between special tokens is encoded by itself. Throws CheckpointError when the tokenizer
/// does not turn the placeholder into that one id.
std::vector<int64_t> groot_tokens(GrootVersion version, std::string_view task,
                                  std::span<const int64_t> counts, int64_t image_token,
                                  const GrootTokenize& tokenize);

}  // namespace longship::models
