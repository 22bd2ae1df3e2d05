// JSON, picture and console lines of an open-loop evaluation.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/svg_chart.h"
#include "train/open_loop.h"

namespace longship::train {
namespace {

// Episodes and dimensions beyond these are left out of the picture; the JSON has them all.
constexpr size_t kMaxEpisodes = 4;
constexpr int64_t kMaxDims = 16;

nlohmann::ordered_json to_json(const ChunkErrors& e, const std::vector<std::string>& names) {
  nlohmann::ordered_json out;
  out["mse"] = e.total_mse;
  out["mae"] = e.total_mae;
  for (size_t d = 0; d < e.mse.size(); ++d) {
    out["per_dimension"].push_back({{"name", names[d]}, {"mse", e.mse[d]}, {"mae", e.mae[d]}});
  }
  return out;
}

nlohmann::ordered_json to_json(const PredictorErrors& e, const std::vector<std::string>& names) {
  return {{"all_steps", to_json(e.all_steps, names)},
          {"inside_episode", to_json(e.inside_steps, names)}};
}

std::string list_episodes(const OpenLoopReport& r) {
  std::vector<int64_t> indices;
  for (const EpisodeTrace& t : r.episodes) indices.push_back(t.episode);
  return fmt::format("{}", fmt::join(indices, ", "));
}

// One chunk from its start frame, over time in seconds.
chart::Series chunk_series(const OpenLoopReport& r, const EpisodeTrace& t, size_t frame,
                           int64_t dim) {
  chart::Series s;
  s.name = fmt::format("predicted chunk (mean of {} draws, band: 1 standard deviation)", r.draws);
  s.color = 1;
  const int64_t length = static_cast<int64_t>(t.frames.size());
  for (int64_t h = 0; h < r.horizon; ++h) {
    const int64_t at = t.frames[frame] + h;
    if (at >= length) break;
    const size_t i = (frame * static_cast<size_t>(r.horizon) + static_cast<size_t>(h)) *
                         static_cast<size_t>(r.action_dim) +
                     static_cast<size_t>(dim);
    s.x.push_back(static_cast<double>(at) / r.fps);
    s.y.push_back(t.predicted[i]);
    s.y_low.push_back(static_cast<double>(t.predicted[i]) - t.spread[i]);
    s.y_high.push_back(static_cast<double>(t.predicted[i]) + t.spread[i]);
  }
  return s;
}

chart::Panel panel_of(const OpenLoopReport& r, const EpisodeTrace& t, int64_t dim) {
  chart::Panel panel;
  const std::string& name = r.dim_names[static_cast<size_t>(dim)];
  panel.title = fmt::format("episode {}, {}", t.episode, name);
  panel.x_label = "time (s)";
  panel.y_label = fmt::format("{} {} (raw units)", r.action_column, name);
  chart::Series recorded;
  recorded.name = "recorded";
  recorded.color = 0;
  for (size_t f = 0; f < t.frames.size(); ++f) {
    const size_t i = f * static_cast<size_t>(r.horizon * r.action_dim) + static_cast<size_t>(dim);
    recorded.x.push_back(static_cast<double>(t.frames[f]) / r.fps);
    recorded.y.push_back(t.recorded[i]);
  }
  panel.series.push_back(std::move(recorded));
  chart::Series starts;
  starts.name = "first action of a chunk";
  starts.style = chart::Style::kMarkers;
  starts.color = 1;
  for (size_t f = 0; f < t.frames.size(); f += static_cast<size_t>(r.horizon)) {
    chart::Series chunk = chunk_series(r, t, f, dim);
    if (chunk.x.empty()) continue;
    starts.x.push_back(chunk.x.front());
    starts.y.push_back(chunk.y.front());
    panel.series.push_back(std::move(chunk));
  }
  panel.series.push_back(std::move(starts));
  return panel;
}

}  // namespace

std::string to_json(const OpenLoopReport& r) {
  nlohmann::ordered_json out;
  out["checkpoint"] = r.checkpoint;
  out["dataset"] = r.dataset;
  out["action"] = r.action_column;
  out["dimensions"] = r.dim_names;
  out["units"] = "raw action units, squared for mse";
  out["fps"] = r.fps;
  out["horizon_frames"] = r.horizon;
  out["frames"] = r.num_frames;
  out["draws"] = r.draws;
  out["seed"] = r.seed;
  for (const EpisodeTrace& t : r.episodes) {
    out["episodes"].push_back(
        {{"episode", t.episode}, {"frames", t.frames.size()}, {"mse", t.mse}});
  }
  out["repeat_meaning"] = r.repeat_meaning;
  out["model_mean_of_draws"] = to_json(r.model, r.dim_names);
  out["model_single_draw"] = to_json(r.single_draw, r.dim_names);
  out["baseline_repeat"] = to_json(r.repeat, r.dim_names);
  out["baseline_mean_chunk"] = to_json(r.mean_chunk, r.dim_names);
  const double best = std::min(r.repeat.all_steps.total_mse, r.mean_chunk.all_steps.total_mse);
  out["mse_relative_to_better_baseline"] = best > 0 ? r.model.all_steps.total_mse / best : 0.0;
  return out.dump(1) + "\n";
}

std::string summary(const OpenLoopReport& r) {
  const double best = std::min(r.repeat.all_steps.total_mse, r.mean_chunk.all_steps.total_mse);
  const double gain = best > 0 ? 100.0 * (1.0 - r.model.all_steps.total_mse / best) : 0.0;
  std::string out = fmt::format(
      "open-loop on episodes {} ({} frames, {}-step chunks, padded end steps counted)\n"
      "  {:<44} {:>12} {:>10}\n",
      list_episodes(r), r.num_frames, r.horizon, "", "MSE", "MAE");
  const auto line = [&](const std::string& name, const PredictorErrors& e) {
    out += fmt::format("  {:<44} {:>12.6g} {:>10.4g}\n", name, e.all_steps.total_mse,
                       e.all_steps.total_mae);
  };
  line(fmt::format("model, mean of {} draws", r.draws), r.model);
  line("model, single draw", r.single_draw);
  line(r.repeat_meaning.substr(0, r.repeat_meaning.find(" (")), r.repeat);
  line("mean chunk of the training episodes", r.mean_chunk);
  out += fmt::format("  the model is {:.1f} % {} the better baseline", std::abs(gain),
                     gain >= 0 ? "below" : "above");
  return out;
}

std::string to_svg(const OpenLoopReport& r) {
  chart::Figure figure;
  figure.title =
      fmt::format("Predicted and recorded actions, {} episodes {}",
                  std::filesystem::path(r.dataset).filename().string(), list_episodes(r));
  figure.subtitle = fmt::format(
      "MSE of {}-step chunks: model {:.4g} (mean of {} draws), single draw {:.4g}; {} {:.4g}, mean "
      "chunk {:.4g}",
      r.horizon, r.model.all_steps.total_mse, r.draws, r.single_draw.all_steps.total_mse,
      r.repeat_meaning.substr(0, r.repeat_meaning.find(" (")), r.repeat.all_steps.total_mse,
      r.mean_chunk.all_steps.total_mse);
  const size_t num_episodes = std::min(kMaxEpisodes, r.episodes.size());
  figure.columns = static_cast<int>(num_episodes);
  for (int64_t dim = 0; dim < std::min(kMaxDims, r.action_dim); ++dim) {
    for (size_t e = 0; e < num_episodes; ++e) {
      figure.panels.push_back(panel_of(r, r.episodes[e], dim));
    }
  }
  return chart::render(figure);
}

}  // namespace longship::train
