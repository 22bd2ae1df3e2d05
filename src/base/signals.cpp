#include "base/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "base/error.h"

namespace longship {

namespace {

std::atomic<int> g_signal{0};
std::atomic<bool> g_active{false};
struct sigaction g_old_int, g_old_term;

static_assert(std::atomic<int>::is_always_lock_free, "the handler may use lock-free atomics only");

// Only async-signal-safe calls here.
void on_signal(int number) {
  int expected = 0;
  if (g_signal.compare_exchange_strong(expected, number)) {
    constexpr std::string_view kText =
        "\ninterrupted: finishing this step and saving; once more to stop at once\n";
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, kText.data(), kText.size());
    return;
  }
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  ::sigaction(number, &plain, nullptr);
  ::raise(number);  // delivered when this handler returns and the signal is unblocked
}

}  // namespace

InterruptGuard::InterruptGuard() {
  LS_CHECK(!g_active.exchange(true), InternalError, "two InterruptGuards at the same time");
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &g_old_int);
  ::sigaction(SIGTERM, &action, &g_old_term);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &g_old_int, nullptr);
  ::sigaction(SIGTERM, &g_old_term, nullptr);
  g_active = false;
}

bool InterruptGuard::interrupted() const {
  return g_signal.load() != 0;
}

int InterruptGuard::signal_number() const {
  return g_signal.load();
}

}  // namespace longship
