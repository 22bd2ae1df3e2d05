#pragma once
// Findings about a dataset: what is wrong or notable, where, and how to mend it. Collected, then
// reported all at once.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/video.h"

namespace longship::data {

enum class Severity { kInfo, kWarn, kError };

struct Finding {
  Severity severity = Severity::kError;
  std::string code;      // stable kebab-case word, e.g. "length-mismatch"
  std::string place;     // file, or episode/frame/column
  std::string fact;      // what was found
  std::string expected;  // what was expected; may be empty
  std::string cure;      // what to do; may be empty
};

/// "ERROR", "WARN" or "INFO".
const char* severity_name(Severity severity);

/// "ERROR code place: fact; expected; cure" on one line; empty parts are left out.
std::string format_finding(const Finding& finding);

/// A growing list of findings. Warnings and notes of one code beyond kMaxPerCode are counted and
/// summarised in one line, and so are errors beyond kMaxErrorsPerCode, so that a dataset with a
/// million faulty rows stays readable.
class Findings {
 public:
  static constexpr int64_t kMaxPerCode = 10;
  static constexpr int64_t kMaxErrorsPerCode = 200;

  void error(std::string code, std::string place, std::string fact, std::string expected = {},
             std::string cure = {});
  void warn(std::string code, std::string place, std::string fact, std::string expected = {},
            std::string cure = {});
  void info(std::string code, std::string place, std::string fact, std::string expected = {},
            std::string cure = {});

  /// Takes over the findings of a part that was checked apart.
  void append(const Findings& part);

  bool has_errors() const { return num_errors_ > 0; }
  int64_t num_errors() const { return num_errors_; }
  /// All findings in order of discovery, followed by one summary line per code that was cut short.
  std::vector<Finding> list() const;
  /// Throws one DataError that lists every finding of severity ERROR; does nothing when there is
  /// none.
  void throw_if_errors(const std::filesystem::path& root) const;
  /// Warnings and notes go to the log, each on one line.
  void log_rest() const;

 private:
  void add(Finding finding);

  std::vector<Finding> list_;
  std::map<std::pair<std::string, Severity>, int64_t> count_;
  int64_t num_errors_ = 0;
};

/// How a dataset is opened.
struct OpenOptions {
  /// Numeric columns that training reads. Non-finite values, constant dimensions and contradicting
  /// statistics are reported for these; a non-finite value in any other column is a note only.
  std::vector<std::string> used_columns = {"observation.state", "action"};
  /// Who decodes videos. With kNvdec opening throws ConfigError where the GPU's decoder does not
  /// work.
  io::VideoDecoder decoder = io::VideoDecoder::kCpu;
  /// Non-finite values in used columns are warnings: the caller leaves the samples out that touch
  /// them.
  bool tolerate_non_finite = false;
};

/// Runs every check that open_dataset runs and returns all findings, never throwing for a fault of
/// the data.
std::vector<Finding> check_dataset(const std::filesystem::path& root,
                                   const OpenOptions& options = {});

}  // namespace longship::data
