// The tree itself, paths into it, and overrides.
#include <fmt/core.h>

#include <charconv>
#include <utility>

#include "base/config/yaml.h"
#include "base/error.h"
#include "base/strings.h"

namespace longship::config {

std::string Mark::str() const {
  if (!file) return "default";
  return line > 0 ? fmt::format("{}:{}", *file, line) : *file;
}

Node Node::make_null(Mark mark) {
  Node node;
  node.mark_ = std::move(mark);
  return node;
}

Node Node::make_scalar(std::string text, bool quoted, Mark mark) {
  Node node = make_null(std::move(mark));
  node.kind_ = Kind::kScalar;
  node.scalar_ = std::move(text);
  node.quoted_ = quoted;
  return node;
}

Node Node::make_sequence(Mark mark) {
  Node node = make_null(std::move(mark));
  node.kind_ = Kind::kSequence;
  return node;
}

Node Node::make_map(Mark mark) {
  Node node = make_null(std::move(mark));
  node.kind_ = Kind::kMap;
  return node;
}

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries_) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

namespace {

// The index that `text` spells, or -1.
int64_t parse_index(std::string_view text) {
  int64_t index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() && text[0] != '-'
             ? index
             : -1;
}

// Longest walk along `path`: calls visit(node) for every node on it and returns the last one when
// all of it was found.
template <class Visit>
const Node* walk_path(const Node& node, std::string_view path, Visit&& visit) {
  visit(node);
  if (path.empty()) return &node;
  for (const Node::Entry& entry : node.entries()) {
    if (path == entry.key) return walk_path(entry.value, "", visit);
    if (path.size() > entry.key.size() && path.starts_with(entry.key) &&
        path[entry.key.size()] == '.') {
      if (const Node* found = walk_path(entry.value, path.substr(entry.key.size() + 1), visit))
        return found;
    }
  }
  if (node.is_sequence()) {
    const size_t dot = path.find('.');
    const int64_t index = parse_index(path.substr(0, dot));
    if (index >= 0 && index < static_cast<int64_t>(node.items().size())) {
      return walk_path(node.items()[static_cast<size_t>(index)],
                       dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1),
                       visit);
    }
  }
  return nullptr;
}

}  // namespace

const Node* Node::find_path(std::string_view path) const {
  return walk_path(*this, path, [](const Node&) {});
}

std::string Node::describe() const {
  const auto plural = [](size_t n) { return n == 1 ? "" : "s"; };
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kScalar:
      return quoted_ ? fmt::format("\"{}\"", printable(scalar_))
                     : fmt::format("'{}'", printable(scalar_));
    case Kind::kSequence:
      return fmt::format("a list of {} item{}", items_.size(), plural(items_.size()));
    case Kind::kMap:
      return fmt::format("a section with {} key{}", entries_.size(), plural(entries_.size()));
  }
  return "";
}

std::string place_of(const Node& root, std::string_view path) {
  Mark mark;
  walk_path(root, path, [&](const Node& node) { mark = node.mark(); });
  return mark.str();
}

namespace {

struct KeyPart {
  std::string text;
  bool quoted = false;
};

// Splits a."b.c".0 at its dots outside of quotes.
std::vector<KeyPart> split_key(std::string_view key, std::string_view name) {
  std::vector<KeyPart> parts;
  size_t i = 0;
  while (true) {
    KeyPart part;
    if (i < key.size() && key[i] == '"') {
      const size_t close = key.find('"', i + 1);
      LS_CHECK(close != std::string_view::npos, ConfigError,
               "{}: the quote in its key is not closed", name);
      part = {std::string(key.substr(i + 1, close - i - 1)), true};
      i = close + 1;
      LS_CHECK(i == key.size() || key[i] == '.', ConfigError,
               "{}: a dot or '=' must follow the quoted key", name);
    } else {
      const size_t dot = std::min(key.find('.', i), key.size());
      part.text = key.substr(i, dot - i);
      i = dot;
    }
    LS_CHECK(!part.text.empty(), ConfigError,
             "{}: a part of its key is empty; write section.key=value, e.g. train.steps=1000",
             name);
    parts.push_back(std::move(part));
    if (i == key.size()) return parts;
    ++i;
  }
}

std::string join_keys(const std::vector<KeyPart>& parts, size_t begin, size_t end) {
  std::string out;
  for (size_t i = begin; i < end; ++i) {
    if (i > begin) out += '.';
    out += parts[i].text;
  }
  return out;
}

// The start of '=' outside of quotes, or npos.
size_t find_equals(std::string_view text) {
  bool in_quotes = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_quotes = !in_quotes;
    if (text[i] == '=' && !in_quotes) return i;
  }
  return std::string_view::npos;
}

void stamp(Node& node, const Mark& mark) {
  Node made = node.is_null()       ? Node::make_null(mark)
              : node.is_scalar()   ? Node::make_scalar(node.scalar(), node.quoted(), mark)
              : node.is_sequence() ? Node::make_sequence(mark)
                                   : Node::make_map(mark);
  for (Node& item : node.mutable_items()) {
    stamp(item, mark);
    made.mutable_items().push_back(std::move(item));
  }
  for (Node::Entry& entry : node.mutable_entries()) {
    stamp(entry.value, mark);
    made.mutable_entries().push_back({std::move(entry.key), mark, std::move(entry.value)});
  }
  node = std::move(made);
}

class Override {
 public:
  Override(std::string name, std::vector<KeyPart> parts, Node value)
      : parts_(std::move(parts)), value_(std::move(value)) {
    mark_.file = std::make_shared<const std::string>(std::move(name));
    stamp(value_, mark_);
  }

  void apply(Node& node, size_t begin) {
    if (begin == parts_.size()) {
      node = value_;
      return;
    }
    const std::string path = join_keys(parts_, 0, begin);
    if (node.is_null()) node = Node::make_map(mark_);
    if (node.is_sequence()) return apply_to_item(node, begin, path);
    LS_CHECK(node.is_map(), ConfigError, "{}: '{}' is the single value {} ({}), it has no key '{}'",
             *mark_.file, path, node.describe(), node.mark().str(), parts_[begin].text);
    apply_to_map(node, begin);
  }

 private:
  void apply_to_item(Node& node, size_t begin, const std::string& path) {
    const auto size = static_cast<int64_t>(node.items().size());
    const int64_t index = parse_index(parts_[begin].text);
    LS_CHECK(index >= 0, ConfigError,
             "{}: '{}' is a list ({}); give the number of an item, e.g. {}.0, not '{}'",
             *mark_.file, path, node.mark().str(), path, parts_[begin].text);
    LS_CHECK(index < size, ConfigError,
             "{}: '{}' has {} ({}), there is no item {}; set the whole list with {}=[...]",
             *mark_.file, path, size == 0 ? "no items" : fmt::format("items 0 to {}", size - 1),
             node.mark().str(), index, path);
    apply(node.mutable_items()[static_cast<size_t>(index)], begin + 1);
  }

  void apply_to_map(Node& node, size_t begin) {
    // Keys of the file may hold dots: the longest one that matches wins.
    for (size_t end = parts_.size(); end > begin; --end) {
      const std::string key = join_keys(parts_, begin, end);
      for (Node::Entry& entry : node.mutable_entries()) {
        if (entry.key != key) continue;
        if (end == parts_.size()) entry.key_mark = mark_;
        return apply(entry.value, end);
      }
    }
    const KeyPart& part = parts_[begin];
    LS_CHECK(begin == 0 || part.quoted || parse_index(part.text) < 0, ConfigError,
             "{}: '{}' is not in the file, so there is no item {} to change; set the whole list "
             "with {}=[...]",
             *mark_.file, join_keys(parts_, 0, begin), part.text, join_keys(parts_, 0, begin));
    node.mutable_entries().push_back({part.text, mark_, Node::make_null(mark_)});
    apply(node.mutable_entries().back().value, begin + 1);
  }

  std::vector<KeyPart> parts_;
  Node value_;
  Mark mark_;
};

}  // namespace

void apply_override(Node& root, std::string_view text) {
  const std::string name = fmt::format("override '{}'", printable(text, 200));
  const size_t equals = find_equals(text);
  LS_CHECK(equals != std::string_view::npos, ConfigError,
           "{}: no '=' in it; write section.key=value, e.g. train.steps=1000", name);
  std::vector<KeyPart> parts = split_key(trim(text.substr(0, equals)), name);
  LS_CHECK(parts.size() <= static_cast<size_t>(kMaxYamlDepth), ConfigError,
           "{}: its key has more than {} parts", name, kMaxYamlDepth);
  const std::string_view value = trim(text.substr(equals + 1));
  LS_CHECK(!value.empty(), ConfigError,
           "{}: no value; write {}=null for null or {}='\"\"' for an empty text", name,
           join_keys(parts, 0, parts.size()), join_keys(parts, 0, parts.size()));
  Override(name, std::move(parts), parse_yaml_text(value, name)).apply(root, 0);
}

}  // namespace longship::config
