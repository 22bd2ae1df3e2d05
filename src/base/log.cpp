#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"

namespace longship::log {

namespace {

constexpr std::string_view kClearLine = "\r\033[2K";

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// stderr with the status line below the last log line.
class Console : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_status(std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (line.empty() && status_.empty()) return;
    status_ = line;
    put(fmt::format("{}{}", kClearLine, status_));
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const std::string_view prefix = message.level == spdlog::level::warn  ? "warning: "
                                    : message.level == spdlog::level::err ? "error: "
                                                                          : "";
    put(fmt::format("{}{}{}\n{}", status_.empty() ? "" : kClearLine, prefix, text, status_));
  }
  void flush_() override { std::fflush(stderr); }

 private:
  std::string status_;
};

struct State {
  std::mutex mutex;
  std::shared_ptr<Console> console = std::make_shared<Console>();
  std::shared_ptr<spdlog::logger> logger = make(Level::kInfo, nullptr);

  std::shared_ptr<spdlog::logger> make(Level level, spdlog::sink_ptr file) {
    console->set_level(to_spdlog(level));
    auto made = std::make_shared<spdlog::logger>("longship", console);
    made->set_level(to_spdlog(level));
    if (file) {
      made->sinks().push_back(std::move(file));
      made->set_level(spdlog::level::debug);
    }
    made->flush_on(spdlog::level::info);
    return made;
  }
  std::shared_ptr<spdlog::logger> current() {
    const std::lock_guard lock(mutex);
    return logger;
  }
};

// Never destroyed, so that threads still running at exit may log.
State& state() {
  static State* const instance = new State;
  return *instance;
}

}  // namespace

void init(Level console) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.logger = s.make(console, nullptr);
}

void init(Level console, const std::filesystem::path& file) {
  spdlog::sink_ptr sink;
  try {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
  } catch (const spdlog::spdlog_ex& e) {
    throw Error(ExitCode::kOther,
                fmt::format("cannot open log file {}: {}", file.string(), e.what()));
  }
  sink->set_level(spdlog::level::debug);
  sink->set_formatter(std::make_unique<spdlog::pattern_formatter>("%Y-%m-%d %H:%M:%S.%e %l: %v"));
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.logger = s.make(console, std::move(sink));
}

void write(Level level, std::string_view line) {
  state().current()->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void flush() {
  state().current()->flush();
}

bool is_terminal() {
  return ::isatty(STDERR_FILENO) == 1;
}

void set_status(std::string_view line) {
  if (is_terminal()) state().console->set_status(line);
}

}  // namespace longship::log
