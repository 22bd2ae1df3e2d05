// Error measure, report rendering and reading of case.json.
#include <ATen/ops/abs.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/max.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/parity.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

using Json = nlohmann::ordered_json;

double finite_or_null(double value) {
  return std::isfinite(value) ? value : -1.0;
}

std::vector<std::string> strings(const nlohmann::json& doc, const char* key) {
  std::vector<std::string> out;
  if (!doc.contains(key)) return out;
  for (const auto& item : doc[key]) out.push_back(item.get<std::string>());
  return out;
}

}  // namespace

void ParityTolerance::scale(double factor) {
  for (double* value : {&outputs, &loss, &grads, &train, &sample, &zero_grads}) *value *= factor;
}

ParityCase read_parity_case(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "case.json";
  LS_CHECK(std::filesystem::exists(path), ConfigError,
           "{}: no case.json; a parity case is a folder with case.json, weights.safetensors, "
           "inputs.safetensors and "
           "expected.safetensors",
           folder.string());
  const nlohmann::json doc = parse_json_file(path, {.code = ExitCode::kConfig});
  try {
    LS_CHECK(doc.at("format").get<int64_t>() == 1, ConfigError,
             "{}: format {} is not supported, 1 is", path.string(), doc.at("format").dump());
    ParityCase c;
    c.folder = folder;
    c.family = doc.at("family").get<std::string>();
    c.name = doc.value("case", folder.filename().string());
    const nlohmann::json tolerance = doc.value("tolerance", nlohmann::json::object());
    c.tolerance.outputs = tolerance.value("outputs", c.tolerance.outputs);
    c.tolerance.loss = tolerance.value("loss", c.tolerance.loss);
    c.tolerance.grads = tolerance.value("grads", c.tolerance.grads);
    c.tolerance.train = tolerance.value("train", c.tolerance.train);
    c.tolerance.sample = tolerance.value("sample", c.tolerance.sample);
    c.largest_grad = doc.value("largest_grad", 0.0);
    c.zero_grads = strings(doc, "zero_grads");
    c.required = strings(doc, "required");
    const nlohmann::json trajectories = doc.value("trajectories", nlohmann::json::object());
    for (const auto& [file, text] : trajectories.items()) {
      c.trajectories.emplace_back(file, text.is_string() ? text.get<std::string>() : text.dump());
    }
    return c;
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(fmt::format("{}: {}", path.string(), e.what()));
  }
}

std::pair<double, double> parity_error(const at::Tensor& ours, const at::Tensor& ref,
                                       double floor) {
  if (ref.numel() == 0) return {0.0, 0.0};
  const at::Tensor a = ours.detach().to(at::kCPU).to(at::kDouble), b = ref.to(at::kDouble);
  if (!at::isfinite(a).all().item<bool>()) {
    const double inf = std::numeric_limits<double>::infinity();
    return {inf, inf};
  }
  const double worst = at::max(at::abs(a - b)).item<double>();
  const double scale = std::max(at::max(at::abs(b)).item<double>(), floor);
  return {worst, worst / scale};
}

bool parity_match(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (size_t skip = 0; skip <= name.size(); ++skip) {
      if (parity_match(pattern.substr(1), name.substr(skip))) return true;
    }
    return false;
  }
  if (name.empty() || (pattern.front() != '?' && pattern.front() != name.front())) return false;
  return parity_match(pattern.substr(1), name.substr(1));
}

bool ParityReport::pass() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const ParityRow& row) { return row.pass; });
}

std::string format_report(const ParityReport& report) {
  std::string out =
      fmt::format("{} / {}  ({})\n", report.family, report.name, report.folder.string());
  size_t width = 20;
  for (const ParityRow& row : report.rows) width = std::max(width, row.name.size());
  out += fmt::format("  {:<7} {:<{}} {:>10} {:>10} {:>10}  result\n", "kind", "name", width,
                     "abs error", "rel error", "tolerance");
  int64_t failed = 0;
  for (const ParityRow& row : report.rows) {
    failed += row.pass ? 0 : 1;
    const char* result = !row.produced ? "FAIL (not produced)" : row.pass ? "PASS" : "FAIL";
    out += fmt::format("  {:<7} {:<{}} {:>10.2e} {:>10.2e} {:>10.1e}  {}{}{}\n", row.kind, row.name,
                       width, row.abs_error, row.rel_error, row.tolerance, result,
                       row.note.empty() ? "" : "  ", row.note);
  }
  out += fmt::format("  {}: {} of {} rows pass\n", report.pass() ? "PASS" : "FAIL",
                     static_cast<int64_t>(report.rows.size()) - failed, report.rows.size());
  return out;
}

std::string reports_json(const std::vector<ParityReport>& reports, const ParityOptions& options) {
  Json doc;
  doc["pass"] =
      std::all_of(reports.begin(), reports.end(), [](const ParityReport& r) { return r.pass(); });
  doc["device"] = options.device.str();
  doc["dtype"] = options.dtype == at::kFloat ? "fp32" : "bf16";
  doc["cases"] = Json::array();
  for (const ParityReport& report : reports) {
    Json rows = Json::array();
    for (const ParityRow& row : report.rows) {
      rows.push_back({{"kind", row.kind},
                      {"name", row.name},
                      {"required", row.required},
                      {"produced", row.produced},
                      {"pass", row.pass},
                      {"abs_error", finite_or_null(row.abs_error)},  // -1: not finite
                      {"rel_error", finite_or_null(row.rel_error)},
                      {"tolerance", row.tolerance},
                      {"note", row.note}});
    }
    doc["cases"].push_back({{"family", report.family},
                            {"case", report.name},
                            {"folder", report.folder.string()},
                            {"pass", report.pass()},
                            {"rows", rows}});
  }
  return doc.dump(1) + "\n";
}

}  // namespace longship::models
