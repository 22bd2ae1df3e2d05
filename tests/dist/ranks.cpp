#include "ranks.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "base/error.h"

namespace longship::dist {
namespace {

void write_all(int fd, const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

[[noreturn]] void run_child(const RankBody& body, const LaunchInfo& launch, int fd, int limit_s) {
  alarm(static_cast<unsigned>(limit_s));
  int code = 0;
  std::string text;
  try {
    text = body(launch);
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    text = error.what();
  } catch (const std::exception& error) {
    code = 99;
    text = error.what();
  }
  write_all(fd, text);
  _exit(code);
}

}  // namespace

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

std::vector<RankResult> run_ranks(const std::vector<int64_t>& ranks, int64_t world_size,
                                  const RankBody& body, int limit_s, uint16_t port) {
  struct Child {
    pid_t pid = -1;
    int fd = -1;
  };
  if (port == 0) port = free_port();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Child> children;
  for (const int64_t rank : ranks) {
    LaunchInfo launch;
    launch.launcher = Launcher::kTorchrun;
    launch.rank = rank;
    launch.world_size = world_size;
    launch.local_rank = rank;
    launch.master_port = port;
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      run_child(body, launch, ends[1], limit_s);
    }
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<RankResult> results;
  for (const Child& child : children) {
    RankResult result;
    char buffer[4096];
    for (ssize_t n; (n = read(child.fd, buffer, sizeof(buffer))) > 0;) {
      result.text.append(buffer, static_cast<size_t>(n));
    }
    close(child.fd);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    results.push_back(std::move(result));
  }
  return results;
}

std::vector<RankResult> run_world(int64_t world_size, const RankBody& body, int limit_s) {
  std::vector<int64_t> ranks;
  for (int64_t r = 0; r < world_size; ++r) ranks.push_back(r);
  return run_ranks(ranks, world_size, body, limit_s);
}

GroupOptions test_options(const LaunchInfo& launch) {
  GroupOptions options;
  options.launch = launch;
  options.setup_timeout_s = 40;
  options.collective_timeout_s = 40;
  options.report_wait_s = 1;
  options.facts = {{"version", "1"}, {"recipe", "aaaa"}, {"datasets", "bbbb"}};
  return options;
}

}  // namespace longship::dist
