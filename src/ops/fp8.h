#pragma once
// Linear layers whose three GEMMs take FP8 operands with one scale per matrix.
//
// A matrix x is stored as q = fp8(x * scale) and stands for q * inv_scale, inv_scale = 1 / scale.
// scale = fp8_max / (amax * 2^margin). Rounding is to nearest even; values beyond the largest are
// saturated; NaN and infinity become NaN, so that a diverged run still shows in the loss and in the
// norm of the gradients. With current scaling amax is that of the matrix itself (one pass more over
// it), with delayed scaling the largest of the last steps.
//
// The FP8 GEMM wants both operands with the contracted dimension contiguous, so the kernels write a
// matrix as it is, transposed, or both, in one read. Nothing here synchronises with the host; every
// function can be captured in a CUDA graph. On CUDA the inputs are bf16; the CPU takes fp32 too and
// multiplies the dequantised values in fp32. All matrices have multiples of 16 rows and columns.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace longship::ops {

/// Largest finite value: 448 for at::kFloat8_e4m3fn, 57344 for at::kFloat8_e5m2. Other dtypes:
/// ShapeError.
double fp8_max(at::ScalarType format);

// --- Scales ---

/// Delayed-scaling states of all quantised tensors of a model in one fp32 tensor [num_states, 2 +
/// history], each row {scale, target, amax of the running step, of the last step, ...}; target =
/// fp8_max / 2^margin. Scale 0 means an empty history: such a tensor is scaled by its own amax.
/// Layers hold the index of their state.
class Fp8State {
 public:
  /// `history`: number of steps, the running one included when it ends, that a scale looks back on.
  explicit Fp8State(int64_t history = 16);

  /// Reserves a state and returns its index. Before create().
  int64_t add(at::ScalarType format, double margin = 0.0);
  /// Makes the tensor, with empty histories.
  void create(at::Device device);
  /// Ends a step: the next scale of every state is target over the largest finite amax of its
  /// history, or 0 where that holds none; then the history moves on. One launch.
  void update();

  /// The whole state, aliased: what an exact resume needs. Undefined before create().
  const at::Tensor& tensor() const { return tensor_; }
  /// Copies a saved state into the tensor, whose address stays. CheckpointError where its shape or
  /// targets differ. Synchronises.
  void load(const at::Tensor& saved);

  int64_t size() const { return static_cast<int64_t>(formats_.size()); }
  int64_t history() const { return history_; }
  at::ScalarType format(int64_t index) const;

 private:
  int64_t history_;
  std::vector<at::ScalarType> formats_;
  std::vector<float> targets_;
  at::Tensor tensor_;
};

/// Where the scale of one matrix comes from.
struct Fp8Scale {
  at::Tensor states = {};  // of an Fp8State; undefined: current scaling
  int64_t index = 0;       // row of states
  bool record = false;     // join amax of what is read to the running step of the state
  double margin = 0.0;     // current scaling
};

// --- Operators ---

/// Which results to make.
struct Fp8Copies {
  bool rows = true;
  bool transposed = true;
  std::optional<at::ScalarType> column_sums = std::nullopt;  // dtype; fp8_quantize only
};

/// A matrix [M, N] in FP8.
struct Fp8Matrix {
  at::Tensor q;            // [M, N] fp8; undefined where not asked for
  at::Tensor q_t;          // [N, M] fp8; undefined where not asked for
  at::Tensor inv_scale;    // [1] fp32
  at::Tensor column_sums;  // [N], sums over M in fp32, in the dtype asked for
};

/// max |x| as [1] fp32; NaN where x holds one, 0 for no elements. x fp32 or bf16, any shape,
/// contiguous. Reads x once.
at::Tensor fp8_amax(const at::Tensor& x);

/// x [M, N] to FP8. CUDA traffic: 2 bytes read (4 with current scaling) and 1 or 2 written an
/// element.
Fp8Matrix fp8_quantize(const at::Tensor& x, at::ScalarType format, const Fp8Scale& scale,
                       const Fp8Copies& copies = {});

/// gate_up [M, 2H], gate first -> gelu_tanh(gate) * up [M, H], computed in fp32 and rounded once.
/// CUDA traffic: 4 bytes read (8 with current scaling) and 1 or 2 written an element of the result.
Fp8Matrix fp8_geglu_quantize(const at::Tensor& gate_up, at::ScalarType format,
                             const Fp8Scale& scale, const Fp8Copies& copies = {});

/// dy [M, H], gate_up [M, 2H] -> gradient of gate_up [M, 2H]. CUDA traffic: 6 bytes read (12 with
/// current scaling) and 2 or 4 written an element of dy.
Fp8Matrix fp8_geglu_backward_quantize(const at::Tensor& dy, const at::Tensor& gate_up,
                                      at::ScalarType format, const Fp8Scale& scale,
                                      const Fp8Copies& copies = {});

/// y = (a * a_inv_scale) @ (b * b_inv_scale)^T + bias. a [M, K], b [N, K] fp8, not both e5m2; bias
/// [N], rounded to `dtype` (bf16 or fp32; fp32 takes no bias on CUDA). Returns [M, N] of `dtype`.
/// `fast_accumulation` leaves partial sums in the tensor cores' shorter accumulators.
at::Tensor fp8_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                      const at::Tensor& b_inv_scale, const std::optional<at::Tensor>& bias,
                      at::ScalarType dtype, bool fast_accumulation);

// --- Weights ---

/// The rows of all `parts` [N_i, K] as one matrix [sum N_i, K]: a view where they are
/// contiguous and each begins where the one before ends, else a copy.
at::Tensor stacked_rows(at::TensorList parts);

/// FP8 copies of one or several weights that are used as one stacked matrix [N, K], in e4m3.
/// 2 bytes an element beside the weights themselves, 1 without the transposed copy.
struct Fp8Weight {
  std::vector<at::Tensor> sources;  // [N_i, K], aliased
  at::Tensor q;                     // [N, K]
  at::Tensor q_t;                   // [K, N]; undefined without transposed copy
  at::Tensor scale;                 // [4] fp32: inv_scale, amax, unused, unused
  double margin = 0.0;
  bool is_fresh = false;  // refreshed at least once

  /// Allocates; `weights` must keep their memory. Without the transposed copy no gradient of the
  /// input can be computed.
  void bind(at::TensorList weights, bool transposed = true);
  /// Converts the weights as they are now, with current scaling. Once per optimizer step, before
  /// the first use.
  void refresh();
  at::Tensor inv_scale() const;
};

/// refresh() of many: on CUDA three launches for each 64. Weights of one margin.
void fp8_refresh(const std::vector<Fp8Weight*>& weights);

// --- Layers ---

struct Fp8Recipe {
  at::ScalarType gradient_format = at::kFloat8_e5m2;  // or e4m3; weights and activations are e4m3
  double margin = 0.0;
  bool fast_accumulation_forward = true;
  bool fast_accumulation_backward = false;
};

/// What a linear layer keeps between calls.
struct Fp8LinearSite {
  Fp8Weight weight;
  Fp8Recipe recipe;
  const Fp8State* state = nullptr;  // null: current scaling
  int64_t input = 0;                // indices of states
  int64_t gradient = 0;

  /// Reserves the states. After this the recipe's formats and margin are fixed.
  void use_delayed_scaling(Fp8State& states);
};

/// y = x w^T + bias with x [..., K], w the stacked rows of `weights` ([N_i, K], those that
/// `site.weight` is bound to; their gradients are row slices of one [N, K] matrix in their dtype),
/// bias [N] fp32 or bf16. Returns [..., N] in the dtype of x. Rows of x: a multiple of 16.
/// Saved for backward: the transposed fp8 copy of x, K bytes a row (bf16: 2K), and references to
/// the weight copies. Backward: dy is quantised once (row-wise and transposed, with its column sums
/// where there is a bias), dx = dy8 w8, dw = dy8^T x8. Gradients are those of the quantised
/// product with the rounding taken as identity. Not differentiable twice.
at::Tensor fp8_linear(const at::Tensor& x, at::TensorList weights,
                      const std::optional<at::Tensor>& bias, const Fp8LinearSite& site);

struct Fp8GatedMlpSite {
  Fp8Weight gate_up;  // bound to {gate, up}
  Fp8Weight down;
  Fp8Recipe recipe;
  const Fp8State* state = nullptr;  // null: current scaling
  int64_t input = 0;                // indices of states
  int64_t activation = 0;
  int64_t output_gradient = 0;
  int64_t gate_up_gradient = 0;

  void use_delayed_scaling(Fp8State& states);
};

/// y = (gelu_tanh(x gate^T) * (x up^T)) down^T: x [..., K], gate and up [H, K], down [K', H] ->
/// [..., K']. The product gate * up is rounded to FP8 only.
/// Saved for backward a row: K (x, fp8 transposed) + 4H (gate and up, bf16) + H (activation, fp8
/// transposed) bytes; the bf16 formulation with a fused activation keeps 2K + 4H + 2H.
at::Tensor fp8_gated_mlp(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                         const at::Tensor& down, const Fp8GatedMlpSite& site);

}  // namespace longship::ops
