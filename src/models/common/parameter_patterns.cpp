#include "models/common/parameter_patterns.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/strings.h"
#include "nn/unit.h"

namespace longship::models {

bool matches_parameter(std::string_view pattern, std::string_view name) {
  if (matches_glob(pattern, name)) return true;
  return name.size() > pattern.size() && name.starts_with(pattern) && name[pattern.size()] == '.';
}

void freeze_matching(std::vector<ParamInfo>& parameters, std::string_view pattern,
                     std::string_view rule, std::string_view hint) {
  bool matched = false;
  for (ParamInfo& info : parameters) {
    if (!matches_parameter(pattern, info.name)) continue;
    info.role = ParamRole::kFrozen;
    matched = true;
  }
  LS_CHECK(matched, ConfigError, "model.freeze: '{}' matches no parameter; use {}", rule, hint);
}

void check_trainable(const std::vector<ParamInfo>& parameters) {
  const bool any = std::any_of(parameters.begin(), parameters.end(), [](const ParamInfo& info) {
    return info.role == ParamRole::kTrainable;
  });
  LS_CHECK(any, ConfigError, "model.freeze leaves no parameter to train");
}

void assign_units(std::vector<ParamInfo>& parameters, std::vector<ParameterUse> uses) {
  LS_CHECK(uses.size() == parameters.size(), InternalError, "{} uses of {} parameters", uses.size(),
           parameters.size());
  int64_t first = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < uses.size(); ++i) {
    if (parameters[i].role == ParamRole::kTrainable) first = std::min(first, uses[i].place);
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    parameters[i].unit = std::move(uses[i].unit);
    parameters[i].forward_only = parameters[i].unit != nn::kRootUnit && uses[i].place < first;
  }
}

}  // namespace longship::models
