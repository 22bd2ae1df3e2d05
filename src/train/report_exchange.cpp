#include "train/report_exchange.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"

namespace longship::train {
namespace {

// A parameter that no batch of any process reaches would stand still for ever: one process alone
// refuses it too.
void check_gradients(Parallel& parallel, const StepReport& report, bool everywhere) {
  if (!everywhere) return;
  std::vector<std::string> common = report.missing;
  for (const std::string& text :
       parallel.gather_texts(fmt::format("{}", fmt::join(report.missing, "\n")))) {
    const std::vector<std::string> names = split(text, '\n');
    std::erase_if(common, [&](const std::string& name) {
      return std::find(names.begin(), names.end(), name) == names.end();
    });
  }
  if (common.empty()) return;
  parallel.all_leave();
  throw InternalError(fmt::format(
      "step {}: {} trainable parameters got no gradient on any rank: {}; the model must declare "
      "them frozen or decay-only",
      report.step + 1, common.size(), fmt::join(common, ", ")));
}

}  // namespace

ExchangedReport exchange_report(Parallel& parallel, StepReport& report, bool interrupted,
                                bool data_fault) {
  std::vector<double> own = {report.loss,
                             report.grad_norm,
                             report.fault.empty() ? 0.0 : 1.0,
                             interrupted ? 1.0 : 0.0,
                             data_fault ? 1.0 : 0.0,
                             static_cast<double>(report.missing.size()),
                             report.device_ms,
                             report.exposed_ms};
  constexpr size_t kExtra = 8;
  for (const auto& [name, value] : report.extra) own.push_back(value);
  ExchangedReport out;
  out.rows = parallel.gather(own);
  const std::vector<std::vector<double>>& rows = out.rows;
  const auto any = [&](size_t column) {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row[column] != 0; });
  };
  const auto mean = [&](size_t column) {
    double sum = 0;
    for (const auto& row : rows) sum += row[column];
    return sum / static_cast<double>(rows.size());
  };
  report.loss = mean(0);
  for (size_t i = 0; i < report.extra.size(); ++i) report.extra[i].second = mean(kExtra + i);
  for (size_t r = 1; r < rows.size(); ++r) {
    const double norm = rows[r][1];
    if (norm == rows[0][1] || (std::isnan(norm) && std::isnan(rows[0][1]))) continue;
    parallel.all_leave();
    throw InternalError(fmt::format(
        "step {}: the norm of the gradients is {} on rank 0 and {} on rank {}: the processes have "
        "drifted apart",
        report.step + 1, rows[0][1], norm, r));
  }
  out.interrupted = any(3);
  out.data_fault = any(4);
  if (any(2)) {
    // The norm is not finite on any rank; one whose loss is not finite says why.
    const std::vector<std::string> faults = parallel.gather_texts(report.fault);
    size_t witness = 0;
    while (witness + 1 < rows.size() && std::isfinite(rows[witness][0])) ++witness;
    if (std::isfinite(rows[witness][0])) {
      witness = 0;
      while (faults[witness].empty()) ++witness;
    }
    report.fault = fmt::format("rank {}: {}", witness, faults[witness]);
  }
  check_gradients(parallel, report, std::all_of(rows.begin(), rows.end(), [](const auto& row) {
                    return row[5] > 0;
                  }));
  return out;
}

}  // namespace longship::train
