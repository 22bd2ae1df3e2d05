#pragma once
// A bounded YAML reader: text -> tree of nodes that know their place, so that every later message
// can name file and line. Limits: 4 MiB of UTF-8, nesting 64, 100,000 nodes, one document.
// Duplicate keys, anchors, aliases and explicit tags are errors. All functions throw ConfigError.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace longship::config {

inline constexpr size_t kMaxYamlBytes = size_t{4} << 20;
inline constexpr int kMaxYamlDepth = 64;
inline constexpr int64_t kMaxYamlNodes = 100000;

/// Where a node was written. Lines and columns count from 1; line 0 means a command line override.
struct Mark {
  std::shared_ptr<const std::string> file;  // path, or "override 'a.b=c'"
  int line = 0;
  int column = 0;
  /// "configs/x.yaml:12", or "override 'a.b=c'".
  std::string str() const;
};

class Node {
 public:
  enum class Kind { kNull, kScalar, kSequence, kMap };
  struct Entry;

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_scalar() const { return kind_ == Kind::kScalar; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }
  bool is_map() const { return kind_ == Kind::kMap; }
  /// Text of a scalar with quotes and escapes resolved.
  const std::string& scalar() const { return scalar_; }
  /// Whether the scalar was quoted (or a block scalar): such a scalar is text and never a number or
  /// a bool.
  bool quoted() const { return quoted_; }
  const Mark& mark() const { return mark_; }
  const std::vector<Node>& items() const { return items_; }       // of a sequence
  const std::vector<Entry>& entries() const { return entries_; }  // of a map, in file order
  /// Value of a key of a map; nullptr when absent or when this is no map.
  const Node* find(std::string_view key) const;
  /// Node at a dotted path such as "data.datasets.0.path"; nullptr when absent. Keys may hold dots
  /// themselves.
  const Node* find_path(std::string_view path) const;
  /// What the node is, for messages: "null", "'abc'", "a list of 3 items", "a section with 2 keys".
  std::string describe() const;

  static Node make_null(Mark mark);
  static Node make_scalar(std::string text, bool quoted, Mark mark);
  static Node make_sequence(Mark mark);
  static Node make_map(Mark mark);
  std::vector<Node>& mutable_items() { return items_; }
  std::vector<Entry>& mutable_entries() { return entries_; }

 private:
  Kind kind_ = Kind::kNull;
  bool quoted_ = false;
  std::string scalar_;
  Mark mark_;
  std::vector<Node> items_;
  std::vector<Entry> entries_;
};

struct Node::Entry {
  std::string key;
  Mark key_mark;
  Node value;
};

/// An empty text gives a null node.
Node parse_yaml_file(const std::filesystem::path& path);
/// `name` stands for the file in messages.
Node parse_yaml_text(std::string_view text, std::string_view name);

/// Applies "a.b=c": the value is YAML ("3", "[1, 2]", "null", "\"text\""). Sections are created as
/// needed, items of an existing list are reached by index (a.0.b), a key with dots is written in
/// double quotes (a."b.c"=d). Whether the key means anything is found out by load(), which then
/// names the override.
void apply_override(Node& root, std::string_view text);

/// "configs/x.yaml:12" of the node at a path or of its nearest existing parent; "default" when the
/// tree is empty. For checks that go over several fields.
std::string place_of(const Node& root, std::string_view path);

}  // namespace longship::config
