#include "support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "support/paths.h"

namespace longship::testing {

Process::Process(const std::vector<std::string>& argv) {
  char name[] = "/tmp/longship_process_XXXXXX";
  const int file = ::mkstemp(name);
  if (file < 0) throw std::runtime_error("mkstemp failed");
  output_file_ = name;
  const std::string folder = source_root().string();
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, 0);
    ::dup2(file, 1);
    ::dup2(file, 2);
    if (::chdir(folder.c_str()) != 0) ::_exit(127);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(file);
}

Process::~Process() {
  if (!finished_) {
    send(SIGKILL);
    wait();
  }
  ::unlink(output_file_.c_str());
}

void Process::send(int signal) {
  ::kill(pid_, signal);
}

std::string Process::output() const {
  std::ifstream file(output_file_);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Process::wait_for_output(const std::string& text, double timeout_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  while (std::chrono::steady_clock::now() < end) {
    if (output().find(text) != std::string::npos) return true;
    if (!finished_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) finished_ = true;
    if (finished_) return output().find(text) != std::string::npos;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

ProcessResult Process::wait() {
  if (!finished_) {
    ::waitpid(pid_, &status_, 0);
    finished_ = true;
  }
  ProcessResult result;
  if (WIFEXITED(status_)) result.exit_code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) result.signal = WTERMSIG(status_);
  result.output = output();
  return result;
}

ProcessResult run(const std::vector<std::string>& argv) {
  return Process(argv).wait();
}

std::vector<std::string> longship(const std::vector<std::string>& arguments) {
  const char* program = std::getenv("LONGSHIP_PROGRAM");
  if (program == nullptr)
    throw std::runtime_error("LONGSHIP_PROGRAM is not set; run the tests through ctest");
  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

}  // namespace longship::testing
