// The visitor that fills a configuration from a tree and collects everything that is wrong with it.
#include "base/config/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>

#include "base/config/format.h"
#include "base/error.h"
#include "base/strings.h"

namespace longship::config {

namespace {

constexpr size_t kMaxListedProblems = 50;
constexpr size_t kMaxListedKeys = 16;
constexpr size_t kMaxComparedName = 100;  // edit distance is quadratic

std::string simplified(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c == '-') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kMaxComparedName) return "";
  const std::string wanted = simplified(name);
  std::string best;
  int64_t best_distance = static_cast<int64_t>(name.size() + 2) / 3 + 1;
  for (const std::string& candidate : candidates) {
    const int64_t distance = levenshtein(wanted, simplified(candidate));
    if (distance < best_distance && distance < static_cast<int64_t>(candidate.size())) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty()) return best;
  // "batch" for "global_batch": one name holds the other.
  for (const std::string& candidate : candidates) {
    const std::string other = simplified(candidate);
    if (wanted.size() >= 4 && other.find(wanted) != std::string::npos) return candidate;
    if (other.size() >= 4 && wanted.find(other) != std::string::npos) return candidate;
  }
  return "";
}

struct Loader::Impl {
  struct Frame {
    const Node* node = nullptr;  // a map, a sequence, or nullptr when absent or of a wrong kind
    std::string path;            // "optim." including the final dot; "" for the root
    std::vector<std::string> known;
    Mark place;          // of the node or its nearest parent
    bool muted = false;  // an error about the whole section was given already
  };
  struct Problem {
    Mark mark;
    std::string text;
  };
  struct UnknownKey {
    Mark mark;
    std::string key, path;
    std::vector<std::string> known;
  };

  std::vector<Frame> frames;
  std::vector<Problem> problems;
  std::vector<UnknownKey> unknown;
  std::vector<std::string> all_paths;
  size_t num_problems = 0;

  void problem(const Mark& mark, std::string text) {
    // A hostile file may have a problem per value; they are counted but not kept.
    if (++num_problems <= kMaxListedProblems) problems.push_back({mark, std::move(text)});
  }
  std::string full(std::string_view key) const { return frames.back().path + std::string(key); }

  const Node* take(std::string_view key) {
    Frame& frame = frames.back();
    frame.known.emplace_back(key);
    all_paths.push_back(full(key));
    return frame.node != nullptr ? frame.node->find(key) : nullptr;
  }
  // The node of a field, or nullptr when it is absent, after the complaint if it was required.
  const Node* take_field(std::string_view key, std::string_view type, const Meta& meta) {
    const Node* node = take(key);
    if (node == nullptr && meta.required && !frames.back().muted) {
      problem(frames.back().place, fmt::format("'{}' is missing ({}: {})", full(key),
                                               format_expected(type, meta), meta.doc));
    }
    return node;
  }
  void wrong(const Node& node, std::string_view path, std::string_view expected, const Meta& meta,
             std::string_view advice = "") {
    problem(node.mark(), fmt::format("'{}' is {}; it must be {}{}", path, node.describe(),
                                     format_expected(expected, meta), advice));
  }

  static std::string_view unquote_advice(const Node& node) {
    return node.quoted() ? " (without quotes)" : "";
  }
  static bool in_range(double value, const Meta& meta) {
    return value >= meta.min && value <= meta.max;
  }

  bool read(const Node& node, std::string_view path, const Meta& meta, bool& out) {
    const bool plain = node.is_scalar() && !node.quoted();
    if (plain && (node.scalar() == "true" || node.scalar() == "false")) {
      out = node.scalar() == "true";
      return true;
    }
    wrong(node, path, "true or false", meta, unquote_advice(node));
    return false;
  }
  bool read(const Node& node, std::string_view path, const Meta& meta, int64_t& out) {
    double number = 0;
    if (!parse_number(node, number)) {
      wrong(node, path, "a whole number", meta, unquote_advice(node));
      return false;
    }
    const std::string_view digits = without_plus(node.scalar());
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      const bool integral = std::nearbyint(number) == number && std::abs(number) < 1e15;
      wrong(node, path, "a whole number", meta,
            integral ? fmt::format("; write it as {}", static_cast<int64_t>(number)) : "");
      return false;
    }
    if (!in_range(static_cast<double>(value), meta)) {
      wrong(node, path, "a whole number", meta);
      return false;
    }
    out = value;
    return true;
  }
  bool read(const Node& node, std::string_view path, const Meta& meta, double& out) {
    double value = 0;
    if (!parse_number(node, value) || !std::isfinite(value) || !in_range(value, meta)) {
      wrong(node, path, "a number", meta, unquote_advice(node));
      return false;
    }
    out = value;
    return true;
  }
  bool read(const Node& node, std::string_view path, const Meta& meta, std::string& out) {
    if (node.is_scalar()) {
      out = node.scalar();
      return true;
    }
    wrong(node, path, "a text", meta, node.is_null() ? " (write \"\" for an empty one)" : "");
    return false;
  }
  template <class T>
  bool read(const Node& node, std::string_view path, const Meta& meta, std::optional<T>& out) {
    if (node.is_null()) {
      out.reset();
      return true;
    }
    T value{};
    if (!read(node, path, meta, value)) return false;
    out = std::move(value);
    return true;
  }
  template <class T>
  bool read(const Node& node, std::string_view path, const Meta& meta, std::vector<T>& out) {
    if (!node.is_sequence()) {
      wrong(node, path, fmt::format("a {}", type_name(out)), meta,
            node.is_null() ? " (write [] for an empty one)"
                           : " (in [ ], or one per line after '- ')");
      return false;
    }
    std::vector<T> values(node.items().size());
    bool good = true;
    for (size_t i = 0; i < values.size(); ++i) {
      T value{};
      good = read(node.items()[i], fmt::format("{}.{}", path, i), meta, value) && good;
      values[i] = std::move(value);
    }
    if (good) out = std::move(values);
    return good;
  }
  bool read(const Node& node, std::string_view path, const Meta& meta, CountOrList& out) {
    Meta limits = meta;
    limits.min = std::max(meta.min, 0.0);
    CountOrList value;
    value.is_list = node.is_sequence();
    if (!node.is_sequence() && !node.is_scalar()) {
      wrong(node, path, "a count or a list of whole numbers", limits);
      return false;
    }
    const bool good = value.is_list ? read(node, path, limits, value.list)
                                    : read(node, path, limits, value.count);
    if (good) out = std::move(value);
    return good;
  }
  bool read(const Node& node, std::string_view path, const Meta& meta,
            std::vector<std::pair<std::string, std::string>>& out) {
    if (!node.is_map()) {
      wrong(node, path, "a section of 'name: name' lines", meta,
            node.is_null() ? " (write {} for an empty one)" : "");
      return false;
    }
    std::vector<std::pair<std::string, std::string>> values;
    bool good = true;
    for (const Node::Entry& entry : node.entries()) {
      std::string text;
      const std::string item = fmt::format("{}.{}", path, printable(entry.key));
      if (entry.value.is_map()) {
        wrong(entry.value, item, "a text", meta,
              " (in an override, write a key with dots in double quotes)");
        good = false;
      } else {
        good = read(entry.value, item, meta, text) && good;
      }
      values.emplace_back(entry.key, std::move(text));
    }
    if (good) out = std::move(values);
    return good;
  }

  template <class T>
  void load_field(std::string_view key, T& value, const Meta& meta) {
    if (const Node* node = take_field(key, type_name(value), meta))
      read(*node, full(key), meta, value);
  }

  static std::string_view without_plus(std::string_view text) {
    if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
    return text;
  }
  // Decimal only. Infinity and overflow give an infinite value, which the caller refuses by its
  // range.
  static bool parse_number(const Node& node, double& out) {
    if (!node.is_scalar() || node.quoted()) return false;
    const std::string_view text = without_plus(node.scalar());
    const auto digit_or_sign = [](char c) {
      return (c >= '0' && c <= '9') || c == '-' || c == '.';
    };
    if (text.empty() || !digit_or_sign(text[0])) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (end != text.data() + text.size()) return false;
    if (error == std::errc::result_out_of_range) out = std::numeric_limits<double>::infinity();
    return error == std::errc() || error == std::errc::result_out_of_range;
  }

  void push(const Node* node, Node::Kind kind, std::string_view wanted, std::string path,
            std::string_view name) {
    Frame frame;
    frame.path = std::move(path);
    frame.place = node != nullptr ? node->mark() : frames.back().place;
    frame.muted = !frames.empty() && frames.back().muted;
    if (node != nullptr && node->kind() != kind && !(node->is_null() && kind == Node::Kind::kMap)) {
      problem(node->mark(),
              fmt::format("'{}' is {}; it must be {}", name, node->describe(), wanted));
      frame.muted = true;
      node = nullptr;
    }
    frame.node = node != nullptr && node->is_null() ? nullptr : node;
    frames.push_back(std::move(frame));
  }

  void pop_section() {
    const Frame frame = std::move(frames.back());
    frames.pop_back();
    if (frame.node == nullptr) return;
    for (const Node::Entry& entry : frame.node->entries()) {
      if (std::find(frame.known.begin(), frame.known.end(), entry.key) != frame.known.end())
        continue;
      if (++num_problems <= kMaxListedProblems)
        unknown.push_back({entry.key_mark, entry.key, frame.path, frame.known});
    }
  }

  // Suggests a key of the same section, else the same key of another section, else lists what there
  // is.
  std::string suggest(const UnknownKey& u) const {
    if (const std::string near = nearest(u.key, u.known); !near.empty()) {
      return fmt::format("did you mean '{}{}'?", u.path, near);
    }
    const std::string tail = "." + u.key;
    for (const std::string& path : all_paths) {
      if (path == u.key || path.ends_with(tail)) return fmt::format("did you mean '{}'?", path);
    }
    if (u.known.empty()) return "nothing can be set there";
    std::vector<std::string> keys(
        u.known.begin(),
        u.known.begin() + static_cast<int64_t>(std::min(u.known.size(), kMaxListedKeys)));
    return fmt::format("known keys there: {}{}", join(keys, ", "),
                       keys.size() < u.known.size() ? ", ..." : "");
  }
};

Loader::Loader(const Node& node, std::string_view prefix) : impl_(std::make_unique<Impl>()) {
  const std::string path = prefix.empty() ? "" : std::string(prefix) + ".";
  const std::string name = prefix.empty() ? "configuration" : std::string(prefix);
  impl_->push(&node, Node::Kind::kMap, "a section of 'key: value' lines", path, name);
}

Loader::~Loader() = default;

void Loader::finish() {
  LS_CHECK(impl_->frames.size() == 1, InternalError, "Loader::finish with {} open sections",
           impl_->frames.size());
  impl_->pop_section();
  if (impl_->num_problems == 0) return;
  auto& problems = impl_->problems;
  for (const Impl::UnknownKey& u : impl_->unknown) {
    problems.push_back({u.mark, fmt::format("unknown key '{}{}'; {}", u.path, printable(u.key),
                                            impl_->suggest(u))});
  }
  // In file order, overrides last.
  std::stable_sort(problems.begin(), problems.end(), [](const auto& a, const auto& b) {
    const auto order = [](const Mark& m) { return std::pair(m.line == 0, m.line); };
    return order(a.mark) < order(b.mark);
  });
  const auto text = [](const Impl::Problem& p) {
    return fmt::format("{}: {}", p.mark.str(), p.text);
  };
  if (problems.size() == 1 && impl_->num_problems == 1) throw ConfigError(text(problems[0]));
  std::string message = fmt::format("{} problems in the configuration:", impl_->num_problems);
  for (const Impl::Problem& p : problems) message += "\n  " + text(p);
  if (impl_->num_problems > problems.size()) {
    message += fmt::format("\n  and {} more", impl_->num_problems - problems.size());
  }
  throw ConfigError(message);
}

void Loader::field(std::string_view key, bool& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, int64_t& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, double& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::string& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::optional<int64_t>& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::optional<double>& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::optional<std::string>& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::vector<int64_t>& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::vector<double>& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::vector<std::string>& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, CountOrList& v, const Meta& m) {
  impl_->load_field(key, v, m);
}
void Loader::field(std::string_view key, std::vector<std::pair<std::string, std::string>>& v,
                   const Meta& m) {
  impl_->load_field(key, v, m);
}

void Loader::choice(std::string_view key, std::string& value,
                    const std::vector<std::string>& allowed, const Meta& meta) {
  const std::string expected = "one of " + join(allowed, ", ");
  const Node* node = impl_->take_field(key, expected, meta);
  if (node == nullptr) return;
  if (node->is_scalar() &&
      std::find(allowed.begin(), allowed.end(), node->scalar()) != allowed.end()) {
    value = node->scalar();
    return;
  }
  const std::string near = node->is_scalar() ? nearest(node->scalar(), allowed) : "";
  impl_->wrong(*node, impl_->full(key), expected, meta,
               near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

bool Loader::enter_section(std::string_view key, std::string_view) {
  const Node* node = impl_->take(key);
  const std::string name = impl_->full(key);
  impl_->push(node, Node::Kind::kMap, "a section of 'key: value' lines", name + ".", name);
  return true;
}

void Loader::leave_section() {
  impl_->pop_section();
}

int64_t Loader::begin_list(std::string_view key, int64_t, std::string_view) {
  const Node* node = impl_->take(key);
  const std::string name = impl_->full(key);
  impl_->push(node, Node::Kind::kSequence, "a list of sections, each after '- '", name + ".", name);
  const Node* list = impl_->frames.back().node;
  return list != nullptr ? static_cast<int64_t>(list->items().size()) : -1;
}

void Loader::begin_item(int64_t i) {
  const Node* list = impl_->frames.back().node;
  const Node* node = list != nullptr ? &list->items()[static_cast<size_t>(i)] : nullptr;
  const std::string name = fmt::format("{}{}", impl_->frames.back().path, i);
  impl_->push(node, Node::Kind::kMap, "a section of 'key: value' lines", name + ".", name);
}

void Loader::end_item() {
  impl_->pop_section();
}

void Loader::end_list() {
  impl_->frames.pop_back();
}

}  // namespace longship::config
