#include "apps/processes.h"

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "dist/launch.h"

namespace longship::apps {

std::unique_ptr<train::Parallel> connect_processes(const train::Recipe& recipe) {
  auto parallel = train::Parallel::connect(recipe, dist::read_launch());
  parallel->set_last_resort([](const std::string& why) {
    log::error("{}; this process ends", why);
    log::flush();
    std::_Exit(static_cast<int>(ExitCode::kPeer));
  });
  return parallel;
}

}  // namespace longship::apps
