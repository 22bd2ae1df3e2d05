#pragma once
// Rules of a recipe about parameters by name.

#include <string>
#include <string_view>
#include <vector>

#include "models/spec.h"

namespace longship::models {

/// Glob with * and ?, or a dotted prefix of the name.
bool matches_parameter(std::string_view pattern, std::string_view name);

/// Freezes what `pattern` matches. Throws ConfigError naming the rule when it matches nothing.
void freeze_matching(std::vector<ParamInfo>& parameters, std::string_view pattern,
                     std::string_view rule, std::string_view hint);

/// Throws ConfigError when nothing is left to train.
void check_trainable(const std::vector<ParamInfo>& parameters);

/// Where a parameter is read. `place` counts in the order in which data flows: nothing that is read
/// at a lower place depends on this parameter.
struct ParameterUse {
  std::string unit;  // nn/unit.h
  int64_t place = 0;
};

/// Fills unit and forward_only: a unit takes part in the backward pass when something trainable is
/// read before or in it. uses[i] belongs to parameters[i].
void assign_units(std::vector<ParamInfo>& parameters, std::vector<ParameterUse> uses);

}  // namespace longship::models
