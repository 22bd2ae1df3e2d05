#pragma once
// Reading and printing of configuration structs: any type with `void reflect(config::Visitor&)`.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/visitor.h"
#include "base/config/yaml.h"

namespace longship::config {

/// Fills the fields of a struct from a node. Problems are collected; a field with a problem keeps
/// its value.
class Loader : public Visitor {
 public:
  /// `prefix` is the dotted path of `node` in its file, for messages ("" for the root). `node` must
  /// outlive the loader.
  explicit Loader(const Node& node, std::string_view prefix = "");
  ~Loader() override;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Throws one ConfigError that lists every problem: unknown key, wrong type, out of range,
  /// missing required field.
  void finish();

  void field(std::string_view key, bool& value, const Meta& meta) override;
  void field(std::string_view key, int64_t& value, const Meta& meta) override;
  void field(std::string_view key, double& value, const Meta& meta) override;
  void field(std::string_view key, std::string& value, const Meta& meta) override;
  void field(std::string_view key, std::optional<int64_t>& value, const Meta& meta) override;
  void field(std::string_view key, std::optional<double>& value, const Meta& meta) override;
  void field(std::string_view key, std::optional<std::string>& value, const Meta& meta) override;
  void field(std::string_view key, std::vector<int64_t>& value, const Meta& meta) override;
  void field(std::string_view key, std::vector<double>& value, const Meta& meta) override;
  void field(std::string_view key, std::vector<std::string>& value, const Meta& meta) override;
  void field(std::string_view key, CountOrList& value, const Meta& meta) override;
  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& value,
             const Meta& meta) override;
  void choice(std::string_view key, std::string& value, const std::vector<std::string>& allowed,
              const Meta& meta) override;
  bool enter_section(std::string_view key, std::string_view doc) override;
  void leave_section() override;
  int64_t begin_list(std::string_view key, int64_t current_size, std::string_view doc) override;
  void begin_item(int64_t i) override;
  void end_item() override;
  void end_list() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace detail {
using Walk = void (*)(void* config, Visitor& visitor);
std::string dump_yaml(void* config, Walk walk);
std::string describe(void* config, Walk walk);
std::string schema(void* config, Walk walk);
// The printing visitors never write to a field; reflect() is not const only because loading shares
// it.
template <class T>
void* erase(const T& config) {
  return const_cast<void*>(static_cast<const void*>(&config));
}
template <class T>
void walk(void* config, Visitor& visitor) {
  static_cast<T*>(config)->reflect(visitor);
}
}  // namespace detail

/// Fields absent from `node` keep their value. A null node counts as an empty section. Throws
/// ConfigError.
template <class T>
void load(const Node& node, T& config, std::string_view prefix = "") {
  Loader loader(node, prefix);
  config.reflect(loader);
  loader.finish();
}

/// The whole configuration as YAML; load() of it gives an equal struct, numbers bit for bit.
template <class T>
std::string dump_yaml(const T& config) {
  return detail::dump_yaml(detail::erase(config), &detail::walk<T>);
}

/// Help text: per field its key, type, default (the value in `config`), unit, range and sentence.
template <class T>
std::string describe(const T& config) {
  return detail::describe(detail::erase(config), &detail::walk<T>);
}

/// One line per field, "optim.lr: number = 2.5e-05 [0, inf]", in reflection order; tests freeze it.
template <class T>
std::string schema(const T& config) {
  return detail::schema(detail::erase(config), &detail::walk<T>);
}

/// The candidate closest in edit distance, or "" when none is close (more than a third of the
/// letters differ).
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace longship::config
