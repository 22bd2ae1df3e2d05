// Everything is written anew: literals as \x{...}, classes and escapes as explicit sets, so that no
// character keeps a meaning that only PCRE2 gives it.

#include "data/tokenizer/hf_regex_syntax.h"

#include <fmt/core.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

/// Inside of a PCRE2 class: the code points that it lists, or all others.
struct Set {
  std::string body;
  bool complement = false;
};

/// What stands in brackets: one set, and others that PCRE2 cannot list beside it.
struct SetUnion {
  std::string body;
  std::vector<std::string> complements;
  bool negated = false;

  void add(const Set& set) {
    if (set.complement) {
      complements.push_back(set.body);
    } else {
      body += set.body;
    }
  }

  std::string pattern() const {
    if (complements.empty()) return fmt::format("[{}{}]", negated ? "^" : "", body);
    if (body.empty() && complements.size() == 1) {
      return fmt::format("[{}{}]", negated ? "" : "^", complements[0]);
    }
    std::string out = "(?:";
    for (const std::string& set : complements) {
      out += negated ? fmt::format("(?![^{}])", set) : fmt::format("[^{}]|", set);
    }
    // [^] of nothing is every code point.
    if (body.empty()) return out + (negated ? "(?s:.))" : "(?!))");
    return out + (negated ? "[^" : "[") + body + "])";
  }
};

struct CategoryName {
  const char* name;
  const char* category;
};
constexpr std::array<CategoryName, 36> kLongNames = {{{"letter", "L"},
                                                      {"uppercaseletter", "Lu"},
                                                      {"lowercaseletter", "Ll"},
                                                      {"titlecaseletter", "Lt"},
                                                      {"modifierletter", "Lm"},
                                                      {"otherletter", "Lo"},
                                                      {"mark", "M"},
                                                      {"combiningmark", "M"},
                                                      {"nonspacingmark", "Mn"},
                                                      {"spacingmark", "Mc"},
                                                      {"enclosingmark", "Me"},
                                                      {"number", "N"},
                                                      {"decimalnumber", "Nd"},
                                                      {"digit", "Nd"},
                                                      {"letternumber", "Nl"},
                                                      {"othernumber", "No"},
                                                      {"punctuation", "P"},
                                                      {"connectorpunctuation", "Pc"},
                                                      {"dashpunctuation", "Pd"},
                                                      {"openpunctuation", "Ps"},
                                                      {"closepunctuation", "Pe"},
                                                      {"initialpunctuation", "Pi"},
                                                      {"finalpunctuation", "Pf"},
                                                      {"otherpunctuation", "Po"},
                                                      {"symbol", "S"},
                                                      {"mathsymbol", "Sm"},
                                                      {"currencysymbol", "Sc"},
                                                      {"modifiersymbol", "Sk"},
                                                      {"othersymbol", "So"},
                                                      {"separator", "Z"},
                                                      {"spaceseparator", "Zs"},
                                                      {"lineseparator", "Zl"},
                                                      {"paragraphseparator", "Zp"},
                                                      {"other", "C"},
                                                      {"control", "Cc"},
                                                      {"unassigned", "Cn"}}};
constexpr std::array<const char*, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cs", "Cn"};

std::string loose(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return out;
}

std::string literal(char32_t c) {
  const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  if (plain) return std::string(1, static_cast<char>(c));
  return fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(c));
}

std::string range(char32_t first, char32_t last) {
  return first == last ? literal(first) : literal(first) + "-" + literal(last);
}

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}

int hex_value(char32_t c) {
  if (is_digit(c)) return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
  return -1;
}

class Translator {
 public:
  Translator(std::string_view pattern, bool new_code_points, const std::string& place)
      : written_(pattern), new_code_points_(new_code_points), place_(place) {
    for (size_t pos = 0; pos < pattern.size();) {
      const CodePoint c = code_point_at(pattern, pos);
      pattern_ += c.value;
      pos += c.num_bytes;
    }
  }

  std::string run() {
    groups_.push_back({0, 0});
    while (more()) step();
    if (groups_.size() != 1) fail("a parenthesis is not closed");
    out_.append(groups_.back().open_options, ')');
    return std::move(out_);
  }

 private:
  static constexpr size_t kNone = std::string::npos;

  struct Group {
    size_t start = 0;         // in out_
    size_t open_options = 0;  // (?i) without a colon: parentheses to close with the group
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(fmt::format("{}: the regular expression \"{}\" cannot be used: {}", place_,
                                printable(written_, 200), why));
  }

  bool more() const { return pos_ < pattern_.size(); }
  char32_t peek(size_t ahead = 0) const {
    return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : 0;
  }
  bool at(std::u32string_view text) const {
    return std::u32string_view(pattern_).substr(pos_, text.size()) == text;
  }
  bool take(std::u32string_view text) {
    if (!at(text)) return false;
    pos_ += text.size();
    return true;
  }
  char32_t next() {
    if (!more()) fail("it ends too early");
    return pattern_[pos_++];
  }

  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
  }

  void step() {
    const char32_t c = next();
    switch (c) {
      case '\\':
        return escape();
      case '[':
        return atom(brackets().pattern());
      case '(':
        return open();
      case ')':
        return close();
      case '|':
        out_ += '|';
        atom_ = kNone;
        return;
      case '.':
        return atom(".");
      case '^':
      case '$':
        out_ += static_cast<char>(c);
        atom_ = kNone;
        return;
      case '*':
      case '+':
      case '?':
        out_ += static_cast<char>(c);
        if (more() && (peek() == '?' || peek() == '+')) out_ += static_cast<char>(next());
        return;
      case '{':
        return interval();
      default:
        return atom(literal(c));
    }
  }

  void open() {
    const size_t start = out_.size();
    atom_ = kNone;
    if (take(U"?#")) {
      while (next() != ')') {
      }
      return;
    }
    for (const auto& [from, to] :
         std::initializer_list<std::pair<std::u32string_view, const char*>>{{U"?:", "(?:"},
                                                                            {U"?=", "(?="},
                                                                            {U"?!", "(?!"},
                                                                            {U"?>", "(?>"},
                                                                            {U"?<=", "(?<="},
                                                                            {U"?<!", "(?<!"}}) {
      if (take(from)) {
        out_ += to;
        groups_.push_back({start, 0});
        return;
      }
    }
    if (at(U"?<") || at(U"?'")) fail("named groups are not supported; write (?:...)");
    if (take(U"?")) return options(start);
    out_ += '(';
    groups_.push_back({start, 0});
  }

  void options(size_t start) {
    std::string flags;
    for (;;) {
      const char32_t c = next();
      if (c == 'i' || c == '-') {
        flags += static_cast<char>(c);
      } else if (c == 'm') {
        flags += 's';
      } else if (c == ':' || c == ')') {
        if (flags.empty() || flags == "-" || flags.find('-') != flags.rfind('-')) {
          fail("a group has no sound options");
        }
        out_ += "(?" + flags + ":";
        if (c == ':') {
          groups_.push_back({start, 0});
        } else {
          ++groups_.back().open_options;
        }
        return;
      } else {
        fail(fmt::format("the group (?{} is not supported", literal(c)));
      }
    }
  }

  void close() {
    if (groups_.size() == 1) fail("a parenthesis is closed that was not opened");
    out_.append(groups_.back().open_options + 1, ')');
    atom_ = groups_.back().start;
    groups_.pop_back();
  }

  std::optional<std::string> digits() {
    std::string text;
    while (is_digit(peek())) text += static_cast<char>(pattern_[pos_++]);
    if (text.empty()) return std::nullopt;
    if (text.size() > 5) fail("a number of repetitions is too large");
    return text;
  }

  /// Behind "{": an interval, or the brace itself.
  void interval() {
    const size_t start = pos_;
    const auto low = digits();
    const bool comma = take(U",");
    const auto high = comma ? digits() : low;
    if ((!low && !high) || !take(U"}")) {
      pos_ = start;
      return atom(literal('{'));
    }
    if (atom_ == kNone) fail("a repetition has nothing to repeat");
    out_ += "{" + low.value_or("0") + (comma ? "," : "") + (comma ? high.value_or("") : "") + "}";
    // Only *, + and ? have possessive forms, and {n}? means an optional {n}.
    if (at(U"+") || (!comma && at(U"?"))) {
      out_.insert(atom_, "(?:");
      out_ += ")";
      out_ += static_cast<char>(next());
    } else if (take(U"?")) {
      out_ += '?';
    }
  }

  void escape() {
    const char32_t c = peek();
    switch (c) {
      case 'A':
      case 'z':
      case 'G':
        ++pos_;
        out_ += '\\';
        out_ += static_cast<char>(c);
        atom_ = kNone;
        return;
      case 'Z':
        ++pos_;
        out_ += "(?=\\n?\\z)";
        atom_ = kNone;
        return;
      case 'b':
      case 'B': {
        ++pos_;
        const std::string in = "[" + word_alone().body + "]";
        const char* form = c == 'b' ? "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))"
                                    : "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))";
        out_ += fmt::format(fmt::runtime(form), in);
        atom_ = kNone;
        return;
      }
      case 'R':
        ++pos_;
        return atom("(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])");
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      const auto group = digits();
      return atom(fmt::format("\\g{{{}}}", *group));
    }
    const bool is_word = c == 'w' || c == 'W';
    if (auto set = set_escape()) {
      if (is_word) set->body = word_alone().body;
      SetUnion only;
      only.add(*set);
      return atom(only.pattern());
    }
    atom(literal(point_escape(false)));
  }

  /// Behind a backslash: a class of code points, where it is one.
  std::optional<Set> set_escape() {
    const char32_t c = peek();
    const auto made = [&](Set set, bool complement) {
      ++pos_;
      set.complement ^= complement;
      return set;
    };
    switch (c) {
      case 'd':
      case 'D':
        return made(categories({"Nd"}), c == 'D');
      case 'w':
      case 'W':
        return made(word(), c == 'W');
      case 's':
      case 'S':
        return made(white_space(), c == 'S');
      case 'h':
      case 'H':
        return made({"0-9A-Fa-f", false}, c == 'H');
      case 'p':
      case 'P':
        if (peek(1) != '{') fail("\\p has no {name}");
        return property();
      default:
        return std::nullopt;
    }
  }

  Set property() {
    bool complement = next() == 'P';
    next();
    if (take(U"^")) complement = !complement;
    std::string name;
    for (char32_t c = next(); c != '}'; c = next()) {
      const bool known =
          (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == ' ' || c == '-';
      if (!known) fail("the name of a property has an unexpected character");
      name += static_cast<char>(c);
    }
    Set set = named(loose(name));
    set.complement ^= complement;
    return set;
  }

  Set named(const std::string& name) const {
    if (name == "any") return {"\\x{0}-\\x{10FFFF}", false};
    if (name == "space" || name == "whitespace") return white_space();
    if (name == "word") return word();
    std::string_view category;
    for (const char* known : kCategories) {
      if (loose(known) == name) category = known;
    }
    for (const CategoryName& known : kLongNames) {
      if (known.name == name) category = known.category;
    }
    // Of what no version had assigned some is assigned now: said by what it is not.
    if (category == "C") return {categories({"L", "M", "N", "P", "S", "Z"}).body, true};
    if (category == "Cn") {
      return {categories({"L", "M", "N", "P", "S", "Z", "Cc", "Cf", "Co", "Cs"}).body, true};
    }
    if (!category.empty()) return categories({category});
    Set set{"\\p{sc:" + name + "}", false};
    if (new_code_points_) {
      for (const ScriptRange& r : new_scripts()) {
        if (loose(r.script) == name) set.body += range(r.first, r.last);
      }
    }
    return set;
  }

  Set categories(std::initializer_list<std::string_view> names) const {
    Set set;
    for (const std::string_view name : names) set.body += fmt::format("\\p{{{}}}", name);
    if (!new_code_points_) return set;
    for (const CategoryRange& r : new_categories()) {
      for (const std::string_view name : names) {
        if (std::string_view(r.category).substr(0, name.size()) == name) {
          set.body += range(r.first, r.last);
        }
      }
    }
    return set;
  }

  Set word() const {
    Set set = categories({"L", "M", "Nd", "Nl", "Pc"});
    set.body += "\\p{Alphabetic}";
    return set;
  }

  /// Outside of brackets Oniguruma reads \w from a table of Latin-1 that counts its superscripts
  /// and fractions in.
  Set word_alone() const {
    Set set = word();
    set.body += "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
    return set;
  }

  static Set white_space() {
    return {
        "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
        "\\x{205F}\\x{3000}",
        false};
  }

  /// Behind a backslash: one code point.
  char32_t point_escape(bool in_brackets) {
    const char32_t c = next();
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'v':
        return '\v';
      case 'f':
        return '\f';
      case 'r':
        return '\r';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case 'b':
        if (in_brackets) return '\b';
        break;
      case 'x':
        if (take(U"{")) {
          const char32_t point = hexadecimal(8);
          if (!take(U"}")) fail("\\x{ is not closed");
          return point;
        }
        return hexadecimal(2);
      case 'u':
        if (pos_ + 4 > pattern_.size()) fail("\\u needs four digits");
        return hexadecimal(4);
      case '0': {
        char32_t value = 0;
        for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i)
          value = value * 8 + next() - '0';
        return value;
      }
      default:
        break;
    }
    const bool letter = is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (letter) fail(fmt::format("\\{} is not supported", static_cast<char>(c)));
    return c;
  }

  char32_t hexadecimal(int max_digits) {
    char32_t value = 0;
    int count = 0;
    for (; count < max_digits && more() && hex_value(peek()) >= 0; ++count) {
      value = value * 16 + static_cast<char32_t>(hex_value(next()));
    }
    if (count == 0 || value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      fail("a hexadecimal escape names no code point");
    }
    // Below \x{80} a byte is its code point; above, Oniguruma reads parts of UTF-8 sequences.
    if (max_digits == 2 && value >= 0x80) fail("\\x80 to \\xFF are bytes; write \\u0080");
    return value;
  }

  /// Behind "[".
  SetUnion brackets() {
    SetUnion set;
    set.negated = take(U"^");
    bool first = true;
    for (;; first = false) {
      if (!more()) fail("a bracket is not closed");
      if (at(U"]") && !first) {
        ++pos_;
        if (set.body.empty() && set.complements.empty()) fail("a set is empty");
        return set;
      }
      if (at(U"&&")) fail("intersections of sets (&&) are not supported");
      if (at(U"[:")) {
        set.add(posix());
        continue;
      }
      if (at(U"[")) fail("sets in sets are not supported; write \\[ for the bracket");
      char32_t low = next();
      if (low == '\\') {
        if (const auto escaped = set_escape()) {
          set.add(*escaped);
          continue;
        }
        low = point_escape(true);
      }
      char32_t high = low;
      if (at(U"-") && pos_ + 1 < pattern_.size() && peek(1) != ']') {
        ++pos_;
        high = next();
        if (high == '[') fail("a range has a set for its end");
        if (high == '\\') {
          if (set_escape()) fail("a range has a set for its end");
          high = point_escape(true);
        }
      }
      if (high < low) fail("a range of a set is reversed");
      set.body += range(low, high);
    }
  }

  Set posix() {
    pos_ += 2;
    const bool complement = take(U"^");
    std::string name;
    while (!at(U":]")) name += static_cast<char>(next() & 0x7F);
    pos_ += 2;
    if (name != "space" && name != "digit" && name != "word") {
      fail(fmt::format("[:{}:] is not supported", printable(name, 20)));
    }
    Set set = named(name);
    set.complement ^= complement;
    return set;
  }

  std::string written_;
  bool new_code_points_;
  std::string place_;
  std::u32string pattern_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = kNone;  // start of the last atom in out_
  std::vector<Group> groups_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern, bool new_code_points, const std::string& place) {
  return Translator(pattern, new_code_points, place).run();
}

}  // namespace longship::data::hf
