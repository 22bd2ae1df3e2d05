#pragma once
// Runs the program under test as a child process.

#include <sys/types.h>

#include <string>
#include <vector>

namespace longship::testing {

struct ProcessResult {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;      // the signal, or 0
  std::string output;  // standard output and standard error together
};

/// A running child. Its output is collected into a file.
class Process {
 public:
  /// Starts `argv[0]` with the source root as working folder.
  explicit Process(const std::vector<std::string>& argv);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal);
  /// What it has printed so far.
  std::string output() const;
  /// Waits until the output contains `text`; false after `timeout_s` or when the child ended
  /// without it.
  bool wait_for_output(const std::string& text, double timeout_s);
  ProcessResult wait();

 private:
  pid_t pid_ = -1;
  bool finished_ = false;
  int status_ = 0;
  std::string output_file_;
};

/// Starts, waits, returns.
ProcessResult run(const std::vector<std::string>& argv);
/// The `longship` program of this build with arguments.
std::vector<std::string> longship(const std::vector<std::string>& arguments);

}  // namespace longship::testing
