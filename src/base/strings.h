#pragma once
// Small text helpers.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longship {

/// "a,,b" at ',' -> {"a", "", "b"}; "" -> {""}.
std::vector<std::string> split(std::string_view text, char separator);

/// Whether a pattern matches a whole text: * is any run of characters, ? one character.
bool matches_glob(std::string_view pattern, std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// Without spaces, tabs and line ends at both ends.
std::string_view trim(std::string_view text);
/// A whole text of decimal digits, with '-' before them where it is negative; nothing for any other
/// text or a number beyond 64 bits.
std::optional<int64_t> parse_whole_number(std::string_view text);
/// Fewest single-byte insertions, deletions and replacements.
int64_t levenshtein(std::string_view a, std::string_view b);

/// Offset of the first byte that is no well-formed UTF-8 (RFC 3629), or npos.
size_t find_invalid_utf8(std::string_view text);
/// For messages about untrusted text: control bytes and invalid UTF-8 as \xNN, cut to `max_bytes`
/// with "...".
std::string printable(std::string_view text, size_t max_bytes = 80);

std::string human_bytes(uint64_t num_bytes);  // "1.5 GiB", "12 B"
std::string human_count(double count);        // "3.35 B", "12.4 M", "999"
std::string human_duration(
    double seconds);  // "250 ms", "12.3 s", "4 min 05 s", "2 h 03 min", "3 d 04 h"
std::string with_thousands(int64_t number);  // "1,234,567"

}  // namespace longship
