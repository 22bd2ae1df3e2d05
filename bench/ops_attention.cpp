// Attention through the tensor library: cuDNN against flash, forward and backward.
#include <ATen/Context.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "bench/families.h"
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
    at::Context& context = at::globalContext();
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

struct AttentionSet {
  at::Tensor q, k, v, d_out;
};

AttentionSet make_set(const AttentionShape& s, const BenchContext& context) {
  const int64_t batch = context.rows(s.batch);
  const auto heads_first = [&](int64_t tokens, int64_t heads) {
    return context.randn({batch, tokens, heads, s.head_size}).transpose(1, 2);
  };
  return {heads_first(s.queries, s.query_heads), heads_first(s.keys, s.key_heads),
          heads_first(s.keys, s.key_heads), heads_first(s.queries, s.query_heads)};
}

at::Tensor attend(const AttentionSet& set, Backend backend) {
  const OnlyBackend only(backend);
  return at::scaled_dot_product_attention(set.q, set.k, set.v, {}, 0.0, /*is_causal=*/false,
                                          std::nullopt, set.q.size(1) != set.k.size(1));
}

void set_work(OpBench& op, const AttentionShape& s, const AttentionSet& set, bool backward) {
  const auto batch = static_cast<double>(set.q.size(0));
  const double products =
      4 * batch * static_cast<double>(s.query_heads * s.queries * s.keys * s.head_size);
  const double q_bytes = 2 * static_cast<double>(set.q.numel());
  const double kv_bytes = 4 * static_cast<double>(set.k.numel());
  op.flops = backward ? 2.5 * products : products;  // five products instead of two
  op.bytes = backward ? 4 * q_bytes + 2 * kv_bytes : 2 * q_bytes + kv_bytes;
}

OpBench forward(const AttentionShape& shape, const BenchContext& context) {
  const AttentionSet set = make_set(shape, context);
  OpBench op;
  set_work(op, shape, set, false);
  op.run = [set] { attend(set, Backend::kCudnn); };
  op.library.emplace_back("flash", [set] { attend(set, Backend::kFlash); });
  return op;
}

OpBench backward(const AttentionShape& shape, const BenchContext& context) {
  const AttentionSet set = make_set(shape, context);
  for (const at::Tensor& t : {set.q, set.k, set.v}) t.set_requires_grad(true);
  OpBench op;
  set_work(op, shape, set, true);
  op.run = backward_of(attend(set, Backend::kCudnn), {set.q, set.k, set.v}, set.d_out);
  op.library.emplace_back(
      "flash", deferred([set] {
        return backward_of(attend(set, Backend::kFlash), {set.q, set.k, set.v}, set.d_out);
      }));
  return op;
}

}  // namespace

std::vector<OpRow> attention_rows() {
  std::vector<OpRow> rows;
  for (const AttentionShape& shape : kShapes) {
    rows.push_back({"attention cudnn fwd", shape.text,
                    [shape](const BenchContext& context) { return forward(shape, context); },
                    /*gpu_only=*/true});
    rows.push_back({"attention cudnn bwd", shape.text,
                    [shape](const BenchContext& context) { return backward(shape, context); },
                    /*gpu_only=*/true});
  }
  return rows;
}

}  // namespace longship::bench
