#include "train/open_loop.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/ordered_prefetch.h"
#include "base/strings.h"
#include "data/split.h"

namespace longship::train {
namespace {

// Sums of squared and absolute errors per dimension.
class ErrorSums {
 public:
  explicit ErrorSums(int64_t dim) : square_(dim), absolute_(dim) {}
  void add(const float* prediction, const float* truth) {
    for (size_t d = 0; d < square_.size(); ++d) {
      const double error = static_cast<double>(prediction[d]) - static_cast<double>(truth[d]);
      square_[d] += error * error;
      absolute_[d] += std::abs(error);
    }
    ++count_;
  }
  ChunkErrors result() const {
    ChunkErrors out;
    const double n = static_cast<double>(std::max<int64_t>(count_, 1));
    const double dims = static_cast<double>(square_.size());
    for (size_t d = 0; d < square_.size(); ++d) {
      out.mse.push_back(square_[d] / n);
      out.mae.push_back(absolute_[d] / n);
      out.total_mse += square_[d] / n / dims;
      out.total_mae += absolute_[d] / n / dims;
    }
    return out;
  }

 private:
  std::vector<double> square_, absolute_;
  int64_t count_ = 0;
};

struct PredictorSums {
  explicit PredictorSums(int64_t dim) : all(dim), inside(dim) {}
  void add(const float* prediction, const float* truth, bool is_pad) {
    all.add(prediction, truth);
    if (!is_pad) inside.add(prediction, truth);
  }
  PredictorErrors result() const { return {all.result(), inside.result()}; }
  ErrorSums all, inside;
};

struct ActionFacts {
  std::string column;
  std::vector<int64_t> offsets;
  std::optional<std::string> state_column;  // repeated when set, else the last action
  std::string repeat_meaning;
};

// The action column of a transform is the one named "action", or the only one with the longest
// window.
ActionFacts find_action(const models::Transform& transform, const data::Dataset& dataset) {
  const data::WindowSpec windows = transform.windows();
  ActionFacts facts;
  for (const auto& [column, offsets] : windows.columns) {
    if (facts.column.empty() || column == "action" ||
        (facts.column != "action" && offsets.size() > facts.offsets.size())) {
      facts.column = column;
      facts.offsets = offsets;
    }
  }
  LS_CHECK(!facts.column.empty(), ConfigError,
           "the model reads no numeric column, so there is no action to compare");
  const data::Feature* action = dataset.find_feature(facts.column);
  LS_CHECK(action != nullptr, DataError, "{}: has no column '{}'", dataset.root().string(),
           facts.column);
  const data::Feature* state = dataset.find_feature("observation.state");
  if (state != nullptr && state->width() == action->width() && !state->dim_names.empty() &&
      state->dim_names == action->dim_names) {
    facts.state_column = state->name;
    facts.repeat_meaning =
        fmt::format("repeat the current {} (same dimensions as {})", state->name, action->name);
  } else {
    facts.repeat_meaning = fmt::format(
        "repeat the action of the frame before ({} does not list the same dimensions as {})",
        state == nullptr ? "no observation.state, which" : state->name, action->name);
  }
  return facts;
}

std::vector<double> mean_chunk(const data::Dataset& dataset, const ActionFacts& facts,
                               const std::vector<int64_t>& ids, int64_t dim) {
  std::vector<double> sum(facts.offsets.size() * static_cast<size_t>(dim));
  data::WindowSpec spec;
  spec.columns[facts.column] = facts.offsets;
  for (const int64_t id : ids) {
    const data::RawSample sample = dataset.get_columns(id, spec);
    const std::vector<float>& values = sample.columns.at(facts.column).values;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  for (double& x : sum) x /= static_cast<double>(std::max<size_t>(ids.size(), 1));
  return sum;
}

// One batch on its way from the workers.
struct Prepared {
  std::unique_ptr<models::Batch> batch;
  std::vector<data::RawSample> truth;  // columns only
};

class Evaluation {
 public:
  Evaluation(models::Policy& policy, const models::Transform& transform,
             const data::Dataset& dataset, const OpenLoopOptions& options)
      : policy_(policy),
        transform_(transform),
        dataset_(dataset),
        options_(options),
        facts_(find_action(transform, dataset)),
        dim_(dataset.find_feature(facts_.column)->width()),
        horizon_(static_cast<int64_t>(facts_.offsets.size())),
        model_(dim_),
        single_(dim_),
        repeat_(dim_),
        mean_(dim_) {}

  OpenLoopReport run();

 private:
  void plan();
  Prepared prepare(int64_t i) const;
  void judge(const Prepared& prepared);
  void add_frame(const data::RawSample& truth, const float* draws, int64_t draw_stride);
  OpenLoopReport report();

  models::Policy& policy_;
  const models::Transform& transform_;
  const data::Dataset& dataset_;
  const OpenLoopOptions& options_;
  ActionFacts facts_;
  int64_t dim_, horizon_;
  PredictorSums model_, single_, repeat_, mean_;
  std::vector<double> mean_chunk_;
  std::vector<int64_t> ids_;
  std::vector<EpisodeTrace> traces_;
  std::map<int64_t, size_t> trace_of_;  // position of the episode -> index in traces_
};

void Evaluation::plan() {
  LS_CHECK(!options_.episodes.empty(), ConfigError, "open-loop evaluation: no episode is chosen");
  LS_CHECK(!options_.train_ids.empty(), ConfigError,
           "open-loop evaluation: no training samples for the mean-chunk baseline");
  ids_ = data::sample_ids_of(dataset_, options_.episodes);
  for (const int64_t position : options_.episodes) {
    trace_of_[position] = traces_.size();
    traces_.emplace_back();
    traces_.back().episode = dataset_.episodes()[static_cast<size_t>(position)].index;
  }
  mean_chunk_ = mean_chunk(dataset_, facts_, options_.train_ids, dim_);
}

Prepared Evaluation::prepare(int64_t i) const {
  const data::WindowSpec windows = transform_.windows();
  data::WindowSpec truth;
  // One frame more in front, for the last action.
  truth.columns[facts_.column] = facts_.offsets;
  truth.columns[facts_.column].push_back(-1);
  if (facts_.state_column) truth.columns[*facts_.state_column] = {0};
  Prepared out;
  std::vector<std::unique_ptr<models::Transform::Item>> items;
  const auto end = std::min<int64_t>((i + 1) * options_.batch, static_cast<int64_t>(ids_.size()));
  for (int64_t k = i * options_.batch; k < end; ++k) {
    const int64_t id = ids_[static_cast<size_t>(k)];
    items.push_back(transform_.prepare(dataset_.get(id, windows)));
    out.truth.push_back(dataset_.get_columns(id, truth));
  }
  out.batch = transform_.collate(items);
  return out;
}

void Evaluation::judge(const Prepared& prepared) {
  const int64_t rows = prepared.batch->size();
  at::Tensor draws = policy_.sample_draws(*prepared.batch, options_.seed, options_.draws);
  draws = draws.to(at::kCPU, at::kFloat);
  LS_CHECK(draws.dim() == 4 && draws.size(0) == options_.draws && draws.size(1) == rows,
           InternalError, "sample_draws gave a tensor of {} dimensions", draws.dim());
  const at::Tensor raw =
      transform_
          .denormalise_actions(draws.reshape({options_.draws * rows, draws.size(2), draws.size(3)}),
                               prepared.batch.get())
          .contiguous();
  LS_CHECK(raw.size(1) == horizon_ && raw.size(2) == dim_, InternalError,
           "predicted chunks are {} x {}, recorded ones {} x {}", raw.size(1), raw.size(2),
           horizon_, dim_);
  const float* values = raw.const_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    add_frame(prepared.truth[static_cast<size_t>(r)], values + r * horizon_ * dim_,
              rows * horizon_ * dim_);
  }
}

void Evaluation::add_frame(const data::RawSample& truth, const float* draws, int64_t draw_stride) {
  const data::WindowValues& recorded = truth.columns.at(facts_.column);
  const float* held = facts_.state_column ? truth.columns.at(*facts_.state_column).values.data()
                                          : recorded.values.data() + horizon_ * dim_;
  EpisodeTrace& trace = traces_[trace_of_.at(dataset_.locate(truth.sample_id).first)];
  trace.frames.push_back(truth.frame);
  std::vector<float> mean(static_cast<size_t>(dim_)), average(static_cast<size_t>(dim_));
  for (int64_t h = 0; h < horizon_; ++h) {
    const float* target = recorded.values.data() + h * dim_;
    for (int64_t d = 0; d < dim_; ++d) {
      double sum = 0, square = 0;
      for (int64_t k = 0; k < options_.draws; ++k) {
        const double value = draws[k * draw_stride + h * dim_ + d];
        sum += value;
        square += value * value;
      }
      const double n = static_cast<double>(options_.draws);
      mean[static_cast<size_t>(d)] = static_cast<float>(sum / n);
      average[static_cast<size_t>(d)] =
          static_cast<float>(mean_chunk_[static_cast<size_t>(h * dim_ + d)]);
      trace.recorded.push_back(target[d]);
      trace.predicted.push_back(mean[static_cast<size_t>(d)]);
      trace.spread.push_back(
          static_cast<float>(std::sqrt(std::max(0.0, square / n - sum / n * (sum / n)))));
    }
    const bool is_pad = recorded.is_pad[static_cast<size_t>(h)] != 0;
    model_.add(mean.data(), target, is_pad);
    single_.add(draws + h * dim_, target, is_pad);
    repeat_.add(held, target, is_pad);
    mean_.add(average.data(), target, is_pad);
  }
}

OpenLoopReport Evaluation::report() {
  OpenLoopReport out;
  out.dataset = dataset_.root().string();
  out.action_column = facts_.column;
  out.dim_names = dataset_.find_feature(facts_.column)->dim_names;
  if (static_cast<int64_t>(out.dim_names.size()) != dim_) {
    out.dim_names.clear();
    for (int64_t d = 0; d < dim_; ++d) out.dim_names.push_back(fmt::format("dim {}", d));
  }
  out.repeat_meaning = facts_.repeat_meaning;
  out.fps = dataset_.fps();
  out.horizon = horizon_;
  out.action_dim = dim_;
  out.draws = options_.draws;
  out.num_frames = static_cast<int64_t>(ids_.size());
  out.seed = options_.seed;
  out.model = model_.result();
  out.single_draw = single_.result();
  out.repeat = repeat_.result();
  out.mean_chunk = mean_.result();
  for (EpisodeTrace& trace : traces_) {
    double sum = 0;
    for (size_t i = 0; i < trace.recorded.size(); ++i) {
      const double error = static_cast<double>(trace.predicted[i]) - trace.recorded[i];
      sum += error * error;
    }
    trace.mse = sum / static_cast<double>(std::max<size_t>(trace.recorded.size(), 1));
  }
  out.episodes = std::move(traces_);
  return out;
}

OpenLoopReport Evaluation::run() {
  const at::NoGradGuard no_grad;
  plan();
  const auto total = static_cast<int64_t>(ids_.size());
  const int64_t num_batches = (total + options_.batch - 1) / options_.batch;
  OrderedPrefetcher<Prepared> feed(
      options_.workers, 3, [this](int64_t i) { return prepare(i); }, 0, num_batches);
  for (int64_t done = 0; !feed.done();) {
    const Prepared prepared = feed.next();
    done += prepared.batch->size();
    judge(prepared);
    if (options_.progress && !options_.progress(done, total)) {
      throw Error(ExitCode::kInterrupted, "open-loop evaluation: interrupted");
    }
  }
  return report();
}

}  // namespace

OpenLoopReport evaluate_open_loop(models::Policy& policy, const models::Transform& transform,
                                  const data::Dataset& dataset, const OpenLoopOptions& options) {
  return Evaluation(policy, transform, dataset, options).run();
}

std::vector<int64_t> parse_episodes(const std::string& text, const data::Dataset& dataset,
                                    const std::vector<int64_t>& val_episodes) {
  const auto bad = [&](const std::string& reason) {
    throw ConfigError(
        fmt::format("episodes: '{}' {}; give val, all, last:N or episode indices such as 21,22,23",
                    text, reason));
  };
  const auto number = [&](std::string_view digits) {
    const int64_t value = parse_whole_number(digits).value_or(-1);
    if (value < 0) bad(fmt::format("has '{}' where a number is expected", digits));
    return value;
  };
  const auto count = static_cast<int64_t>(dataset.episodes().size());
  std::vector<int64_t> out;
  if (text == "val") {
    if (val_episodes.empty()) bad("asks for the validation episodes, but none are held out");
    return val_episodes;
  }
  if (text == "all" || text.starts_with("last:")) {
    const int64_t n = text == "all" ? count : number(std::string_view(text).substr(5));
    if (n < 1 || n > count) bad(fmt::format("asks for {} of {} episodes", n, count));
    for (int64_t i = count - n; i < count; ++i) out.push_back(i);
    return out;
  }
  for (const std::string& part : split(text, ',')) {
    const int64_t index = number(trim(part));
    const auto found = std::find_if(dataset.episodes().begin(), dataset.episodes().end(),
                                    [index](const data::Episode& e) { return e.index == index; });
    if (found == dataset.episodes().end()) {
      bad(fmt::format("names episode {}, which the dataset does not have", index));
    }
    out.push_back(found - dataset.episodes().begin());
  }
  return out;
}

}  // namespace longship::train
