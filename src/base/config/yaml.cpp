// The only file that sees yaml-cpp. Its event parser feeds an own builder that knows the limits,
// because the library's own tree has none.
#include "base/config/yaml.h"

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <streambuf>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/strings.h"

namespace longship::config {

namespace {

class Builder : public YAML::EventHandler {
 public:
  explicit Builder(std::shared_ptr<const std::string> file) : file_(std::move(file)) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "", anchor);
    if (wants_key()) fail(mark, "an empty key");
    add(Node::make_null(place(mark)));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases (*name) are not supported; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (wants_key()) {
      set_key(mark, value);
    } else {
      add(Node::make_scalar(value, tag == "!", place(mark)));
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    open(mark, Node::make_sequence(place(mark)));
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    open(mark, Node::make_map(place(mark)));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    std::unordered_set<std::string> keys;
    std::string key;
    Mark key_mark;
    bool has_key = false;
  };

  Mark place(const YAML::Mark& mark) const {
    return {file_, std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1};
  }

  [[noreturn]] void fail(const YAML::Mark& mark, std::string_view what) const {
    throw ConfigError(fmt::format("{}: {}", place(mark).str(), what));
  }
  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor)
      fail(mark, "anchors (&name) are not supported; write the value out");
    // "?" and "!" are how the parser calls plain and quoted values without a tag.
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(mark, fmt::format("tags ({}) are not supported", printable(tag)));
    }
    if (++num_nodes_ > kMaxYamlNodes)
      fail(mark, fmt::format("more than {} values in one file", kMaxYamlNodes));
  }
  bool wants_key() const {
    return !stack_.empty() && stack_.back().node.is_map() && !stack_.back().has_key;
  }
  void set_key(const YAML::Mark& mark, const std::string& key) {
    Frame& frame = stack_.back();
    if (key.empty()) fail(mark, "an empty key");
    if (!frame.keys.insert(key).second) {
      const auto& entries = frame.node.entries();
      const auto first = std::find_if(entries.begin(), entries.end(),
                                      [&](const Node::Entry& e) { return e.key == key; });
      fail(mark, fmt::format("key '{}' stands twice in one section (first in line {})",
                             printable(key), first->key_mark.line));
    }
    frame.key = key;
    frame.key_mark = place(mark);
    frame.has_key = true;
  }
  void open(const YAML::Mark& mark, Node node) {
    if (wants_key()) fail(mark, "a list or a section cannot be a key");
    if (static_cast<int>(stack_.size()) >= kMaxYamlDepth) {
      fail(mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth));
    }
    stack_.push_back({std::move(node), {}, {}, {}, false});
  }
  void close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }
  void add(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.is_map()) {
      frame.node.mutable_entries().push_back(
          {std::move(frame.key), std::move(frame.key_mark), std::move(node)});
      frame.has_key = false;
    } else {
      frame.node.mutable_items().push_back(std::move(node));
    }
  }

  std::shared_ptr<const std::string> file_;
  std::vector<Frame> stack_;
  Node root_;
  int64_t num_nodes_ = 0;
};

// A stream over a text without copying it.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

void check_text(std::string_view text, std::string_view name) {
  LS_CHECK(text.size() <= kMaxYamlBytes, ConfigError,
           "{} has {}, more than the {} allowed for a configuration", name,
           human_bytes(text.size()), human_bytes(kMaxYamlBytes));
  const auto line_of = [&](size_t at) {
    return std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n') + 1;
  };
  const size_t bad = find_invalid_utf8(text);
  LS_CHECK(bad == std::string_view::npos, ConfigError,
           "{}:{}: byte {:#04x} is no UTF-8; is this a YAML text file?", name, line_of(bad),
           static_cast<unsigned>(static_cast<uint8_t>(text[bad])));
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    LS_CHECK(byte >= 0x20 || byte == '\n' || byte == '\r' || byte == '\t', ConfigError,
             "{}:{}: control byte {:#04x}; is this a YAML text file?", name, line_of(i),
             static_cast<unsigned>(byte));
  }
}

// The library's messages say what it saw, seldom what to do.
std::string hint(std::string_view text, int line) {
  for (int i = 0; i < line; ++i) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  const std::string_view row = text.substr(0, text.find('\n'));
  const size_t indent = std::min(row.find_first_not_of(" \t"), row.size());
  if (row.substr(0, indent).find('\t') != std::string_view::npos) {
    return "; the line is indented with a tab, YAML wants spaces";
  }
  return row.empty() ? "" : fmt::format("; the line is: {}", printable(trim(row)));
}

}  // namespace

Node parse_yaml_text(std::string_view text, std::string_view name) {
  check_text(text, name);
  Builder builder(std::make_shared<const std::string>(name));
  try {
    ViewBuffer buffer(text);
    std::istream stream(&buffer);
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      Builder rest(std::make_shared<const std::string>(name));
      LS_CHECK(!parser.HandleNextDocument(rest), ConfigError,
               "{}: more than one YAML document (---) in the text", name);
    }
  } catch (const YAML::Exception& e) {
    const bool known = e.mark.line >= 0;
    throw ConfigError(
        fmt::format("{}{}: not valid YAML: {}{}", name,
                    known ? fmt::format(":{}:{}", e.mark.line + 1, e.mark.column + 1) : "", e.msg,
                    known ? hint(text, e.mark.line) : ""));
  }
  return builder.take();
}

Node parse_yaml_file(const std::filesystem::path& path) {
  return parse_yaml_text(read_file(path, kMaxYamlBytes, ExitCode::kConfig), path.string());
}

}  // namespace longship::config
