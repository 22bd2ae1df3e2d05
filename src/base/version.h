#pragma once

#include <string>

namespace longship {

/// Version of the project, "0.1.0".
std::string version();
/// One line on how the program was built: compiler, build type, flavour.
std::string build_info();

}  // namespace longship
