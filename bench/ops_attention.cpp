// Attention through the tensor library: cuDNN against flash, forward and backward.
#include <ATen/Context.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "bench/families.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"

namespace longship::bench {
namespace {

struct AttentionShape {
  const char* text;
  int64_t batch, query_heads, key_heads, queries, keys, head_size;
};

constexpr AttentionShape kShapes[] = {
    {"prefix 32x8/1x572x572x256", pi05::kBatch, pi05::kQueryHeads, 1, pi05::kPrefixTokens,
     pi05::kPrefixTokens, pi05::kHeadSize},
    {"suffix 32x8/1x50x622x256", pi05::kBatch, pi05::kQueryHeads, 1, pi05::kHorizon,
     pi05::kPrefixTokens + pi05::kHorizon, pi05::kHeadSize},
    {"vision 64x16x256x256x72", pi05::kPictures, pi05::kVisionHeads, pi05::kVisionHeads,
     pi05::kVisionTokens, pi05::kVisionTokens, pi05::kVisionHeadSize},
};

enum class Backend { kCudnn, kFlash };

/// Lets the library choose only `backend` while it lives.
class OnlyBackend {
 public:
  explicit OnlyBackend(Backend backend) {
    const at::Context& context = at::globalContext();
    saved_[0] = context.userEnabledCuDNNSDP();
    saved_[1] = context.userEnabledFlashSDP();
    saved_[2] = context.userEnabledMemEfficientSDP();
    saved_[3] = context.userEnabledMathSDP();
    set(backend == Backend::kCudnn, backend == Backend::kFlash, false, false);
  }
  ~OnlyBackend() { set(saved_[0], saved_[1], saved_[2], saved_[3]); }
  OnlyBackend(const OnlyBackend&) = delete;
  OnlyBackend& operator=(const OnlyBackend&) = delete;

 private:
  static void set(bool cudnn, bool flash, bool efficient, bool math) {
    at::Context& context = at::globalContext();
    context.setSDPUseCuDNN(cudnn);
    context.setSDPUseFlash(flash);
    context.setSDPUseMemEfficient(efficient);
    context.setSDPUseMath(math);
  }
  bool saved_[4] = {};
};

std::vector<at::Tensor> attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               Backend backend) {
  const OnlyBackend only(backend);
  return {at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/false, std::nullopt,
                                           /*enable_gqa=*/q.size(1) != k.size(1))};
}

Pair make_attention(const AttentionShape& s, const BenchContext& context) {
  const int64_t batch = context.rows(s.batch);
  const auto heads_first = [&](int64_t tokens, int64_t heads) {
    return context.randn({batch, tokens, heads, s.head_size}).transpose(1, 2);
  };
  const at::Tensor q = heads_first(s.queries, s.query_heads);
  const at::Tensor k = heads_first(s.keys, s.key_heads), v = heads_first(s.keys, s.key_heads);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {q, k, v};
  pair.ours = [q, k, v] { return attend(q, k, v, Backend::kCudnn); };
  pair.library = [q, k, v] { return attend(q, k, v, Backend::kFlash); };
  return pair;
}

/// Two products per pair of query and key.
double forward_flops(const Pair& pair) {
  const at::Tensor &q = pair.our_inputs[0], &k = pair.our_inputs[1];
  return 4.0 * static_cast<double>(q.numel()) * static_cast<double>(k.size(2));
}

}  // namespace

std::vector<OpRow> attention_rows() {
  std::vector<OpRow> rows;
  for (const AttentionShape& shape : kShapes) {
    PairedOp op;
    op.name = "attention cudnn";
    op.shape = shape.text;
    op.library = "flash";
    op.gpu_only = true;
    op.make = [shape](const BenchContext& context) { return make_attention(shape, context); };
    op.forward_bytes = [](const Pair& p) {
      return 2 * bytes_of(p.our_inputs[0]) + 2 * bytes_of(p.our_inputs[1]);
    };
    op.backward_bytes = [](const Pair& p) {
      return 4 * bytes_of(p.our_inputs[0]) + 4 * bytes_of(p.our_inputs[1]);
    };
    op.forward_flops = forward_flops;
    // Five products instead of two.
    op.backward_flops = [](const Pair& p) { return 2.5 * forward_flops(p); };
    add_paired_rows(rows, op);
  }
  return rows;
}

}  // namespace longship::bench
