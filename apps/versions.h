#pragma once

#include <string>

namespace longship::apps {

/// Longship's version and those of the libraries it runs with, one per line.
std::string versions_text();

}  // namespace longship::apps
