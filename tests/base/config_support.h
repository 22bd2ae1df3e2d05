#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/config/load.h"
#include "base/error.h"
#include "base/sample_config.h"

namespace longship::testing {

/// Message of the Error that `action` throws, "" when it throws none.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline SampleConfig load_sample(std::string_view text) {
  SampleConfig config;
  config::load(config::parse_yaml_text(text, "x.yaml"), config);
  return config;
}

/// What loading this text complains about.
inline std::string load_error(std::string_view text) {
  return message_of([&] { load_sample(text); });
}

}  // namespace longship::testing
