#include "train/bench_data.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/version.h"
#include "data/sampler.h"
#include "runtime/device.h"
#include "runtime/speed_of_light.h"
#include "train/feed.h"
#include "train/session.h"

namespace longship::train {
namespace {

using runtime::rounded;

double wall_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// CPU seconds of this process, all threads.
double process_cpu() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double peak_rss_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// CPU seconds of the whole machine since it started; 0 when /proc does not tell.
double machine_cpu() {
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (!(file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal)) {
    return 0;
  }
  constexpr double kTicksPerSecond = 100;
  return (user + nice + system + irq + softirq + steal) / kTicksPerSecond;
}

struct Reading {
  double wall = wall_now(), cpu = process_cpu(), machine = machine_cpu();
  FeedCounters counters;
  data::PictureStatistics pictures;
  Elapsed device_copy;
};

/// Something that gives batches and says how.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t next() = 0;  // takes a batch, returns its samples
  virtual FeedCounters counters() const = 0;
  virtual Elapsed device_copy() const { return {}; }
};

class DatasetSource final : public Source {
 public:
  DatasetSource(const data::Dataset& dataset, const data::ShuffledStream& stream,
                const data::WindowSpec& windows, int64_t threads)
      : dataset_(dataset), decoding_before_(dataset.picture_statistics().decoding) {
    const auto produce = [this, &stream, &windows](int64_t i) {
      const std::vector<int64_t> ids = stream.batch(i);
      Stopwatch watch;
      std::vector<data::RawSample> samples = dataset_.get_batch(ids, windows);
      const Elapsed spent = watch.lap();
      const std::lock_guard lock(mutex_);
      fetching_ += spent;
      return samples;
    };
    prefetcher_ = std::make_unique<OrderedPrefetcher<std::vector<data::RawSample>>>(
        threads, std::max<int64_t>(2 * threads, 4), produce, 0);
  }
  int64_t next() override { return static_cast<int64_t>(prefetcher_->next().size()); }
  FeedCounters counters() const override {
    FeedCounters out;
    out.queue = prefetcher_->counters();
    const Elapsed decoding = dataset_.picture_statistics().decoding - decoding_before_;
    const std::lock_guard lock(mutex_);
    out.stages[static_cast<size_t>(FeedStage::kFetch)] = fetching_ - decoding;
    out.stages[static_cast<size_t>(FeedStage::kDecode)] = decoding;
    return out;
  }

 private:
  const data::Dataset& dataset_;
  Elapsed decoding_before_;
  mutable std::mutex mutex_;
  Elapsed fetching_;
  std::unique_ptr<OrderedPrefetcher<std::vector<data::RawSample>>> prefetcher_;
};

class ModelSource final : public Source {
 public:
  ModelSource(const BatchMaker& maker, const data::ShuffledStream& stream, uint64_t seed,
              at::Device device, int64_t threads)
      : maker_(maker), before_(maker.times()), device_(device) {
    const auto produce = [this, &stream, seed](int64_t i) {
      return maker_.make(stream.batch(i), {seed, static_cast<uint64_t>(i)});
    };
    prefetcher_ = std::make_unique<OrderedPrefetcher<std::unique_ptr<models::Batch>>>(
        threads, std::max<int64_t>(2 * threads, 4), produce, 0);
  }
  int64_t next() override {
    const std::unique_ptr<models::Batch> batch = prefetcher_->next();
    if (device_.is_cuda()) {
      Stopwatch watch;
      batch->to(device_);
      runtime::synchronize(device_);
      device_copy_ += watch.lap();
    }
    return batch->size();
  }
  FeedCounters counters() const override {
    FeedCounters out{prefetcher_->counters(), maker_.times()};
    for (size_t i = 0; i < out.stages.size(); ++i) out.stages[i] = out.stages[i] - before_[i];
    return out;
  }
  Elapsed device_copy() const override { return device_copy_; }

 private:
  const BatchMaker& maker_;
  StageTimes before_;
  at::Device device_;
  Elapsed device_copy_;
  std::unique_ptr<OrderedPrefetcher<std::unique_ptr<models::Batch>>> prefetcher_;
};

Reading read(const Source& source, const data::Dataset& dataset) {
  Reading out;
  out.counters = source.counters();
  out.pictures = dataset.picture_statistics();
  out.device_copy = source.device_copy();
  return out;
}

nlohmann::json stages_json(const Reading& a, const Reading& b, double samples, bool with_copy) {
  nlohmann::json out = nlohmann::json::object();
  const auto add = [&](const char* name, const Elapsed& spent) {
    out[name] = {{"wall_us", rounded(1e6 * spent.wall_s / samples)},
                 {"cpu_us", rounded(1e6 * spent.cpu_s / samples)}};
  };
  for (size_t i = 0; i < kNumFeedStages; ++i) {
    add(to_string(static_cast<FeedStage>(i)), b.counters.stages[i] - a.counters.stages[i]);
  }
  if (with_copy) add("device_copy", b.device_copy - a.device_copy);
  return out;
}

nlohmann::json pictures_json(const data::PictureStatistics& a, const data::PictureStatistics& b,
                             double samples) {
  const auto per_sample = [samples](int64_t before, int64_t after) {
    return rounded(static_cast<double>(after - before) / samples);
  };
  return {{"read", per_sample(a.pictures_read, b.pictures_read)},
          {"decoded", per_sample(a.pictures_decoded, b.pictures_decoded)},
          {"packets", per_sample(a.packets_decoded, b.packets_decoded)},
          {"seeks", per_sample(a.seeks, b.seeks)},
          {"decoders_opened", b.decoders_opened},
          {"decoders_idle", b.decoders_idle},
          {"index_bytes", b.index_bytes}};
}

nlohmann::json window_json(const Reading& a, const Reading& b, int64_t samples) {
  const double seconds = b.wall - a.wall, cpu = b.cpu - a.cpu;
  const auto count = static_cast<double>(samples);
  const double other = std::max(0.0, (b.machine - a.machine - cpu) / seconds);
  return {{"samples", samples},
          {"seconds", rounded(seconds)},
          {"samples_per_s", rounded(count / seconds)},
          {"samples_per_cpu_s", rounded(count / cpu)},
          {"cpu_used", rounded(cpu / seconds)},
          {"other_cpu", rounded(other)}};
}

double median_of(const nlohmann::json& windows, const char* key) {
  std::vector<double> values;
  for (const auto& window : windows) values.push_back(window[key].get<double>());
  return runtime::percentiles(values).median;
}

nlohmann::json measure(Source& source, const data::Dataset& dataset, int64_t threads,
                       const DataBenchOptions& options, bool with_copy) {
  // Every worker has its decoders open before the clock starts.
  for (int64_t i = 0; i < 4 + 2 * threads; ++i) source.next();
  nlohmann::json windows = nlohmann::json::array();
  const Reading begin = read(source, dataset);
  Reading last = begin;
  int64_t samples = 0;
  for (int64_t w = 0; w < options.windows; ++w) {
    int64_t here = 0;
    while (wall_now() - last.wall < options.seconds || here == 0) here += source.next();
    const Reading now = read(source, dataset);
    windows.push_back(window_json(last, now, here));
    samples += here;
    last = now;
  }
  const PrefetchCounters &a = begin.counters.queue, &b = last.counters.queue;
  const auto taken = static_cast<double>(b.num_taken - a.num_taken);
  const double worker_time =
      (last.wall - begin.wall) * static_cast<double>(std::max<int64_t>(threads, 1));
  nlohmann::json out;
  out["threads"] = threads;
  out["samples_per_s"] = rounded(median_of(windows, "samples_per_s"));
  out["samples_per_cpu_s"] = rounded(median_of(windows, "samples_per_cpu_s"));
  out["cpu_us_per_sample"] = rounded(1e6 / median_of(windows, "samples_per_cpu_s"));
  out["other_cpu"] = rounded(median_of(windows, "other_cpu"));
  out["queue"] = rounded(static_cast<double>(b.ready_sum - a.ready_sum) / taken);
  out["starved"] = rounded(static_cast<double>(b.num_starved - a.num_starved) / taken);
  out["blocked"] = rounded((b.blocked_s - a.blocked_s) / worker_time);
  out["stages"] = stages_json(begin, last, static_cast<double>(samples), with_copy);
  out["pictures"] = pictures_json(begin.pictures, last.pictures, static_cast<double>(samples));
  out["windows"] = windows;
  return out;
}

nlohmann::json report_of(const data::Dataset& dataset, const char* mode, int64_t batch,
                         const data::WindowSpec& windows) {
  nlohmann::json out;
  out["mode"] = mode;
  out["dataset"] = dataset.root().string();
  out["format"] = dataset.format();
  out["samples"] = dataset.size();
  out["batch"] = batch;
  out["cameras"] = windows.cameras.size();
  out["windows"] = {{"columns", nlohmann::json::object()}, {"cameras", nlohmann::json::object()}};
  for (const auto& [name, offsets] : windows.columns) {
    out["windows"]["columns"][name] = offsets.size();
  }
  for (const auto& [name, offsets] : windows.cameras) {
    out["windows"]["cameras"][name] = offsets.size();
  }
  out["cores"] = std::thread::hardware_concurrency();
  out["longship"] = version();
  out["build"] = build_info();
  out["runs"] = nlohmann::json::array();
  return out;
}

void check(const DataBenchOptions& options) {
  LS_CHECK(!options.threads.empty(), ConfigError, "--threads: give at least one number");
  for (const int64_t threads : options.threads) {
    LS_CHECK(threads >= 0 && threads <= 1024, ConfigError, "--threads: {} is not in 0 .. 1024",
             threads);
  }
  LS_CHECK(options.windows >= 1, ConfigError, "--windows: {} is not at least 1", options.windows);
  LS_CHECK(options.seconds > 0, ConfigError, "--seconds: {} is not above 0", options.seconds);
  LS_CHECK(options.batch >= 1, ConfigError, "--batch: {} is not at least 1", options.batch);
  LS_CHECK(options.chunk >= 1, ConfigError, "--chunk: {} is not at least 1", options.chunk);
}

}  // namespace

nlohmann::json bench_dataset(const data::Dataset& dataset, const DataBenchOptions& options) {
  check(options);
  data::WindowSpec windows;
  std::vector<int64_t>& chunk = windows.columns["action"];
  chunk.resize(static_cast<size_t>(options.chunk));
  std::iota(chunk.begin(), chunk.end(), int64_t{0});
  for (const std::string& camera : dataset.cameras()) windows.cameras[camera] = {0};
  std::vector<int64_t> ids(static_cast<size_t>(dataset.size()));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const data::ShuffledStream stream(std::move(ids), options.seed, options.batch);
  nlohmann::json report = report_of(dataset, "dataset", options.batch, windows);
  report["chunk"] = options.chunk;
  for (const int64_t threads : options.threads) {
    DatasetSource source(dataset, stream, windows, threads);
    report["runs"].push_back(measure(source, dataset, threads, options, false));
  }
  report["peak_rss_mb"] = rounded(peak_rss_mb());
  return report;
}

nlohmann::json bench_feed(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                          const DataBenchOptions& options, const FamilyLookup& lookup) {
  check(options);
  Recipe bound = with_overrides(recipe, {}, lookup);
  bound.model->bind_dataset(*dataset);
  const at::Device device = runtime::parse_device(recipe.train.device);
  apply_library_settings(recipe);
  place_augmentation(bound, device);
  const std::unique_ptr<models::Transform> transform = make_transform(bound, *dataset);
  transform->check_dataset(*dataset);
  // Batches are completed on the host, which needs the model's shapes and no weights.
  models::BuildOptions build = build_options(bound, at::kMeta);
  build.initialise = false;
  build.fp8.reset();
  const std::unique_ptr<models::Policy> policy = bound.family->build(*bound.model, build);
  const TrainingSamples samples = training_samples(bound, *dataset, transform->windows());
  const auto seed = static_cast<uint64_t>(bound.train.seed);
  const int64_t micro = bound.train.global_batch / bound.train.num_micro();
  const data::ShuffledStream stream(samples.order, micro);
  const BatchMaker maker(*dataset, *transform, *policy, device.is_cuda(), nullptr,
                         bound.data.share_decoding);
  nlohmann::json report = report_of(*dataset, "model", micro, transform->windows());
  report["family"] = bound.family->name();
  report["device"] = runtime::describe(device);
  for (const int64_t threads : options.threads) {
    ModelSource source(maker, stream, seed, device, threads);
    report["runs"].push_back(measure(source, *dataset, threads, options, device.is_cuda()));
  }
  report["peak_rss_mb"] = rounded(peak_rss_mb());
  return report;
}

std::string bench_data_text(const nlohmann::json& report) {
  std::string out = fmt::format(
      "{}: {} samples, {} cameras, batches of {}, {}\n", report["dataset"].get<std::string>(),
      report["samples"].get<int64_t>(), report["cameras"].get<int64_t>(),
      report["batch"].get<int64_t>(),
      report["mode"] == "model" ? "through the transform of " + report["family"].get<std::string>()
                                : std::string("dataset alone"));
  for (const auto& run : report["runs"]) {
    out += fmt::format(
        "{} threads: {:.0f} samples/s, {:.0f} per CPU second, {:.0f} us of CPU per sample; queue "
        "{:.1f}, workers blocked {:.0f} %; other processes used {:.2f} cores\n ",
        run["threads"].get<int64_t>(), run["samples_per_s"].get<double>(),
        run["samples_per_cpu_s"].get<double>(), run["cpu_us_per_sample"].get<double>(),
        run["queue"].get<double>(), 100 * run["blocked"].get<double>(),
        run["other_cpu"].get<double>());
    for (const char* stage : {"fetch", "decode", "transform", "collate", "pin", "device_copy"}) {
      if (!run["stages"].contains(stage)) continue;
      const double cpu = run["stages"][stage]["cpu_us"].get<double>();
      if (cpu > 0) out += fmt::format(" {} {:.1f} us", stage, cpu);
    }
    out += fmt::format("; {:.2f} pictures decoded per sample\n",
                       run["pictures"]["decoded"].get<double>());
  }
  out += fmt::format("peak memory {:.0f} MB\n", report["peak_rss_mb"].get<double>());
  return out;
}

}  // namespace longship::train
