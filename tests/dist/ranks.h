#pragma once
// Ranks as forked processes on this machine. The parent must not compute with the tensor library
// before (its threads would not survive the fork).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dist/launch.h"
#include "dist/process_group.h"

namespace longship::dist {

struct RankResult {
  int exit_code = -1;  // an Error's code, 99 for other exceptions, -1 when a signal ended it
  int signal = 0;
  std::string text;  // what the body returned, or the error's message
  double seconds = 0;
};

/// What a rank does; the text goes to the parent.
using RankBody = std::function<std::string(const LaunchInfo& launch)>;

/// Runs `body` in one process for each entry of `ranks` (more or fewer than world_size, for faults)
/// and waits for all. A process that runs longer than `limit_s` is ended by SIGALRM.
std::vector<RankResult> run_ranks(const std::vector<int64_t>& ranks, int64_t world_size,
                                  const RankBody& body, int limit_s = 60, uint16_t port = 0);
std::vector<RankResult> run_world(int64_t world_size, const RankBody& body, int limit_s = 60);

/// A port that nobody listens on at this moment.
uint16_t free_port();

/// Options with short times for tests.
GroupOptions test_options(const LaunchInfo& launch);

}  // namespace longship::dist
