#include "train/calibrate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "nn/stacked_linear.h"
#include "ops/geglu.h"
#include "runtime/device.h"
#include "runtime/speed_of_light.h"
#include "runtime/stream.h"
#include "train/checkpoint_io.h"
#include "train/session.h"

namespace longship::train {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Milliseconds of forward and backward of `f` at fresh leaves, the median of several.
double time_ms(const std::function<at::Tensor(const Tensors&)>& f, const Tensors& values) {
  const runtime::Stream stream = runtime::Stream::make(values.front().device());
  const runtime::StreamScope scope(stream);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    Tensors leaves;
    for (const at::Tensor& v : values) leaves.push_back(v.detach().requires_grad_(true));
    runtime::Event start(true), end(true);
    start.record(stream);
    const at::Tensor y = f(leaves);
    y.backward(y.detach());
    end.record(stream);
    end.synchronize();
    if (i >= 4) times.push_back(end.ms_since(start));
  }
  return runtime::percentile(times, 0.5);
}

/// How much faster FP8 is for layers of one shape.
double speedup(const nn::Fp8Measurement& m, const nn::Fp8Options& options, at::Device device) {
  const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16).device(device);
  const at::Tensor x = at::randn({m.rows, m.in}, bf16);
  nn::Fp8Options all = options;
  all.layers = {"*"};
  all.measure = false;
  nn::Fp8Layers layers(all);
  if (!m.is_mlp) {
    const at::Tensor w = at::randn({m.out, m.in}, bf16).mul_(0.02);
    const nn::Fp8Linear* layer = layers.linear("probe", {w});
    layers.create(device);
    layers.begin_step();
    return time_ms([](const Tensors& t) { return nn::stacked_linear(t[0], {t[1]}); }, {x, w}) /
           time_ms([&](const Tensors& t) { return layer->forward(t[0], {t[1]}); }, {x, w});
  }
  const at::Tensor gate_up = at::randn({2 * m.out, m.in}, bf16).mul_(0.02);
  const Tensors w = {gate_up.narrow(0, 0, m.out), gate_up.narrow(0, m.out, m.out),
                     at::randn({m.in, m.out}, bf16).mul_(0.02)};
  const nn::Fp8GatedMlp* layer = layers.gated_mlp("probe", w[0], w[1], w[2]);
  layers.create(device);
  layers.begin_step();
  const double plain = time_ms(
      [](const Tensors& t) {
        return nn::stacked_linear(ops::geglu(nn::stacked_linear(t[0], {t[1], t[2]})), {t[3]});
      },
      {x, w[0], w[1], w[2]});
  return plain / time_ms([&](const Tensors& t) { return layer->forward(t[0], t[1], t[2], t[3]); },
                         {x, w[0], w[1], w[2]});
}

nlohmann::json choose(const nn::Fp8Measurement& m, std::optional<double> gain,
                      const CalibrateOptions& options) {
  std::string why;
  const double cos = std::min(m.input_grad_cos, m.weight_grad_cos);
  if (gain && *gain < options.min_speedup) {
    why = fmt::format("speedup {:.2f} is below {}", *gain, options.min_speedup);
  } else if (m.output_error > options.max_output_error) {
    why = fmt::format("output error {:.3f} is above {}", m.output_error, options.max_output_error);
  } else if (cos < options.min_cosine) {
    why = fmt::format("gradient cosine {:.4f} is below {}", cos, options.min_cosine);
  }
  nlohmann::json out = {{"layer", m.layer},
                        {"rows", m.rows},
                        {"in", m.in},
                        {"out", m.out},
                        {"output_error", runtime::rounded(m.output_error)},
                        {"input_grad_cos", m.input_grad_cos},
                        {"weight_grad_cos", m.weight_grad_cos},
                        {"fp8", why.empty()},
                        {"why", why}};
  out["speedup"] = gain ? nlohmann::json(runtime::rounded(*gain)) : nlohmann::json(nullptr);
  return out;
}

}  // namespace

nlohmann::json calibrate(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                         const BenchOptions& batch_options, const CalibrateOptions& options,
                         const FamilyLookup& lookup) {
  Recipe bound = with_overrides(recipe, {}, lookup);
  if (dataset) bound.model->bind_dataset(*dataset);
  const at::Device device = runtime::parse_device(bound.train.device);
  LS_CHECK(!device.is_cuda() || bound.train.dtype == "bf16", ConfigError,
           "calibrate: FP8 replaces bf16 products; set train.dtype=bf16");
  bound.train.fp8.reset();
  apply_library_settings(bound);
  models::BuildOptions build = build_options(bound, device);
  nn::Fp8Options fp8;
  fp8.layers = {"*"};
  fp8.delayed = false;
  fp8.e5m2_gradients = bound.perf.fp8_gradients == "e5m2";
  fp8.measure = true;
  build.fp8 = fp8;
  const auto policy = bound.family->build(*bound.model, build);
  fill_weights(*policy, bound);
  policy->begin_step();
  const auto batch = first_batch(bound, std::move(dataset), batch_options);
  policy->loss(*batch, {static_cast<uint64_t>(bound.train.seed), 0}).loss.backward();
  std::map<std::tuple<bool, int64_t, int64_t, int64_t>, double> gains;
  nlohmann::json table;
  int64_t chosen = 0;
  for (const nn::Fp8Measurement& m : policy->fp8_measurements()) {
    std::optional<double> gain;
    if (device.is_cuda()) {
      const auto key = std::tuple(m.is_mlp, m.rows, m.in, m.out);
      if (!gains.contains(key)) gains[key] = speedup(m, fp8, device);
      gain = gains[key];
    }
    table["layers"].push_back(choose(m, gain, options));
    chosen += table["layers"].back()["fp8"].get<bool>() ? 1 : 0;
  }
  table["candidates"] = table["layers"].size();
  table["chosen"] = chosen;
  table["device"] = runtime::describe(device);
  table["gradients"] = bound.perf.fp8_gradients;
  table["batch"] = bound.train.global_batch;
  return table;
}

std::vector<std::string> read_fp8_table(const std::filesystem::path& file) {
  LS_CHECK(std::filesystem::exists(file), ConfigError,
           "train.fp8: {} is neither 'default' nor an existing table of longship calibrate",
           file.string());
  const nlohmann::json table = parse_json_file(file, {.code = ExitCode::kConfig});
  std::vector<std::string> out;
  try {
    for (const auto& row : table.at("layers")) {
      if (row.at("fp8").get<bool>()) out.push_back(row.at("layer").get<std::string>());
    }
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(
        fmt::format("{}: not a table of longship calibrate: {}", file.string(), e.what()));
  }
  LS_CHECK(!out.empty(), ConfigError, "{}: no layer is chosen; set train.fp8=null", file.string());
  return out;
}

std::string calibration_text(const nlohmann::json& table) {
  std::string out = fmt::format("{} of {} layers in FP8\n{:<18} {:>9} {:>9} {:>9} {:>8}\n",
                                table["chosen"].get<int64_t>(), table["candidates"].get<int64_t>(),
                                "layer", "out err", "dx cos", "dw cos", "speedup");
  for (const auto& row : table["layers"]) {
    out += fmt::format(
        "{:<18} {:>9.4f} {:>9.5f} {:>9.5f} {:>8}  {}\n", row["layer"].get<std::string>(),
        row["output_error"].get<double>(), row["input_grad_cos"].get<double>(),
        row["weight_grad_cos"].get<double>(),
        row["speedup"].is_null() ? "-" : fmt::format("{:.2f}", row["speedup"].get<double>()),
        row["fp8"].get<bool>() ? "fp8" : row["why"].get<std::string>());
  }
  return out;
}

}  // namespace longship::train
