#pragma once
// Open-loop evaluation: predicted against recorded action chunks on whole episodes, beside two
// baselines that need no model.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "models/spec.h"

namespace longship::train {

struct OpenLoopOptions {
  std::vector<int64_t> episodes;   // positions in Dataset::episodes()
  std::vector<int64_t> train_ids;  // samples behind the mean-chunk baseline
  int64_t draws = 16;
  uint64_t seed = 42;  // draw d of a frame uses DrawKey{seed, d} and the frame's sample id
  int64_t batch = 64;
  int64_t workers = 2;
  /// Called after every batch with (frames done, frames in all); answers whether to go on.
  std::function<bool(int64_t, int64_t)> progress;
};

/// Errors over frames and chunk steps, in raw action units (squared for MSE).
struct ChunkErrors {
  std::vector<double> mse, mae;         // [action_dim]
  double total_mse = 0, total_mae = 0;  // means over dimensions
};

/// The same predictions judged twice: every chunk step, and only the steps inside the episode.
struct PredictorErrors {
  ChunkErrors all_steps, inside_steps;
};

struct EpisodeTrace {
  int64_t episode = 0;  // episode_index as stored
  std::vector<int64_t> frames;
  std::vector<float> recorded;   // [frames, horizon, dim]
  std::vector<float> predicted;  // [frames, horizon, dim], mean over draws
  std::vector<float> spread;     // [frames, horizon, dim], standard deviation over draws
  double mse = 0;                // all steps, all dims
};

struct OpenLoopReport {
  std::string dataset;
  std::string checkpoint;
  std::string action_column;
  std::vector<std::string> dim_names;  // one per action dimension
  std::string repeat_meaning;          // what the repeat baseline repeats, and why
  double fps = 0;
  int64_t horizon = 0, action_dim = 0, draws = 0, num_frames = 0;
  uint64_t seed = 0;
  PredictorErrors model;        // mean of all draws
  PredictorErrors single_draw;  // draw 0
  PredictorErrors repeat;       // repeat the current state, or the last action
  PredictorErrors mean_chunk;   // mean over the training samples per chunk step
  std::vector<EpisodeTrace> episodes;
};

/// Runs the model over every frame of the chosen episodes. `interrupted` progress throws Error with
/// exit code 130. Throws ConfigError when no episode is chosen.
OpenLoopReport evaluate_open_loop(models::Policy& policy, const models::Transform& transform,
                                  const data::Dataset& dataset, const OpenLoopOptions& options);

/// Positions in Dataset::episodes(): "val" (the given ones), "all", "last:N" or episode indices
/// "21,22,23".
std::vector<int64_t> parse_episodes(const std::string& text, const data::Dataset& dataset,
                                    const std::vector<int64_t>& val_episodes);

std::string to_json(const OpenLoopReport& report);
/// Recorded actions over time per episode and dimension, with the predicted chunks drawn from their
/// start frames.
std::string to_svg(const OpenLoopReport& report);
/// A few lines for the console.
std::string summary(const OpenLoopReport& report);

}  // namespace longship::train
