#pragma once
// Comparison with recorded numbers of a reference implementation: a case folder holds weights,
// inputs and what the reference gave for them (outputs, loss, gradients, optimizer steps,
// inference). The runner knows no family; each family supplies an adapter that turns the case's
// inputs into its own batch.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec.h"
#include "nn/fused.h"

namespace longship::models {

/// Bounds of the error measure: max|ours - ref| / max(max|ref|, s), s = 1e-3 of the case's largest
/// gradient for gradients and 1e-6 otherwise. Integers and masks must be equal in fp32.
struct ParityTolerance {
  double outputs = 5e-5;
  double loss = 2e-6;  // relative, scalars named "loss" or "<variant>.loss"
  double grads = 5e-5;
  double train = 5e-5;  // relative, the loss of every optimizer step
  /// Relative, the gradient norms; where case.json has none: `train`. In bf16 those of a training
  /// run count against its largest: what is left of the others late in a run is mostly rounding.
  double grad_norm = 5e-5;
  /// What rounding may widen that to at most, see ParityRounding.
  double widest_grad_norm = std::numeric_limits<double>::infinity();
  double weights = 5e-5;  // weights behind optimizer steps; where case.json has none: `train`
  double sample = 1e-4;
  double zero_grads =
      1e-6;  // of the largest gradient, for gradients that are zero in exact arithmetic
  void scale(double factor);
};

/// case.json.
struct ParityCase {
  std::filesystem::path folder;
  std::string family;
  std::string name;
  ParityTolerance tolerance;
  double largest_grad = 0;
  std::vector<std::string> zero_grads;
  std::vector<std::string> required;  // names or globs in expected, "sample:..." in sample
  std::vector<std::pair<std::string, std::string>> trajectories;  // file, description
  std::vector<std::string> files;  // of the folder, as case.json lists them, and what it forgot
  bool low_precision = false;      // `tolerance` is that of a bf16 run, see ParityAdapter
};
/// Throws ConfigError (exit code 2) when there is no readable case.json of format 1.
ParityCase read_parity_case(const std::filesystem::path& folder);

struct ParityOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  nn::Fused fused;  // operators of the model under test
};

/// How a case's model is built; its weights follow.
BuildOptions parity_build_options(const ParityOptions& options);

/// The optimizer recipe of a recorded trajectory.
struct ParityRecipe {
  std::string schedule;  // as recorded, e.g. cosine_with_warmup_openpi
  double peak_lr = 0, min_lr = 0;
  int64_t warmup_steps = 0, decay_steps = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0,
         clip_norm = 0;               // clip_norm 0: none
  std::vector<std::string> no_decay;  // names of parameters
};

/// One optimizer with its schedule; the program passes in the trainer's own, so that trajectories
/// test what trains.
class ParityOptimizer {
 public:
  virtual ~ParityOptimizer() = default;
  virtual double lr(int64_t step) const = 0;
  /// Clips and applies the gradients of the parameters, drops them; returns the norm before
  /// clipping.
  virtual double step(int64_t step) = 0;
};
using ParityOptimizerFactory =
    std::function<std::unique_ptr<ParityOptimizer>(std::vector<ParamInfo>, const ParityRecipe&)>;

/// A recorded training run of which a number misses the case's tolerance is judged by what rounding
/// alone does to it. The whole run is repeated `kMembers` times, each with all weights and inputs
/// moved by parity_moved; its spread at step k is the largest relative difference between the
/// losses of any two of these runs and ours at steps <= k, and in the same way that of the gradient
/// norms. The spread of a weight is its own, or the median over all recorded weights where that is
/// more. A number that misses the case's tolerance may be off by kFactor times its spread, a
/// gradient norm by no more than the family accepts. The recording has no part in the spread: being
/// off from it does not widen the bound. A run whose losses spread by more than kLargestSpread in
/// the end cannot tell a right implementation from a wrong one; its numbers that miss the case's
/// tolerance fail.
struct ParityRounding {
  static constexpr uint64_t kMembers = 4;
  static constexpr double kFactor = 2;
  static constexpr double kLargestSpread = 1e-2;
};

/// `value` with every element x replaced by x + s * x * h, rounded to its dtype: h is half the
/// dtype's relative spacing at 1 (fp32: 2^-24) and s one of -1, 0, 1, drawn by (member, name,
/// element). So x stays or becomes a neighbour; powers of two never grow. Member 0, and tensors
/// that are not floating-point: `value` itself. The result is a new tensor on the same device.
/// Throws InternalError for floating-point types but fp64, fp32, fp16 and bf16.
at::Tensor parity_moved(const at::Tensor& value, uint64_t member, std::string_view name);
/// Each of `tensors`, drawn under prefix + its name.
std::map<std::string, at::Tensor> parity_moved(const std::map<std::string, at::Tensor>& tensors,
                                               uint64_t member, const std::string& prefix);

/// What a family does for a case.
class ParityAdapter {
 public:
  virtual ~ParityAdapter() = default;
  /// Tensors under the names of expected.safetensors, `grad.<parameter>` included, and of the
  /// numbers of expected.json ("a.b" for b inside of a), on the host.
  virtual std::map<std::string, at::Tensor> forward() = 0;
  /// Tensors under the names of sample.safetensors, and of numbers of expected.json; empty when the
  /// case has none.
  virtual std::map<std::string, at::Tensor> sample() = 0;
  /// The inputs that training runs read become parity_moved(recorded ones, member, ...); member 0:
  /// the recorded ones, as they are before the first call.
  virtual void move_inputs(uint64_t member) = 0;
  /// Goes back to the case's weights and prepares the recorded run `file`. Gives every weight,
  /// frozen ones too; what is written into them is what train_loss() reads.
  virtual std::vector<ParamInfo> begin_trajectory(const std::string& file,
                                                  const std::string& description) = 0;
  /// Loss with graph on batch `batch` of the case.
  virtual at::Tensor train_loss(int64_t batch) = 0;
  /// Of the run in progress: a weight that the public checkpoint has and no parameter is;
  /// undefined: there is none of this name.
  virtual at::Tensor other_weight(const std::string& name) const {
    static_cast<void>(name);
    return {};
  }
  /// The error of a gradient norm that the family's recordings accept at most, whatever rounding
  /// does to a run.
  virtual double widest_grad_norm() const { return std::numeric_limits<double>::infinity(); }
  /// What recordings hold and the reference did not compute: names in expected.safetensors,
  /// "sample:" + names in sample.safetensors. Every other name must come from forward() or
  /// sample().
  virtual std::vector<std::string> recorded_inputs() const { return {}; }
  /// Files of the case that the adapter reads, besides those that every case may have.
  virtual std::vector<std::string> own_files() const { return {}; }
  /// The family's documented bounds of a bf16 run against the fp32 reference.
  virtual ParityTolerance low_precision_tolerance() const = 0;
};
/// Throws ConfigError for a family without adapter.
std::unique_ptr<ParityAdapter> make_parity_adapter(const ParityCase& c,
                                                   const ParityOptions& options);

struct ParityRow {
  std::string kind;  // output, grad, sample, train; case and file: something that is not judged
  std::string name;
  bool required = false;
  bool produced = false;
  bool pass = false;
  double abs_error = 0;
  double rel_error = 0;  // the judged measure
  double tolerance = 0;  // its bound
  /// Of a number of a training run that misses the case's tolerance: that tolerance, and how far
  /// rounding alone moves the run up to there (infinite: to values that are not finite).
  /// `tolerance` follows from both, see ParityRounding.
  struct Rounding {
    double case_tolerance = 0;
    double spread = 0;
  };
  std::optional<Rounding> rounding;
  std::string note;
  /// Passes by ParityRounding's rule and not within the case's tolerance.
  bool pass_by_rounding() const { return pass && rounding.has_value(); }
};

struct ParityReport {
  std::string family, name;
  std::filesystem::path folder;
  std::vector<ParityRow> rows;
  std::vector<std::string> left_out;  // recorded numbers that the case says not to judge, and why
  bool pass() const;
  /// Rows that pass by ParityRounding's rule only.
  int64_t num_by_rounding() const;
};

/// Runs one case completely. Failures of comparison are rows; an unsupported family is one failed
/// row. So is every recorded array, number and file that nothing of ours is compared with: a
/// recording is judged as a whole or fails.
ParityReport run_parity_case(const std::filesystem::path& folder, const ParityOptions& options,
                             const ParityOptimizerFactory& optimizer);
/// The same with an adapter at hand, which families of the program are not asked for.
ParityReport run_parity_case(const ParityCase& c, ParityAdapter& adapter,
                             const ParityOptions& options, const ParityOptimizerFactory& optimizer);

/// One line per tensor and a summary line; rows that pass by rounding say "pass (rounding alone
/// moves this run by ...)" in place of PASS and are counted in the summary.
std::string format_report(const ParityReport& report);
/// {"pass": ..., "pass_by_rounding": number of rows, "cases": [...]}. Of a row, "tolerance" is the
/// bound that judged it; "case_tolerance" differs from it, and "rounding_spread" is not null, where
/// ParityRounding's rule did.
std::string reports_json(const std::vector<ParityReport>& reports, const ParityOptions& options);

/// Error of `ours` against `ref` in double: {max abs, max abs / max(max|ref|, floor)}; infinite for
/// values that are not finite.
std::pair<double, double> parity_error(const at::Tensor& ours, const at::Tensor& ref, double floor);

/// Glob with * and ?.
bool parity_match(std::string_view pattern, std::string_view name);

/// The norm over all "grad.<parameter>" of `tensors`, [1] fp32.
at::Tensor parity_gradient_norm(const std::map<std::string, at::Tensor>& tensors);

/// Throws ConfigError naming the file and the tensor unless one of `patterns` matches each name of
/// `inputs`: an input that nobody reads is as good as a recording that nobody compares.
void check_parity_inputs(const std::filesystem::path& path,
                         const std::map<std::string, at::Tensor>& inputs,
                         const std::vector<std::string>& patterns);

}  // namespace longship::models
