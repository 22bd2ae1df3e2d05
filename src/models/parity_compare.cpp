// Error measure, report rendering and reading of case.json.
#include <ATen/ops/abs.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/strings.h"
#include "models/parity.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

using Json = nlohmann::ordered_json;

double finite_or_null(double value) {
  return std::isfinite(value) ? value : -1.0;
}

/// Half the relative spacing of a type's numbers at 1.
double half_spacing(at::ScalarType dtype, std::string_view name) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    case at::kBFloat16:
      return 0x1p-8;
    default:
      throw InternalError(fmt::format("parity: rounding of '{}' is not known for its type {}", name,
                                      at::toString(dtype)));
  }
}

/// PASS and its like, with what the judgement rests on where that is not the case's tolerance.
std::string result_text(const ParityRow& row) {
  if (!row.produced) return row.required ? "FAIL (not produced)" : "FAIL (not compared)";
  if (!row.rounding) return row.pass ? "PASS" : "FAIL";
  return fmt::format(
      "{} (rounding alone moves this run by {:.1e} up to here; the case asks for {:.1e})",
      row.pass ? "pass" : "FAIL", row.rounding->spread, row.rounding->case_tolerance);
}

std::vector<std::string> strings(const nlohmann::json& doc, const char* key) {
  std::vector<std::string> out;
  if (!doc.contains(key)) return out;
  for (const auto& item : doc[key]) out.push_back(item.get<std::string>());
  return out;
}

/// The data files of a case: what it lists, and what lies beside that.
std::vector<std::string> case_files(const std::filesystem::path& folder,
                                    const nlohmann::json& doc) {
  std::vector<std::string> out = strings(doc, "files");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::string kind = entry.path().extension().string();
    const bool data = kind == ".safetensors" || (kind == ".json" && out.empty());
    if (data && std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

void ParityTolerance::scale(double factor) {
  for (double* value : {&outputs, &loss, &grads, &train, &grad_norm, &widest_grad_norm, &weights,
                        &sample, &zero_grads}) {
    *value *= factor;
  }
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
    c.tolerance.grad_norm = tolerance.value("grad_norm", c.tolerance.train);
    c.tolerance.weights = tolerance.value("weights", c.tolerance.train);
    c.tolerance.sample = tolerance.value("sample", c.tolerance.sample);
    c.largest_grad = doc.value("largest_grad", 0.0);
    c.zero_grads = strings(doc, "zero_grads");
    c.required = strings(doc, "required");
    const nlohmann::json trajectories = doc.value("trajectories", nlohmann::json::object());
    for (const auto& [file, text] : trajectories.items()) {
      c.trajectories.emplace_back(file, text.is_string() ? text.get<std::string>() : text.dump());
    }
    c.files = case_files(folder, doc);
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

at::Tensor parity_moved(const at::Tensor& value, uint64_t member, std::string_view name) {
  if (member == 0 || !value.is_floating_point()) return value;
  const double half = half_spacing(value.scalar_type(), name);
  at::Tensor out =
      value.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const std::span<double> x(out.mutable_data_ptr<double>(), static_cast<size_t>(out.numel()));
  const RngKey key{.seed = member, .stream = hash_name(name)};
  std::array<double, 1024> u{};
  for (size_t first = 0; first < x.size(); first += u.size()) {
    const size_t count = std::min(u.size(), x.size() - first);
    fill_uniform(key, std::span(u).first(count), first);
    for (size_t i = 0; i < count; ++i) {
      const double s = std::floor(3 * u[i]) - 1;
      // The sum is exact for fp32 and narrower types: they are rounded once, below. A factor 1 + h
      // would vanish in fp64.
      x[first + i] += s * half * x[first + i];
    }
  }
  return out.to(value.options());
}

std::map<std::string, at::Tensor> parity_moved(const std::map<std::string, at::Tensor>& tensors,
                                               uint64_t member, const std::string& prefix) {
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, value] : tensors) {
    out.emplace(name, parity_moved(value, member, prefix + name));
  }
  return out;
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

at::Tensor parity_gradient_norm(const std::map<std::string, at::Tensor>& tensors) {
  double squares = 0;
  for (const auto& [name, value] : tensors) {
    if (!name.starts_with("grad.")) continue;
    const double norm = at::linalg_vector_norm(value.to(at::kDouble)).item<double>();
    squares += norm * norm;
  }
  return at::tensor({static_cast<float>(std::sqrt(squares))});
}

void check_parity_inputs(const std::filesystem::path& path,
                         const std::map<std::string, at::Tensor>& inputs,
                         const std::vector<std::string>& patterns) {
  for (const auto& [name, tensor] : inputs) {
    const bool known = std::any_of(
        patterns.begin(), patterns.end(),
        [&, &own = name](const std::string& pattern) { return parity_match(pattern, own); });
    LS_CHECK(known, ConfigError, "{}: nobody reads the tensor '{}'; known are {}", path.string(),
             name, join(patterns, ", "));
  }
}

bool ParityReport::pass() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const ParityRow& row) { return row.pass; });
}

int64_t ParityReport::num_by_rounding() const {
  return std::count_if(rows.begin(), rows.end(),
                       [](const ParityRow& row) { return row.pass_by_rounding(); });
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
    out += fmt::format("  {:<7} {:<{}} {:>10.2e} {:>10.2e} {:>10.1e}  {}{}{}\n", row.kind, row.name,
                       width, row.abs_error, row.rel_error, row.tolerance, result_text(row),
                       row.note.empty() ? "" : "  ", row.note);
  }
  for (const std::string& text : report.left_out) out += fmt::format("  left out: {}\n", text);
  out += fmt::format("  {}: {} of {} rows pass", report.pass() ? "PASS" : "FAIL",
                     static_cast<int64_t>(report.rows.size()) - failed, report.rows.size());
  if (const int64_t count = report.num_by_rounding(); count > 0) {
    out += fmt::format(
        ", {} of them not within the case's tolerance but within {:.0f} times what rounding alone "
        "does to the run",
        count, ParityRounding::kFactor);
  }
  out += "\n";
  return out;
}

std::string reports_json(const std::vector<ParityReport>& reports, const ParityOptions& options) {
  Json doc;
  doc["pass"] =
      std::all_of(reports.begin(), reports.end(), [](const ParityReport& r) { return r.pass(); });
  int64_t by_rounding = 0;
  for (const ParityReport& report : reports) by_rounding += report.num_by_rounding();
  doc["pass_by_rounding"] = by_rounding;
  doc["device"] = options.device.str();
  doc["dtype"] = options.dtype == at::kFloat ? "fp32" : "bf16";
  doc["cases"] = Json::array();
  for (const ParityReport& report : reports) {
    Json rows = Json::array();
    for (const ParityRow& row : report.rows) {
      rows.push_back(
          {{"kind", row.kind},
           {"name", row.name},
           {"required", row.required},
           {"produced", row.produced},
           {"pass", row.pass},
           {"abs_error", finite_or_null(row.abs_error)},  // -1: not finite
           {"rel_error", finite_or_null(row.rel_error)},
           {"tolerance", row.tolerance},
           {"case_tolerance", row.rounding ? row.rounding->case_tolerance : row.tolerance},
           {"rounding_spread", row.rounding ? Json(finite_or_null(row.rounding->spread)) : Json()},
           {"note", row.note}});
    }
    doc["cases"].push_back({{"family", report.family},
                            {"case", report.name},
                            {"folder", report.folder.string()},
                            {"pass", report.pass()},
                            {"pass_by_rounding", report.num_by_rounding()},
                            {"left_out", report.left_out},
                            {"rows", rows}});
  }
  return doc.dump(1) + "\n";
}

}  // namespace longship::models
