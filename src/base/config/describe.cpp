// The visitors behind describe() and schema().
#include <fmt/core.h>

#include "base/config/format.h"
#include "base/config/load.h"
#include "base/strings.h"

namespace longship::config {

namespace {

// One field, whatever its type.
struct FieldText {
  std::string key, type, value;
  const Meta& meta;
};

// Brings every kind of field down to one function, and keeps the path.
class TextVisitor : public Visitor {
 public:
  std::string take() { return std::move(out_); }

  void field(std::string_view key, bool& v, const Meta& m) override { typed(key, v, m); }
  void field(std::string_view key, int64_t& v, const Meta& m) override { typed(key, v, m); }
  void field(std::string_view key, double& v, const Meta& m) override { typed(key, v, m); }
  void field(std::string_view key, std::string& v, const Meta& m) override { typed(key, v, m); }
  void field(std::string_view key, std::optional<int64_t>& v, const Meta& m) override {
    typed(key, v, m);
  }
  void field(std::string_view key, std::optional<double>& v, const Meta& m) override {
    typed(key, v, m);
  }
  void field(std::string_view key, std::optional<std::string>& v, const Meta& m) override {
    typed(key, v, m);
  }
  void field(std::string_view key, std::vector<int64_t>& v, const Meta& m) override {
    typed(key, v, m);
  }
  void field(std::string_view key, std::vector<double>& v, const Meta& m) override {
    typed(key, v, m);
  }
  void field(std::string_view key, std::vector<std::string>& v, const Meta& m) override {
    typed(key, v, m);
  }
  void field(std::string_view key, CountOrList& v, const Meta& m) override { typed(key, v, m); }
  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& v,
             const Meta& m) override {
    typed(key, v, m);
  }
  void choice(std::string_view key, std::string& v, const std::vector<std::string>& allowed,
              const Meta& m) override {
    print({std::string(key), "one of " + join(allowed, " | "), format_value(v), m});
  }
  void begin_item(int64_t) override {}
  void end_item() override {}
  bool describes_only() const override { return true; }

 protected:
  virtual void print(const FieldText& field) = 0;
  std::string out_;

 private:
  template <class T>
  void typed(std::string_view key, const T& value, const Meta& meta) {
    print({std::string(key), std::string(type_name(value)), format_value(value), meta});
  }
};

class Describer : public TextVisitor {
 public:
  bool enter_section(std::string_view key, std::string_view doc) override {
    heading(key, "", doc);
    return true;
  }
  void leave_section() override { --depth_; }
  int64_t begin_list(std::string_view key, int64_t, std::string_view doc) override {
    heading(key, " (list of:)", doc);
    return -1;
  }
  void end_list() override { --depth_; }

 protected:
  void print(const FieldText& f) override {
    out_ += fmt::format("{}{}  ({}", indent(), f.key, format_expected(f.type, f.meta));
    out_ += f.meta.required ? ", required)\n" : fmt::format(", default {})\n", f.value);
    out_ += fmt::format("{}    {}\n", indent(), f.meta.doc);
  }

 private:
  std::string indent() const { return std::string(static_cast<size_t>(2 * depth_), ' '); }
  void heading(std::string_view key, std::string_view kind, std::string_view doc) {
    out_ += fmt::format("{}{}:{}{}{}\n", indent(), key, kind, doc.empty() ? "" : "  ", doc);
    ++depth_;
  }
  int depth_ = 0;
};

class SchemaPrinter : public TextVisitor {
 public:
  bool enter_section(std::string_view key, std::string_view) override {
    path_.push_back(std::string(key) + ".");
    return true;
  }
  void leave_section() override { path_.pop_back(); }
  int64_t begin_list(std::string_view key, int64_t, std::string_view) override {
    path_.push_back(std::string(key) + "[].");
    return -1;
  }
  void end_list() override { path_.pop_back(); }

 protected:
  void print(const FieldText& f) override {
    out_ += join(path_, "");
    out_ += fmt::format("{}: {}", f.key, format_expected(f.type, f.meta));
    out_ += f.meta.required ? ", required\n" : fmt::format(" = {}\n", f.value);
  }

 private:
  std::vector<std::string> path_;
};

}  // namespace

namespace detail {

std::string describe(void* config, Walk walk) {
  Describer visitor;
  walk(config, visitor);
  return visitor.take();
}

std::string schema(void* config, Walk walk) {
  SchemaPrinter visitor;
  walk(config, visitor);
  return visitor.take();
}

}  // namespace detail

}  // namespace longship::config
