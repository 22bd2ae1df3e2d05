// Every model family that the program knows.
#include <fmt/core.h>

#include "base/config/load.h"
#include "base/error.h"
#include "models/groot/parity.h"
#include "models/groot/spec.h"
#include "models/parity.h"
#include "models/pi05/parity.h"
#include "models/pi05/spec.h"
#include "models/spec.h"

namespace longship::models {

std::vector<const ModelFamily*> all_families() {
  return {&groot_n16_family(), &groot_n17_family(), &pi05_family()};
}

const ModelFamily& find_family(const std::string& name) {
  std::vector<std::string> names;
  std::string listed;
  for (const ModelFamily* family : all_families()) {
    if (family->name() == name) return *family;
    names.push_back(family->name());
    listed += (listed.empty() ? "" : ", ") + family->name();
  }
  const std::string nearest = config::nearest(name, names);
  throw ConfigError(fmt::format("model.family: '{}' is not known{}; families: {}", name,
                                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
                                listed));
}

std::unique_ptr<ParityAdapter> make_parity_adapter(const ParityCase& c,
                                                   const ParityOptions& options) {
  if (c.family == "pi05") return make_pi05_parity_adapter(c, options);
  if (c.family == "groot_n16" || c.family == "groot_n17") {
    return make_groot_parity_adapter(c, options);
  }
  throw ConfigError(fmt::format(
      "family '{}' is not implemented; implemented: groot_n16, groot_n17, pi05", c.family));
}

}  // namespace longship::models
