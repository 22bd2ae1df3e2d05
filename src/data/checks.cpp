#include "data/checks.h"

#include <fmt/core.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace longship::data {

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "INFO";
    case Severity::kWarn:
      return "WARN";
    default:
      return "ERROR";
  }
}

std::string format_finding(const Finding& finding) {
  std::string out = fmt::format("{} {} {}: {}", severity_name(finding.severity), finding.code,
                                finding.place, finding.fact);
  if (!finding.expected.empty()) out += "; " + finding.expected;
  if (!finding.cure.empty()) out += "; " + finding.cure;
  return out;
}

void Findings::add(Finding finding) {
  const bool is_error = finding.severity == Severity::kError;
  if (is_error) ++num_errors_;
  const int64_t seen = ++count_[{finding.code, finding.severity}];
  if (seen <= (is_error ? kMaxErrorsPerCode : kMaxPerCode)) list_.push_back(std::move(finding));
}

void Findings::error(std::string code, std::string place, std::string fact, std::string expected,
                     std::string cure) {
  add({Severity::kError, std::move(code), std::move(place), std::move(fact), std::move(expected),
       std::move(cure)});
}

void Findings::warn(std::string code, std::string place, std::string fact, std::string expected,
                    std::string cure) {
  add({Severity::kWarn, std::move(code), std::move(place), std::move(fact), std::move(expected),
       std::move(cure)});
}

void Findings::info(std::string code, std::string place, std::string fact, std::string expected,
                    std::string cure) {
  add({Severity::kInfo, std::move(code), std::move(place), std::move(fact), std::move(expected),
       std::move(cure)});
}

void Findings::append(const Findings& part) {
  for (const Finding& finding : part.list_) add(finding);
}

std::vector<Finding> Findings::list() const {
  std::vector<Finding> out = list_;
  for (const auto& [key, count] : count_) {
    const int64_t shown = key.second == Severity::kError ? kMaxErrorsPerCode : kMaxPerCode;
    if (count > shown) {
      out.push_back({key.second,
                     key.first,
                     "whole dataset",
                     fmt::format("{} more findings of this kind are not listed", count - shown),
                     {},
                     {}});
    }
  }
  return out;
}

void Findings::throw_if_errors(const std::filesystem::path& root) const {
  if (num_errors_ == 0) return;
  std::string message = fmt::format("dataset {} cannot be used, {} {}:", root.string(), num_errors_,
                                    num_errors_ == 1 ? "fault" : "faults");
  for (const Finding& finding : list()) {
    if (finding.severity == Severity::kError) message += "\n  " + format_finding(finding);
  }
  throw DataError(message);
}

void Findings::log_rest() const {
  for (const Finding& finding : list()) {
    const std::string line =
        fmt::format("{} {}: {}{}{}{}{}", finding.code, finding.place, finding.fact,
                    finding.expected.empty() ? "" : "; ", finding.expected,
                    finding.cure.empty() ? "" : "; ", finding.cure);
    if (finding.severity == Severity::kWarn) log::warn("{}", line);
    if (finding.severity == Severity::kInfo) log::info("{}", line);
  }
}

}  // namespace longship::data
