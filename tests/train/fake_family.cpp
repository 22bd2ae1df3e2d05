#include "fake_family.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "io/tensor_io.h"

namespace longship::train::testing {
namespace {

std::mutex g_mutex;
std::vector<int64_t> g_bad_steps;
std::atomic<int64_t> g_delay_ms{0};
std::atomic<int64_t> g_unreadable{-1};

class FakeDataset : public data::Dataset {
 public:
  explicit FakeDataset(const std::vector<int64_t>& lengths) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      data::Episode e;
      e.index = static_cast<int64_t>(i);
      e.length = lengths[i];
      e.first_sample = size_;
      e.tasks = {"move"};
      size_ += e.length;
      episodes_.push_back(e);
    }
    for (const char* name : {"observation.state", "action"}) {
      data::Feature f;
      f.name = name;
      f.dtype = "float32";
      f.shape = {2};
      f.dim_names = {"x", "y"};
      features_.push_back(f);
      data::FeatureStats s;
      s.min = {-3, -3};
      s.max = {3, 3};
      s.mean = {0, 0};
      s.std = {1, 1};
      s.q01 = {-2, -2};
      s.q99 = {2, 2};
      s.count = size_;
      s.source = "fake";
      stats_[name] = s;
    }
  }
  const std::filesystem::path& root() const override { return root_; }
  std::string format() const override { return "fake"; }
  double fps() const override { return 10; }
  const std::vector<data::Feature>& features() const override { return features_; }
  const std::vector<data::Episode>& episodes() const override { return episodes_; }
  const std::vector<std::string>& tasks() const override { return tasks_; }
  const std::map<std::string, data::FeatureStats>& stats() const override { return stats_; }
  int64_t size() const override { return size_; }
  std::string_view task_of(int64_t) const override { return tasks_[0]; }
  data::RawSample get(int64_t id, const data::WindowSpec& windows) const override {
    LS_CHECK(id != g_unreadable, DataError, "fake_dataset: sample {} cannot be read", id);
    return get_columns(id, windows);
  }
  data::RawSample get_columns(int64_t id, const data::WindowSpec& windows) const override {
    const auto [position, frame] = locate(id);
    const data::Episode& e = episodes_[static_cast<size_t>(position)];
    data::RawSample s;
    s.sample_id = id;
    s.episode = e.index;
    s.frame = frame;
    s.timestamp_s = static_cast<double>(frame) / 10.0;
    s.task = "move";
    for (const auto& [name, offsets] : windows.columns) {
      data::WindowValues& w = s.columns[name];
      w.num_offsets = static_cast<int64_t>(offsets.size());
      w.width = 2;
      for (const int64_t offset : offsets) {
        const int64_t at = std::clamp<int64_t>(frame + offset, 0, e.length - 1);
        const double t = static_cast<double>(at + (name == "action" ? 1 : 0)) * 0.3 +
                         static_cast<double>(e.index);
        w.values.push_back(static_cast<float>(std::sin(t)));
        w.values.push_back(static_cast<float>(std::cos(1.7 * t)));
        w.is_pad.push_back(at != frame + offset ? 1 : 0);
      }
    }
    return s;
  }

 private:
  std::filesystem::path root_ = "fake_dataset";
  std::vector<data::Feature> features_;
  std::vector<data::Episode> episodes_;
  std::vector<std::string> tasks_ = {"move"};
  std::map<std::string, data::FeatureStats> stats_;
  int64_t size_ = 0;
};

struct FakeConfig : models::ModelConfig {
  FakeConfig() { family = "fake"; }
  void reflect(config::Visitor& v) override {
    v.field("family", family, {.doc = "Family"});
    v.field("checkpoint", checkpoint, {.doc = "Weights to start from"});
    v.field("freeze_bias", freeze_bias, {.doc = "Freeze the bias"});
    v.field("draws", draws, {.doc = "The loss draws from the library's generator"});
  }
  std::optional<std::string> checkpoint;
  bool freeze_bias = false;
  bool draws = false;
};

struct FakeItem : models::Transform::Item {
  std::vector<float> state, actions;
};

struct FakeBatch : models::Batch {
  at::Tensor state, actions;  // [B, 2], [B, H * 2]
  at::Tensor noise, time;     // [B, H * 2], [B, 1]; made by prepare()
  uint64_t step = 0;          // of the draw
  std::vector<std::pair<std::string, at::Tensor*>> tensors() override {
    return {{"state", &state}, {"actions", &actions}, {"noise", &noise}, {"time", &time}};
  }
  std::unique_ptr<models::Batch> clone() const override {
    return std::make_unique<FakeBatch>(*this);
  }
  std::string signature() const override { return "B" + std::to_string(size()); }
};

class FakeTransform : public models::Transform {
 public:
  explicit FakeTransform(int64_t horizon) : horizon_(horizon) {}
  data::WindowSpec windows() const override {
    data::WindowSpec w;
    for (int64_t i = 0; i < horizon_; ++i) w.columns["action"].push_back(i);
    w.columns["observation.state"] = {0};
    return w;
  }
  std::unique_ptr<Item> prepare(const data::RawSample& sample) const override {
    auto item = std::make_unique<FakeItem>();
    item->sample_id = sample.sample_id;
    item->state = sample.columns.at("observation.state").values;
    item->actions = sample.columns.at("action").values;
    return item;
  }
  std::unique_ptr<models::Batch> collate(
      std::span<const std::unique_ptr<Item>> items) const override {
    auto batch = std::make_unique<FakeBatch>();
    const auto n = static_cast<int64_t>(items.size());
    batch->state = at::empty({n, 2});
    batch->actions = at::empty({n, horizon_ * 2});
    for (int64_t i = 0; i < n; ++i) {
      const auto& item = static_cast<const FakeItem&>(*items[static_cast<size_t>(i)]);
      batch->sample_ids.push_back(item.sample_id);
      std::copy(item.state.begin(), item.state.end(),
                batch->state.mutable_data_ptr<float>() + i * 2);
      std::copy(item.actions.begin(), item.actions.end(),
                batch->actions.mutable_data_ptr<float>() + i * horizon_ * 2);
    }
    return batch;
  }
  at::Tensor denormalise_actions(const at::Tensor& actions, const models::Batch*) const override {
    return actions;
  }
  void check_dataset(const data::Dataset&) const override {}

 private:
  int64_t horizon_;
};

class FakeModule : public nn::Module {};

// v(x_t, t, state) = W [x_t, t, state] + b, flow matching towards the actions.
class FakePolicy : public models::Policy {
 public:
  FakePolicy(const FakeConfig& config, const models::BuildOptions& options)
      : horizon_(config.data.horizon) {
    const int64_t n = horizon_ * 2;
    const auto tensor_options = at::TensorOptions().dtype(options.dtype).device(options.device);
    weight_ = at::empty({n, n + 3}, tensor_options);
    bias_ = at::empty({n}, tensor_options);
    dead_ = at::empty({3}, tensor_options);
    initialise(options.seed, {});
    weight_.requires_grad_(true);
    bias_.requires_grad_(!config.freeze_bias);
    freeze_bias_ = config.freeze_bias;
    draws_ = config.draws;
  }
  nn::Module& module() override { return module_; }
  std::vector<models::ParamInfo> parameters() override {
    using models::ParamRole;
    return {{"net.weight", weight_, ParamRole::kTrainable},
            {"net.bias", bias_, freeze_bias_ ? ParamRole::kFrozen : ParamRole::kTrainable},
            {"net.dead", dead_, ParamRole::kDecayOnly}};
  }
  void prepare(models::Batch& batch, const models::DrawKey& key) const override {
    auto& b = static_cast<FakeBatch&>(batch);
    b.step = key.step;
    b.noise = draw_noise(b, key, RngStream::kNoise);
    b.time = at::empty({b.size(), 1});
    for (int64_t i = 0; i < b.size(); ++i) {
      double t = 0;
      fill_uniform(make_key(key.seed, RngStream::kTime, key.step,
                            static_cast<uint64_t>(b.sample_ids[static_cast<size_t>(i)])),
                   {&t, 1});
      b.time.mutable_data_ptr<float>()[i] = static_cast<float>(t);
    }
  }
  void prepare_sampling(models::Batch&, const models::DrawKey&) const override {}
  using models::Policy::loss;
  models::LossResult loss(const models::Batch& batch) override {
    if (g_delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(g_delay_ms));
    const auto& b = static_cast<const FakeBatch&>(batch);
    const at::Tensor& noise = b.noise;
    const at::Tensor& time = b.time;
    const at::Tensor x_t = time * noise + (1 - time) * b.actions;
    const at::Tensor v = velocity(x_t, time, b.state);
    at::Tensor loss = (v - (noise - b.actions)).square().mean();
    if (draws_) loss = loss + 0 * at::rand_like(loss);
    const std::lock_guard lock(g_mutex);
    for (const int64_t bad : g_bad_steps) {
      if (bad == static_cast<int64_t>(b.step))
        loss = loss * std::numeric_limits<double>::quiet_NaN();
      if (bad < 0 && -bad == static_cast<int64_t>(b.step)) {
        loss =
            loss + 0 * weight_.to(at::kFloat).sum() +
            (weight_.to(at::kFloat).abs().sum() * 0).sqrt();  // finite value, infinite slope at 0
      }
    }
    return {loss, {{"loss_half", (loss * 0.5).detach()}}};
  }
  at::Tensor sample(const models::Batch& batch, const models::DrawKey& key) override {
    const auto& b = static_cast<const FakeBatch&>(batch);
    at::Tensor x = draw_noise(b, key, RngStream::kSample);
    constexpr int kSteps = 4;
    for (int i = 0; i < kSteps; ++i) {
      const at::Tensor time = at::full({b.size(), 1}, 1.0 - static_cast<double>(i) / kSteps);
      x = x - velocity(x, time, b.state) / kSteps;
    }
    return x.reshape({b.size(), horizon_, 2});
  }
  void initialise(uint64_t seed, const models::PreciseSink& sink) override {
    const at::NoGradGuard no_grad;
    const auto fill = [&](const std::string& name, at::Tensor target, const at::Tensor& value) {
      target.copy_(value);
      if (sink) sink(name, value);
    };
    std::vector<float> values(static_cast<size_t>(weight_.numel()));
    fill_normal(make_key(seed, RngStream::kInit), values);
    at::Tensor precise = at::empty(weight_.sizes());
    for (size_t i = 0; i < values.size(); ++i) {
      precise.mutable_data_ptr<float>()[i] = 0.1F * values[i];
    }
    fill("net.weight", weight_, precise);
    fill("net.bias", bias_, at::zeros(bias_.sizes()));
    fill("net.dead", dead_, at::full(dead_.sizes(), 0.5));
  }
  void load_weights(const std::filesystem::path& path, const models::PreciseSink& sink) override {
    const at::NoGradGuard no_grad;
    const auto file = std::filesystem::is_directory(path) ? path / "model.safetensors" : path;
    const auto tensors = io::load_tensors(file);
    for (const models::ParamInfo& p : parameters()) {
      const auto found = tensors.find(p.name);
      LS_CHECK(found != tensors.end(), CheckpointError, "{}: missing {}", file.string(), p.name);
      at::Tensor target = p.tensor;
      target.copy_(found->second);
      if (sink) sink(p.name, found->second.to(at::kFloat));
    }
  }
  std::vector<models::NamedTensor> export_weights(
      std::span<const models::NamedTensor> values) override {
    std::vector<models::NamedTensor> out;
    for (const models::ParamInfo& p : parameters()) {
      at::Tensor t = p.tensor;
      for (const models::NamedTensor& v : values) {
        if (v.name == p.name) t = v.tensor;
      }
      out.push_back({p.name, t});
    }
    return out;
  }

 private:
  at::Tensor draw_noise(const FakeBatch& b, const models::DrawKey& key, RngStream stream) const {
    at::Tensor noise = at::empty({b.size(), horizon_ * 2});
    for (int64_t i = 0; i < b.size(); ++i) {
      float* row = noise.mutable_data_ptr<float>() + i * horizon_ * 2;
      fill_normal(make_key(key.seed, stream, key.step,
                           static_cast<uint64_t>(b.sample_ids[static_cast<size_t>(i)])),
                  std::span<float>(row, static_cast<size_t>(horizon_ * 2)));
    }
    return noise;
  }
  at::Tensor velocity(const at::Tensor& x, const at::Tensor& time, const at::Tensor& state) const {
    const at::Tensor in = at::cat({x, time, state}, 1).to(weight_.scalar_type());
    return at::linear(in, weight_, bias_).to(at::kFloat);
  }
  int64_t horizon_;
  bool freeze_bias_ = false, draws_ = false;
  at::Tensor weight_, bias_, dead_;
  FakeModule module_;
};

class FakeFamily : public models::ModelFamily {
 public:
  std::string name() const override { return "fake"; }
  std::string summary() const override { return "linear flow model of the tests"; }
  std::unique_ptr<models::ModelConfig> make_config() const override {
    return std::make_unique<FakeConfig>();
  }
  std::unique_ptr<models::Policy> build(const models::ModelConfig& config,
                                        const models::BuildOptions& options) const override {
    return std::make_unique<FakePolicy>(static_cast<const FakeConfig&>(config), options);
  }
  std::unique_ptr<models::Transform> make_transform(const models::ModelConfig& config,
                                                    const data::Dataset&) const override {
    return std::make_unique<FakeTransform>(config.data.horizon);
  }
  models::BatchCost cost(const models::ModelConfig&, const models::Batch& batch) const override {
    return {static_cast<double>(batch.size()), static_cast<double>(batch.size())};
  }
  std::unique_ptr<models::Batch> synthetic_batch(const models::ModelConfig& config,
                                                 const models::SyntheticShape& shape,
                                                 uint64_t) const override {
    auto out = std::make_unique<FakeBatch>();
    out->state = at::zeros({shape.batch, 2});
    out->actions = at::zeros({shape.batch, 2 * config.data.horizon});
    for (int64_t i = 0; i < shape.batch; ++i) out->sample_ids.push_back(i);
    return out;
  }
  std::string export_config_json(const models::ModelConfig&, const data::Dataset&) const override {
    return "{\"type\": \"fake\"}\n";
  }
  std::unique_ptr<models::ModelConfig> import_config_json(
      const std::filesystem::path&) const override {
    return make_config();
  }
};

}  // namespace

std::shared_ptr<const data::Dataset> make_fake_dataset(std::vector<int64_t> lengths) {
  return std::make_shared<FakeDataset>(lengths);
}

const models::ModelFamily& fake_lookup(const std::string& name) {
  static const FakeFamily family;
  LS_CHECK(name == "fake", ConfigError, "there is no model family '{}'; known: fake", name);
  return family;
}

FamilyLookup fake_families() {
  return &fake_lookup;
}

void set_bad_steps(std::vector<int64_t> steps) {
  const std::lock_guard lock(g_mutex);
  g_bad_steps = std::move(steps);
}

void set_unreadable_sample(int64_t sample_id) {
  g_unreadable = sample_id;
}

void set_step_delay_ms(int64_t milliseconds) {
  g_delay_ms = milliseconds;
}

Recipe fake_recipe(const std::string& output_dir, const std::vector<std::string>& overrides) {
  config::Node root = config::parse_yaml_text(
      "model: {family: fake}\n"
      "data: {datasets: [{path: fake_dataset}], val_episodes: 1, horizon: 4, workers: 2, prefetch: "
      "3}\n"
      "optim: {lr: 0.01, weight_decay: 0.01, schedule: {name: cosine_with_min_lr, warmup_steps: 3, "
      "decay_steps: 25, min_lr: 0.001}}\n"
      "train: {steps: 20, global_batch: 8, micro_batch: 4, device: cpu, seed: 7, threads: 1}\n"
      "checkpoint: {every: 5, keep_last: 2}\n"
      "log: {every: 1, tensorboard: false}\n",
      "fake.yaml");
  config::apply_override(root, "output_dir=" + output_dir);
  for (const std::string& text : overrides) config::apply_override(root, text);
  return recipe_from(root, fake_families());
}

}  // namespace longship::train::testing
