// A text that is the YAML of a configuration up to its first "\n===\n", and one override a line
// after it. Whatever it is, the reader gives a configuration that prints and loads back to itself,
// or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/config/load.h"
#include "base/error.h"
#include "base/sample_config.h"
#include "base/strings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using longship::testing::SampleConfig;
  namespace config = longship::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view kSeparator = "\n===\n";
  const size_t cut = text.find(kSeparator);
  SampleConfig loaded;
  try {
    config::Node root = config::parse_yaml_text(text.substr(0, cut), "fuzz.yaml");
    if (cut != std::string_view::npos) {
      for (const std::string& line : longship::split(text.substr(cut + kSeparator.size()), '\n')) {
        if (!line.empty()) config::apply_override(root, line);
      }
    }
    config::load(root, loaded);
  } catch (const longship::ConfigError&) {
    return 0;
  }
  // From here on nothing may fail.
  const std::string printed = config::dump_yaml(loaded);
  SampleConfig again;
  config::load(config::parse_yaml_text(printed, "printed.yaml"), again);
  if (config::dump_yaml(again) != printed) std::abort();
  return 0;
}
