#pragma once
// Translation of regular expressions from Oniguruma's Ruby syntax to PCRE2 with UTF, UCP and
// MULTILINE.

#include <string>
#include <string_view>

namespace longship::data::hf {

/// The dialects differ in: ^ and $ (always at lines), (?m) (the dot matches line ends), \s
/// (White_Space), \w (Alphabetic, marks, decimal digits, connectors), \h (hexadecimal digit), \v,
/// scripts (not their extensions), {,n}, {n}?, {n,m}+, option groups without a colon (they reach
/// over |). With `new_code_points` classes by property hold what Unicode 15 and 16 assigned. Throws
/// DataError "<place>: ..." for what is not translated: nested sets and intersections, calls,
/// conditions, absent operators, \K, \X, named references, extended syntax.
std::string to_pcre2(std::string_view pattern, bool new_code_points, const std::string& place);

}  // namespace longship::data::hf
