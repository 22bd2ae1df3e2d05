#pragma once
// The one error mechanism: a typed exception that carries its exit code. Libraries throw, main()
// catches once.

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace longship {

/// Process exit codes, documented in docs/errors.md and `longship --help`.
enum class ExitCode : int {
  kOk = 0,
  kOther = 1,
  kConfig = 2,      // configuration or usage
  kData = 3,        // dataset
  kCheckpoint = 4,  // checkpoint or weights
  kDevice = 5,      // device missing, or does not fit memory
  kNonFinite = 6,   // NaN or Inf in loss or gradients
  kPeer = 7,        // peer or collective failure
  kInterrupted = 130,
};

/// Base of every error of ours. `what()` is a complete message for a person: file, key, index,
/// value, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Configuration or command line: names the file and line or the override, the key, the value.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(ExitCode::kConfig, message) {}
};

/// Dataset: names the file, episode, frame, column.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}
};

/// Checkpoint or weights file: names the file and lists the tensors.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message) : Error(ExitCode::kCheckpoint, message) {}
};

/// Device missing or memory exhausted.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(ExitCode::kDevice, message) {}
};

/// NaN or Inf in loss or gradients.
class NonFiniteError : public Error {
 public:
  explicit NonFiniteError(const std::string& message) : Error(ExitCode::kNonFinite, message) {}
};

/// A peer that is missing, died, hangs or does not fit, or a collective that failed: names rank,
/// collective and step.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(ExitCode::kPeer, message) {}
};

/// Shapes or dtypes that do not fit: a fault of the calling code, or of weights used with the wrong
/// configuration.
class ShapeError : public Error {
 public:
  explicit ShapeError(const std::string& message) : Error(ExitCode::kOther, message) {}
};

/// A bug in Longship.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::kOther, message) {}
};

/// Throws the class that belongs to `code` (Error itself where none does). For readers whose files
/// are data for one caller and a checkpoint for another.
[[noreturn]] inline void throw_error(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::kConfig:
      throw ConfigError(message);
    case ExitCode::kData:
      throw DataError(message);
    case ExitCode::kCheckpoint:
      throw CheckpointError(message);
    case ExitCode::kDevice:
      throw DeviceError(message);
    case ExitCode::kNonFinite:
      throw NonFiniteError(message);
    case ExitCode::kPeer:
      throw PeerError(message);
    default:
      throw Error(code, message);
  }
}

}  // namespace longship

/// Throws ErrorType with a formatted message unless `cond` holds.
#define LS_CHECK(cond, ErrorType, ...)                        \
  do {                                                        \
    if (!(cond)) throw ErrorType(::fmt::format(__VA_ARGS__)); \
  } while (false)
