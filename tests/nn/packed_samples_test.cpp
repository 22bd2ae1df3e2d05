// A pack gives the outputs, the losses and the gradients of its samples alone.
#include "nn/packed_samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "data/packing.h"
#include "nn/rope.h"
#include "runtime/device.h"

namespace longship::nn {
namespace {

constexpr int64_t kVocab = 40, kHeads = 4, kGroups = 2, kDim = 6, kWidth = 16;

at::Tensor normal(std::vector<int64_t> sizes, uint64_t part) {
  at::Tensor out = at::empty(sizes, at::kDouble);
  fill_normal(make_key(5, RngStream::kTest, part),
              std::span<double>(out.mutable_data_ptr<double>(), static_cast<size_t>(out.numel())));
  return out;
}

struct Sample {
  std::vector<int64_t> tokens;  // the last is target only
  int64_t first_label = 0;      // tokens before it are prompt, without a loss
};

Sample make_sample(int64_t index) {
  Sample out;
  const uint64_t bits = random_bits(make_key(6, RngStream::kTest), static_cast<uint64_t>(index));
  const int64_t length = 2 + static_cast<int64_t>(bits % 11);
  for (int64_t t = 0; t <= length; ++t) {
    out.tokens.push_back(static_cast<int64_t>(
        random_bits(make_key(7, RngStream::kTest, uint64_t(index)), uint64_t(t)) % kVocab));
  }
  out.first_label = static_cast<int64_t>((bits >> 8) % static_cast<uint64_t>(length));
  return out;
}

int64_t rows_of(const Sample& s) {
  return static_cast<int64_t>(s.tokens.size()) - 1;
}

/// Two layers of a decoder: rotary attention over packed rows and an MLP, with a tied output.
struct Decoder {
  Decoder() {
    const auto add = [&](std::vector<int64_t> sizes, double scale) {
      weights.push_back((normal(sizes, weights.size()) * scale).set_requires_grad(true));
      return weights.back();
    };
    embedding = add({kVocab, kWidth}, 1.0);
    for (int layer = 0; layer < 2; ++layer) {
      add({kWidth, (kHeads + 2 * kGroups) * kDim}, 0.3);
      add({kHeads * kDim, kWidth}, 0.3);
      add({kWidth, 2 * kWidth}, 0.3);
      add({2 * kWidth, kWidth}, 0.3);
    }
  }
  /// Losses of the rows, [T], for the targets.
  at::Tensor losses(const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& positions,
                    const PackedSamples& samples, bool causal) const {
    at::Tensor x = embedding.index_select(0, ids);
    const RopeTable rope = rope_table(positions, kDim, 100.0, at::kDouble);
    for (size_t w = 1; w < weights.size(); w += 4) {
      const at::Tensor qkv =
          at::matmul(x, weights[w]).view({ids.size(0), kHeads + 2 * kGroups, kDim});
      const auto parts = qkv.split_with_sizes({kHeads, kGroups, kGroups}, 1);
      const at::Tensor mixed = packed_self_attention(
          apply_rope(parts[0], rope), apply_rope(parts[1], rope), parts[2], samples, causal,
          /*flash=*/true);
      x = x + at::matmul(mixed, weights[w + 1]);
      x = x + at::matmul(at::gelu(at::matmul(x, weights[w + 2])), weights[w + 3]);
    }
    const at::Tensor logits = at::matmul(x, embedding.t());
    return at::log_softmax(logits, -1).gather(1, targets.unsqueeze(1)).squeeze(1).neg();
  }
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> out;
    for (at::Tensor& w : weights) {
      out.push_back(w.grad().clone());
      w.mutable_grad() = at::Tensor();
    }
    return out;
  }
  at::Tensor embedding;
  std::vector<at::Tensor> weights;
};

struct Rows {
  at::Tensor ids, targets, positions;
  PackedSamples samples;
};

Rows rows_of_pack(const data::Pack& pack, int64_t num_rows) {
  const data::PackLayout layout = data::make_pack_layout(pack, num_rows);
  Rows out;
  std::vector<int64_t> ids, targets;
  for (const data::PackItem& item : pack.items) {
    const Sample s = make_sample(item.sample_id);
    ids.insert(ids.end(), s.tokens.begin(), s.tokens.end() - 1);
    targets.insert(targets.end(), s.tokens.begin() + 1, s.tokens.end());
  }
  ids.resize(static_cast<size_t>(num_rows), 3);  // any token
  targets.resize(static_cast<size_t>(num_rows), 0);
  out.ids = at::tensor(ids, at::kLong);
  out.targets = at::tensor(targets, at::kLong);
  out.positions = at::tensor(layout.position_ids, at::kLong);
  out.samples = {at::tensor(layout.cu_seqlens, at::kInt), at::tensor(layout.segment_ids, at::kInt),
                 layout.longest};
  return out;
}

data::PackItem item_of(int64_t position) {
  const Sample s = make_sample(position);
  return {position, position, rows_of(s), 0, rows_of(s) - s.first_label};
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double bound) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LE((got - want).abs().max().item<double>(), bound);
}

// Losses of every row, the step's loss and every weight's gradient, packed with padding rows
// against one sample at a time.
TEST(PackedSamples, EqualsTheSamplesAlone) {
  const int64_t count = 11;
  for (const bool causal : {true, false}) {
    for (const auto mean : {data::LossMean::kTokens, data::LossMean::kSamples}) {
      data::PackOptions options;
      options.token_budget = 32;
      options.window = 5;
      data::Packer packer(options, item_of, count);
      std::vector<data::Pack> packs;
      for (data::Pack p = packer.next(); !p.items.empty(); p = packer.next()) packs.push_back(p);
      ASSERT_GE(packs.size(), 2u);
      const auto weights = data::pack_loss_weights(packs, mean);

      Decoder model;
      at::Tensor packed_loss = at::zeros({}, at::kDouble);
      std::vector<at::Tensor> packed_rows(static_cast<size_t>(count));
      for (size_t p = 0; p < packs.size(); ++p) {
        const Rows rows = rows_of_pack(packs[p], options.token_budget);
        const at::Tensor losses =
            model.losses(rows.ids, rows.targets, rows.positions, rows.samples, causal);
        at::Tensor factor = at::zeros({options.token_budget}, at::kDouble);
        int64_t first = 0;
        for (size_t s = 0; s < packs[p].items.size(); ++s) {
          const data::PackItem& item = packs[p].items[s];
          const int64_t prompt = item.tokens - item.labels;
          factor.narrow(0, first + prompt, item.labels).fill_(weights[p][s]);
          packed_rows[static_cast<size_t>(item.position)] =
              losses.detach().narrow(0, first, item.tokens);
          first += item.tokens;
        }
        // One backward pass per pack, as micro-batches or ranks do: gradients add up.
        const at::Tensor loss = (losses * factor).sum();
        loss.backward();
        packed_loss = packed_loss + loss.detach();
      }
      const auto packed_gradients = model.take_gradients();

      std::vector<at::Tensor> terms;
      int64_t labels = 0;
      for (int64_t i = 0; i < count; ++i) {
        data::Pack alone;
        alone.items = {item_of(i)};
        alone.tokens = alone.items[0].tokens;
        const Rows rows = rows_of_pack(alone, alone.tokens);
        const at::Tensor losses =
            model.losses(rows.ids, rows.targets, rows.positions, rows.samples, causal);
        expect_near(packed_rows[static_cast<size_t>(i)], losses.detach(), 1e-12);
        const int64_t own = alone.items[0].labels;
        const at::Tensor labelled = losses.narrow(0, alone.tokens - own, own);
        terms.push_back(mean == data::LossMean::kTokens ? labelled.sum() : labelled.mean());
        labels += own;
      }
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (const at::Tensor& term : terms) sum = sum + term;
      const at::Tensor loss =
          sum / static_cast<double>(mean == data::LossMean::kTokens ? labels : count);
      loss.backward();
      expect_near(packed_loss, loss.detach(), 1e-12);
      const auto gradients = model.take_gradients();
      for (size_t w = 0; w < gradients.size(); ++w) {
        EXPECT_GT(gradients[w].abs().max().item<double>(), 1e-4) << w;
        expect_near(packed_gradients[w], gradients[w], 1e-12);
      }
    }
  }
}

PackedSamples three_samples(at::Device device) {
  const auto options = at::TensorOptions(at::kInt);
  return {at::tensor(std::vector<int32_t>{0, 5, 6, 13}, options).to(device),
          at::tensor(std::vector<int32_t>{1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0}, options)
              .to(device),
          7};
}

TEST(PackedSamples, PaddingRowsAreZeroAndReachNothing) {
  const PackedSamples samples = three_samples(at::kCPU);
  for (const bool causal : {true, false}) {
    const at::Tensor q = normal({16, kHeads, kDim}, 100).set_requires_grad(true);
    const at::Tensor k = normal({16, kGroups, kDim}, 101).set_requires_grad(true);
    const at::Tensor v = normal({16, kGroups, kDim}, 102).set_requires_grad(true);
    const at::Tensor out = packed_self_attention(q, k, v, samples, causal, true);
    EXPECT_EQ(out.narrow(0, 13, 3).abs().max().item<double>(), 0.0);
    (out * normal({16, kHeads * kDim}, 103)).sum().backward();
    for (const at::Tensor& x : {q, k, v}) {
      EXPECT_EQ(x.grad().narrow(0, 13, 3).abs().max().item<double>(), 0.0);
      EXPECT_GT(x.grad().narrow(0, 6, 7).abs().max().item<double>(), 0.0);
    }
    // A sample of one row sees itself: its value.
    const at::Tensor own = v.detach().narrow(0, 5, 1).repeat_interleave(kHeads / kGroups, 1);
    expect_near(out.detach().narrow(0, 5, 1), own.view({1, kHeads * kDim}), 1e-12);
  }
}

// What devices do without the kernels: places up to a bound, samples without rows among them.
TEST(PackedSamples, PaddedRowsGiveTheSame) {
  const auto ints = at::TensorOptions(at::kInt);
  PackedSamples samples;
  samples.cu_seqlens = at::tensor(std::vector<int32_t>{0, 0, 5, 6, 6, 13, 13}, ints);
  samples.segment_ids =
      at::tensor(std::vector<int32_t>{2, 2, 2, 2, 2, 3, 5, 5, 5, 5, 5, 5, 5, 0, 0, 0}, ints);
  const at::Tensor direction = normal({16, kHeads * kDim}, 203);
  for (const int64_t longest : {7, 10}) {
    samples.longest = longest;
    for (const bool causal : {true, false}) {
      const auto run = [&](const auto& attend) {
        std::vector<at::Tensor> x = {normal({16, kHeads, kDim}, 200),
                                     normal({16, kGroups, kDim}, 201),
                                     normal({16, kGroups, kDim}, 202)};
        for (at::Tensor& leaf : x) leaf.set_requires_grad(true);
        const at::Tensor out = attend(x[0], x[1], x[2]);
        (out * direction).sum().backward();
        return std::vector<at::Tensor>{out.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
      };
      const auto want = run([&](const auto& q, const auto& k, const auto& v) {
        return packed_self_attention(q, k, v, samples, causal, true);
      });
      const auto got = run([&](const auto& q, const auto& k, const auto& v) {
        return padded_self_attention(q, k, v, samples, causal);
      });
      const auto masked = run([&](const auto& q, const auto& k, const auto& v) {
        return packed_self_attention(q, k, v, {{}, samples.segment_ids, longest}, causal, true);
      });
      for (size_t i = 0; i < want.size(); ++i) {
        expect_near(got[i], want[i], 1e-12);
        expect_near(masked[i], want[i], 1e-12);
        EXPECT_EQ(got[i].narrow(0, 13, 3).abs().max().item<double>(), 0.0) << i;
      }
    }
  }
}

TEST(PackedSamples, FaultsNameTheShapes) {
  const PackedSamples samples = three_samples(at::kCPU);
  const at::Tensor q = normal({15, kHeads, kDim}, 1), k = normal({15, kGroups, kDim}, 2);
  EXPECT_THROW(packed_self_attention(q, k, k, samples, true, true), ShapeError);
}

// On the GPU with and without flash kernels, and with heads that they do not take.
TEST(PackedSamplesGpu, EveryWayEqualsTheSamplesAlone) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  struct Way {
    bool flash;
    int64_t head_dim;
  };
  for (const Way& way : {Way{true, 64}, Way{false, 64}, Way{true, 36}}) {
    const bool flash = way.flash;
    const int64_t head_dim = way.head_dim;
    SCOPED_TRACE("flash " + std::to_string(flash) + ", heads of " + std::to_string(head_dim));
    for (const int64_t groups : {1, 2}) {
      for (const bool causal : {true, false}) {
        const auto leaf = [](const at::Tensor& x, at::Device device) {
          return x.detach().to(device).set_requires_grad(true);
        };
        std::vector<at::Tensor> inputs = {normal({16, kHeads, head_dim}, 1).to(at::kBFloat16),
                                          normal({16, groups, head_dim}, 2).to(at::kBFloat16),
                                          normal({16, groups, head_dim}, 3).to(at::kBFloat16)};
        const at::Tensor direction = normal({16, kHeads * head_dim}, 4);
        const auto run = [&](at::Device device, at::ScalarType type) {
          std::vector<at::Tensor> x;
          for (const at::Tensor& input : inputs) x.push_back(leaf(input.to(type), device));
          const at::Tensor out =
              packed_self_attention(x[0], x[1], x[2], three_samples(device), causal, flash);
          (out.to(at::kDouble) * direction.to(device)).sum().backward();
          std::vector<at::Tensor> results = {out.detach().cpu().to(at::kDouble)};
          for (const at::Tensor& leaf_of : x)
            results.push_back(leaf_of.grad().cpu().to(at::kDouble));
          return results;
        };
        const auto got = run(at::kCUDA, at::kBFloat16), want = run(at::kCPU, at::kDouble);
        for (size_t i = 0; i < got.size(); ++i) {
          const double scale = want[i].abs().max().item<double>();
          EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), 1.6e-2 * scale) << i;
          EXPECT_EQ(got[i].narrow(0, 13, 3).abs().max().item<double>(), 0.0) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace longship::nn
