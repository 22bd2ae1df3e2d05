#pragma once
// Plain log lines on stderr and, optionally, in a file. One status line (the progress bar) may live
// below them on a terminal; log owns the terminal so that both never mix. Thread-safe.

#include <fmt/core.h>

#include <filesystem>
#include <string_view>
#include <utility>

namespace longship::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

/// Console shows `console` and above. Without init() that is info, without a file.
void init(Level console = Level::kInfo);
/// Every line from debug up also goes to `file` (appended, with time and level). Throws Error when
/// it cannot be opened.
void init(Level console, const std::filesystem::path& file);

void write(Level level, std::string_view line);
void flush();

/// Replaces the status line on the terminal; "" removes it. Does nothing unless stderr is a
/// terminal.
void set_status(std::string_view line);
bool is_terminal();

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
/// Printed as "warning: ...".
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
/// Printed as "error: ...".
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace longship::log
