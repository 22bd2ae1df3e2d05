#pragma once
// A command that several processes run together.

#include <memory>

#include "train/parallel.h"

namespace longship::apps {

/// Parallel::connect() with the launcher's variables; a process that stands still inside the driver
/// because of a lost peer is ended with ExitCode::kPeer.
std::unique_ptr<train::Parallel> connect_processes(const train::Recipe& recipe);

}  // namespace longship::apps
