#pragma once
// What a run writes while it trains: metrics.jsonl, TensorBoard events, loss.svg.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace longship::io {
class EventWriter;
}

namespace longship::train {

/// How the workers that make batches were used. Shares are of the time all of them had.
struct PipelineRecord {
  double queue = 0;            // finished batches that lay ready when one was asked for, mean
  int64_t queue_capacity = 0;  // 0: without workers
  double starved = 0;          // share of the batches that had to be waited for
  double blocked = 0;          // share of time workers waited for room in the queue
  std::vector<std::pair<std::string, double>> stages;  // (stage, share of time at work in it)
};

/// How several processes worked together; times are per step.
struct ParallelRecord {
  int64_t world_size = 1;
  double wire_mb = 0;     // sent by this process in the exchange of gradients and weights, 10^6
                          // bytes, as a ring would
  double comm_ms = 0;     // of these collectives from begin to end, whatever ran meanwhile
  double exposed_ms = 0;  // of it, waited for with nothing else to do: mean over the processes
  /// Time of a step without waiting for others, on the slowest and the fastest process.
  int64_t slowest_rank = 0;
  double slowest_ms = 0, fastest_ms = 0;
};

/// One logged step; means over the steps since the last record unless said otherwise.
struct MetricsRecord {
  int64_t step = 0;  // steps done
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double lr = 0;         // of the last update
  double samples_per_s = 0;
  double data_wait_ms = 0;  // waiting for samples, per step
  double step_time_ms = 0;
  double epoch = 0;           // passes over the training samples, at the end of the step
  int64_t skipped_steps = 0;  // in the run so far
  int64_t num_samples = 0;    // consumed in the run so far
  std::optional<PipelineRecord> pipeline;
  std::optional<ParallelRecord> parallel;
  std::vector<std::pair<std::string, double>> extra;  // the family's own scalars
};

class MetricsLog {
 public:
  /// Goes on in `run_dir`: records behind `resumed_step` are dropped from metrics.jsonl (it is
  /// rewritten atomically), a cut last line too.
  MetricsLog(std::filesystem::path run_dir, int64_t resumed_step, bool tensorboard);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Appends one line to metrics.jsonl and the scalars to TensorBoard. Where that fails (a full
  /// disk) one warning is logged; lines are kept and written with a later record.
  void write(const MetricsRecord& record);
  void flush();
  /// (step, loss) of every record, the earlier parts of the run included.
  const std::vector<std::pair<int64_t, double>>& history() const { return history_; }
  /// loss.svg: every record, a smoothed curve and the checkpoints. A failure is a warning.
  void draw_loss(const std::string& title) const;

 private:
  void unless_full(const std::function<void()>& work);
  void write_events(const MetricsRecord& record);

  std::filesystem::path run_dir_;
  std::string pending_;   // lines that are not in metrics.jsonl yet
  bool failing_ = false;  // the last write failed and was warned about
  std::vector<std::pair<int64_t, double>> history_;
  std::unique_ptr<io::EventWriter> events_;
};

/// JSON of a record, one line without its end.
std::string to_json_line(const MetricsRecord& record);
/// "step 10/300  loss 0.8123  grad_norm 3.10  lr 2.0e-04  52.1 samples/s  data wait 0.3 ms  queue
/// 3.8/4  workers 41 %  ETA 1 min 20 s"; queue and workers only when they are known; with several
/// processes "exchange waits 3.1 ms  slowest rank 2 (+4 %)".
std::string to_console_line(const MetricsRecord& record, int64_t num_steps, double eta_s);

}  // namespace longship::train
