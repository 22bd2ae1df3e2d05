#pragma once
// Unicode normalisation forms (UAX #15) that tell which code point came from which.

#include <string_view>
#include <vector>

#include "data/tokenizer/hf_text.h"

namespace longship::data::hf {

enum class NormalisationForm { kNfc, kNfd, kNfkc, kNfkd };

/// The changes that bring valid UTF-8 to a form. A code point's decomposition is its first part in
/// its place and the others added; the order of combining marks moves code points, not places; a
/// composition removes what it took in. Properties are those of Unicode 9.0, as the library's are.
std::vector<Change> normalise(std::string_view text, NormalisationForm form);

}  // namespace longship::data::hf
