#pragma once
// Reflection of configuration structs: a struct lists its fields once in `void reflect(Visitor&)`;
// loading, printing, help text and the schema are visitors over that list.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longship::config {

/// Documentation and limits of a field. `doc` is one sentence; `unit` is empty for plain numbers. A
/// required field must be given in the file or by an override; every other one keeps the default of
/// its struct.
struct Meta {
  std::string_view doc;
  std::string_view unit = "";
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool required = false;
};

/// Either a count (the last n) or an explicit list; YAML `3` or `[0, 4]`.
struct CountOrList {
  int64_t count = 0;
  std::vector<int64_t> list;
  bool is_list = false;
};

/// Type-erased walk over the fields of a configuration. Order of calls = order of printing.
class Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void field(std::string_view key, bool& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, int64_t& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, double& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, std::string& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, std::optional<int64_t>& value,
                     const Meta& meta) = 0;  // null allowed
  virtual void field(std::string_view key, std::optional<double>& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, std::optional<std::string>& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, std::vector<int64_t>& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, std::vector<double>& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, std::vector<std::string>& value, const Meta& meta) = 0;
  virtual void field(std::string_view key, CountOrList& value, const Meta& meta) = 0;
  /// Free-form map from name to name, e.g. camera slots. Order kept.
  virtual void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& value,
                     const Meta& meta) = 0;
  /// One of a fixed set of words.
  virtual void choice(std::string_view key, std::string& value,
                      const std::vector<std::string>& allowed, const Meta& meta) = 0;

  /// A nested struct with its own reflect(Visitor&).
  template <class T>
  void section(std::string_view key, T& value, std::string_view doc) {
    if (!enter_section(key, doc)) return;
    value.reflect(*this);
    leave_section();
  }
  /// A list of structs (YAML sequence of maps). T must be default-constructible.
  template <class T>
  void list(std::string_view key, std::vector<T>& value, std::string_view doc) {
    if (describes_only()) {
      T example{};
      begin_list(key, 1, doc);
      begin_item(0);
      example.reflect(*this);
      end_item();
      end_list();
      return;
    }
    const int64_t n = begin_list(key, static_cast<int64_t>(value.size()), doc);
    if (n >= 0) {
      value.clear();
      value.resize(static_cast<size_t>(n));
    }
    for (size_t i = 0; i < value.size(); ++i) {
      begin_item(static_cast<int64_t>(i));
      value[i].reflect(*this);
      end_item();
    }
    end_list();
  }

  // Building blocks of section() and list().
  virtual bool enter_section(std::string_view key, std::string_view doc) = 0;
  virtual void leave_section() = 0;
  /// Returns -1 to walk the items as they are, or n to replace them by n default items first.
  virtual int64_t begin_list(std::string_view key, int64_t current_size, std::string_view doc) = 0;
  virtual void begin_item(int64_t i) = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;
  /// True for a visitor that prints a schema: list() then shows one default item and leaves the
  /// value alone.
  virtual bool describes_only() const { return false; }
};

}  // namespace longship::config
