// The Qwen3 blocks against the golden numbers of transformers and against compositions written out
// here.
#include "nn/qwen3.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "nn/init.h"
#include "nn/mrope.h"
#include "nn/qwen3_golden.h"
#include "nn/row_update.h"
#include "runtime/device.h"
#include "support/expect_error.h"

namespace longship::nn {
namespace {

using ::longship::testing::expect_error;
using testing::difference;
using testing::pack;
using testing::relative;
using Tensors = std::vector<at::Tensor>;

Qwen3Sizes small_sizes() {
  return {.vocab = 20,
          .width = 24,
          .mlp_dim = 40,
          .depth = 3,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 8,
          .theta = 1e4,
          .mrope_sections = {2, 1, 1}};
}

/// Random weights, norms around one.
void fill(Module& module, at::ScalarType dtype, at::Device device = at::kCPU) {
  module.materialise(device, [dtype](std::string_view) { return dtype; });
  module.for_each_parameter([](const std::string& name, at::Tensor& parameter) {
    init_normal(parameter, name, 3, parameter.dim() > 1 ? 0.2 : 0.3);
    if (parameter.dim() == 1) parameter.add_(1.0);
    parameter.set_requires_grad(true);
  });
}

/// Gradients of every parameter, undefined as zeros; the fields are cleared.
std::vector<std::pair<std::string, at::Tensor>> take_gradients(Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  module.for_each_parameter([&](const std::string& name, at::Tensor& parameter) {
    const at::Tensor grad = parameter.grad();
    out.emplace_back(name, grad.defined() ? grad.clone() : at::zeros_like(parameter));
    parameter.mutable_grad() = at::Tensor();
  });
  return out;
}

Fused every_switch() {
  Fused fused;
  fused.norms = fused.activations = fused.rope = fused.stacked = true;
  return fused;
}

/// Nothing, each switch alone, and all.
std::vector<Fused> every_choice() {
  std::vector<Fused> out(5);
  out[1].norms = out[2].activations = out[3].rope = out[4].stacked = true;
  out.push_back(every_switch());
  return out;
}

/// Whole inputs of a small model: packed samples with planes of positions that differ.
struct SmallInput {
  std::vector<int64_t> lengths{5, 1, 7};
  int64_t padding = 2;
  int64_t rows = 15;
  at::Tensor positions = at::randint(0, 30, {3, rows}, at::kLong);
  at::Tensor image_rows = at::tensor({1, 2, 8, 11}, at::kLong);
  PackedSamples samples = pack(lengths, padding);
};

// ---- The golden case. ---------------------------------------------------------------------------

TEST(Qwen3Golden, PositionsAreTheIntegersOfTheReference) {
  const auto expected = testing::golden_tensors("expected");
  const testing::PackedTexts texts = testing::golden_texts();
  const at::Tensor ours = mrope_positions(texts.token_ids, texts.lengths, testing::kImageToken,
                                          testing::golden_grids(), 2);
  const at::Tensor& reference = expected.at("text.position_ids");  // [3, B, S]
  const at::Tensor padded = at::ones({3, reference.size(1) * reference.size(2)}, at::kLong)
                                .index_copy(1, texts.places, ours)
                                .view_as(reference);
  EXPECT_TRUE(at::equal(padded, reference));
  EXPECT_TRUE(at::equal(padded, expected.at("text.rope_position_ids_used")));
  int64_t first = 0;
  for (size_t b = 0; b < texts.lengths.size();
       ++b) {  // the next position against the padded length
    const at::Tensor own = ours.narrow(1, first, texts.lengths[b]);
    EXPECT_EQ(own.max().item<int64_t>() + 1 - reference.size(2),
              expected.at("text.rope_deltas")[static_cast<int64_t>(b)].item<int64_t>());
    first += texts.lengths[b];
  }

  const Qwen3Sizes sizes = testing::golden_text_sizes();
  const RopeTable table = mrope_table(reference.flatten(1), sizes.head_dim, sizes.theta,
                                      sizes.mrope_sections, at::kFloat);
  const auto doubled = [&](const at::Tensor& half) {
    return at::cat({half, half}, -1).view({reference.size(1), reference.size(2), sizes.head_dim});
  };
  EXPECT_LE(difference(doubled(table.cos), expected.at("text.cos")), 1e-6);
  EXPECT_LE(difference(doubled(table.sin), expected.at("text.sin")), 1e-6);
}

TEST(Qwen3Golden, EveryLayerGivesTheReferencesStream) {
  const auto expected = testing::golden_tensors("expected");
  const testing::PackedTexts texts = testing::golden_texts();
  Qwen3Text model(testing::golden_text_sizes());
  testing::load_golden_weights(model, "model.language_model.");
  const int64_t padding = 1, count = texts.token_ids.size(0);  // one padding row behind the samples
  const at::Tensor ids =
      at::cat({texts.token_ids, at::full({padding}, testing::kPadToken, at::kLong)});
  const at::Tensor positions =
      mrope_positions(ids, texts.lengths, testing::kImageToken, testing::golden_grids(), 2);
  const Qwen3Deepstack deepstack{
      {expected.at("vision.deepstack0"), expected.at("vision.deepstack1"),
       expected.at("vision.deepstack2")},
      texts.image_rows};
  const auto valid = [&](const at::Tensor& padded) {
    return padded.flatten(0, 1).index_select(0, texts.places);
  };
  int seen = 0;
  model.tap = [&](std::string_view name, const at::Tensor& value) {
    std::string key(name);
    key[key.find('.')] = '_';
    EXPECT_LE(relative(value.narrow(0, 0, count), valid(expected.at(key))), 1e-5) << key;
    ++seen;
  };
  for (const Fused& fused : every_choice()) {
    model.fused = fused;
    const at::Tensor embedded =
        replace_rows(model.embed(ids), texts.image_rows, expected.at("vision.features"));
    const at::Tensor out = model.layers(embedded, pack(texts.lengths, padding),
                                        model.rope(positions, at::kFloat), 0, 5, deepstack);
    EXPECT_LE(relative(out.narrow(0, 0, count), valid(expected.at("pre_norm_hidden"))), 1e-5);
    const at::Tensor normed = model.final_norm(out);
    EXPECT_LE(relative(normed.narrow(0, 0, count), valid(expected.at("post_norm_hidden"))), 1e-5);
    // Every sample ends at the last column; the output head is the embedding table.
    const at::Tensor ends = pack(texts.lengths).cu_seqlens.narrow(0, 1, 3).to(at::kLong) - 1;
    const at::Tensor table = model.embed(at::arange(model.sizes().vocab, at::kLong));
    EXPECT_LE(relative(normed.index_select(0, ends).matmul(table.t()), expected.at("logits_last")),
              1e-5);
    // A padding row of a pack holds what stands at every padding place of the reference.
    EXPECT_LE(relative(out[count], expected.at("pre_norm_hidden")[1][0]), 1e-5);
    EXPECT_LE(relative(out[count], expected.at("pre_norm_hidden")[2][4]), 1e-5);
  }
  EXPECT_EQ(seen, 6 * 10);
}

// ---- Gradients. ---------------------------------------------------------------------------------

/// One sample through a Qwen3 layer, written out: complex rotations head by head, softmax over an
/// explicit score matrix.
at::Tensor plain_layer(const Qwen3Layer& layer, const Qwen3Sizes& s, const at::Tensor& h,
                       const at::Tensor& positions) {
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return weight * (x / (x.pow(2).mean({-1}, true) + s.eps).sqrt());
  };
  const auto turn = [&](const at::Tensor& x) {  // [T, E]
    std::vector<at::Tensor> first, second;
    for (int64_t k = 0; k < s.head_dim / 2; ++k) {
      int64_t axis = 0;
      if (k % 3 == 1 && k < 3 * s.mrope_sections[1]) axis = 1;
      if (k % 3 == 2 && k < 3 * s.mrope_sections[2]) axis = 2;
      const double step =
          std::pow(s.theta, -2.0 * static_cast<double>(k) / static_cast<double>(s.head_dim));
      const at::Tensor angle = positions[axis].to(at::kDouble) * step;
      const at::Tensor a = x.select(1, k), b = x.select(1, k + s.head_dim / 2);
      first.push_back(a * angle.cos() - b * angle.sin());
      second.push_back(a * angle.sin() + b * angle.cos());
    }
    first.insert(first.end(), second.begin(), second.end());
    return at::stack(first, 1);
  };
  const at::Tensor x = norm(h, layer.input_layernorm.weight);
  const at::Tensor q = x.matmul(layer.self_attn.q_proj.weight.t());
  const at::Tensor k = x.matmul(layer.self_attn.k_proj.weight.t());
  const at::Tensor v = x.matmul(layer.self_attn.v_proj.weight.t());
  std::vector<at::Tensor> heads;
  const at::Tensor future =
      at::full({h.size(0), h.size(0)}, -1e30, h.options().requires_grad(false)).triu(1);
  for (int64_t i = 0; i < s.num_heads; ++i) {
    const int64_t g = i / (s.num_heads / s.num_kv_heads), e = s.head_dim;
    const at::Tensor qi = turn(norm(q.narrow(1, i * e, e), layer.self_attn.q_norm.weight));
    const at::Tensor kg = turn(norm(k.narrow(1, g * e, e), layer.self_attn.k_norm.weight));
    const at::Tensor scores = qi.matmul(kg.t()) / std::sqrt(static_cast<double>(e)) + future;
    heads.push_back(scores.softmax(-1).matmul(v.narrow(1, g * e, e)));
  }
  const at::Tensor middle = h + at::cat(heads, 1).matmul(layer.self_attn.o_proj.weight.t());
  const at::Tensor y = norm(middle, layer.post_attention_layernorm.weight);
  const at::Tensor gate = y.matmul(layer.mlp.gate_proj.weight.t());
  const at::Tensor up = y.matmul(layer.mlp.up_proj.weight.t());
  return middle + (gate * gate.sigmoid() * up).matmul(layer.mlp.down_proj.weight.t());
}

TEST(Qwen3, GradientsOfALayerAreThoseOfItsFormula) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  Qwen3Layer layer(sizes);
  fill(layer, at::kDouble);
  const RopeTable rope =
      mrope_table(in.positions, sizes.head_dim, sizes.theta, sizes.mrope_sections, at::kDouble);
  const at::Tensor start = at::randn({in.rows, sizes.width}, at::kDouble);
  const int64_t valid = in.rows - in.padding;
  const at::Tensor dout = at::randn({valid, sizes.width}, at::kDouble);
  for (const Fused& fused : every_choice()) {
    at::Tensor h = start.clone().set_requires_grad(true);
    const at::Tensor out = layer.forward(h, in.samples, rope, fused).narrow(0, 0, valid);
    out.backward(dout);
    const auto ours = take_gradients(layer);

    at::Tensor plain_h = start.clone().set_requires_grad(true);
    Tensors samples;
    int64_t first = 0;
    for (const int64_t length : in.lengths) {
      samples.push_back(plain_layer(layer, sizes, plain_h.narrow(0, first, length),
                                    in.positions.narrow(1, first, length)));
      first += length;
    }
    const at::Tensor plain = at::cat(samples);
    plain.backward(dout);
    const auto reference = take_gradients(layer);
    EXPECT_LE(relative(out.detach(), plain.detach()), 1e-12);
    EXPECT_LE(relative(h.grad(), plain_h.grad()), 1e-11);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_GT(reference[i].second.abs().max().item<double>(), 0) << ours[i].first;
      EXPECT_LE(relative(ours[i].second, reference[i].second), 1e-11) << ours[i].first;
    }
  }
}

/// Output, gradient of the input and gradients of all parameters of three layers with features of
/// pictures, in the dtypes of `model` and `stream`; on the CPU, as fp64.
Tensors pass_of(Qwen3Text& model, const SmallInput& in, const at::Tensor& start,
                const at::Tensor& add, at::ScalarType stream, at::Device device = at::kCPU) {
  const auto placed = [&](const at::Tensor& t) { return t.to(device); };
  const PackedSamples samples{placed(in.samples.cu_seqlens), placed(in.samples.segment_ids),
                              in.samples.longest};
  const at::Tensor h = placed(start.to(stream)).clone().set_requires_grad(true);
  const at::Tensor out = model.layers(h, samples, model.rope(placed(in.positions), stream), 0, 3,
                                      {{placed(add.to(stream))}, placed(in.image_rows)});
  EXPECT_EQ(out.scalar_type(), stream);
  out.to(at::kDouble).pow(2).sum().backward();
  Tensors results{out.detach(), h.grad()};
  for (const auto& [name, grad] : take_gradients(model)) results.push_back(grad);
  for (at::Tensor& t : results) t = t.cpu().to(at::kDouble);
  return results;
}

struct Pass {
  at::ScalarType weights, stream;
  double bound;  // of |ours - fp64| / |fp64| of each result
};

/// Every choice of switches against fp64 on the CPU.
void expect_close_to_fp64(const Pass& pass, at::Device device) {
  Qwen3Sizes sizes = small_sizes();
  sizes.head_dim = 32;
  sizes.mrope_sections = {6, 5, 5};
  const SmallInput in;
  const at::Tensor start = at::randn({in.rows, sizes.width}).to(at::kBFloat16);
  const at::Tensor add = at::randn({4, sizes.width}).to(at::kBFloat16);
  Qwen3Text exact(sizes), ours(sizes);
  fill(exact, at::kDouble);
  fill(ours, pass.weights, device);
  const Tensors reference = pass_of(exact, in, start, add, at::kDouble);
  std::vector<Fused> choices = every_choice();
  if (device.is_cuda()) {
    for (const Fused& fused : every_choice()) choices.push_back(fused);
    for (size_t i = choices.size() / 2; i < choices.size(); ++i) choices[i].attention = true;
  }
  for (const Fused& fused : choices) {
    ours.fused = fused;
    const Tensors results = pass_of(ours, in, start, add, pass.stream, device);
    for (size_t i = 0; i < results.size(); ++i) {
      const double norm = reference[i].norm().item<double>();
      if (norm == 0) continue;
      EXPECT_LE((results[i] - reference[i]).norm().item<double>() / norm, pass.bound)
          << "result " << i << ", norms " << fused.norms << ", activations " << fused.activations
          << ", rope " << fused.rope << ", stacked " << fused.stacked << ", attention "
          << fused.attention;
    }
  }
}

TEST(Qwen3, FusedOperatorsGiveThePlainResultsAndGradients) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  const at::Tensor start = at::randn({in.rows, sizes.width});
  const at::Tensor add = at::randn({4, sizes.width});
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Qwen3Text model(sizes);
    fill(model, dtype);
    const Tensors plain = pass_of(model, in, start, add, dtype);
    for (const Fused& fused : every_choice()) {
      model.fused = fused;
      const Tensors ours = pass_of(model, in, start, add, dtype);
      for (size_t i = 0; i < plain.size(); ++i) {
        if (plain[i].abs().max().item<double>() == 0) continue;
        EXPECT_LE(relative(ours[i], plain[i]), dtype == at::kDouble ? 1e-11 : 1e-4) << i;
      }
    }
  }
}

TEST(Qwen3, Bf16IsCloseToFp64WithEverySwitch) {
  // 5.1e-2 seen of the plain operators; weights of fp32 beside a bf16 stream are cast.
  expect_close_to_fp64({at::kBFloat16, at::kBFloat16, 8e-2}, at::kCPU);
  expect_close_to_fp64({at::kFloat, at::kBFloat16, 8e-2}, at::kCPU);
}

TEST(Qwen3, GradientsReachFeaturesEmbeddingsAndEveryLayer) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  Qwen3Text model(sizes);
  fill(model, at::kDouble);
  const at::Tensor ids = at::randint(0, sizes.vocab, {in.rows}, at::kLong);
  const auto feature = [&] {
    return at::randn({in.image_rows.size(0), sizes.width}, at::kDouble).set_requires_grad(true);
  };
  const at::Tensor picture = feature();
  const Qwen3Deepstack deepstack{{feature(), feature()}, in.image_rows};
  const at::Tensor weight = at::randn({in.rows, sizes.width}, at::kDouble);
  const auto loss = [&] {
    const at::Tensor h = replace_rows(model.embed(ids), in.image_rows, picture);
    const at::Tensor out = model.layers(h, in.samples, model.rope(in.positions, at::kDouble), 0,
                                        sizes.depth, deepstack);
    return (model.final_norm(out) * weight).sum();
  };
  loss().backward();
  for (const auto& [name, grad] : take_gradients(model)) {
    EXPECT_GT(grad.abs().max().item<double>(), 0) << name;
  }
  // Features: against differences of the loss.
  const at::AutoGradMode no_grad(false);
  for (const at::Tensor& f : {picture, deepstack.features[0], deepstack.features[1]}) {
    const at::Tensor way = at::randn_like(f), before = f.clone();
    const double step = 1e-6;
    f.copy_(before + way * step);
    const double up = loss().item<double>();
    f.copy_(before - way * step);
    const double down = loss().item<double>();
    f.copy_(before);
    const double expected = (f.grad() * way).sum().item<double>();
    EXPECT_NEAR((up - down) / (2 * step), expected, 1e-6 * (1 + std::abs(expected)));
  }
}

// ---- Packs, units, shapes. ----------------------------------------------------------------------

TEST(Qwen3, APackGivesItsSamplesAlone) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  Qwen3Text model(sizes);
  fill(model, at::kDouble);
  const at::AutoGradMode no_grad(false);
  const at::Tensor h = at::randn({in.rows, sizes.width}, at::kDouble);
  const at::Tensor add = at::randn({in.image_rows.size(0), sizes.width}, at::kDouble);
  const at::Tensor all = model.layers(h, in.samples, model.rope(in.positions, at::kDouble), 0, 3,
                                      {{add}, in.image_rows});
  int64_t first = 0;
  for (const int64_t length : in.lengths) {
    const auto inside = [&](int64_t row) { return row >= first && row < first + length; };
    std::vector<int64_t> rows;
    Tensors parts{at::zeros({0, sizes.width}, at::kDouble)};
    for (int64_t m = 0; m < in.image_rows.size(0); ++m) {
      const int64_t row = in.image_rows[m].item<int64_t>();
      if (!inside(row)) continue;
      rows.push_back(row - first);
      parts.push_back(add.narrow(0, m, 1));
    }
    const at::Tensor alone =
        model.layers(h.narrow(0, first, length), pack(std::vector<int64_t>{length}),
                     model.rope(in.positions.narrow(1, first, length), at::kDouble), 0, 3,
                     {{at::cat(parts)}, at::tensor(at::IntArrayRef(rows), at::kLong)});
    EXPECT_LE(relative(all.narrow(0, first, length), alone), 1e-12);
    first += length;
  }
}

TEST(Qwen3, LayersRunAsUnitsAndInRanges) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  Qwen3Text model(sizes);
  fill(model, at::kFloat);
  const at::Tensor start = at::randn({in.rows, sizes.width});
  const Qwen3Deepstack deepstack{{at::randn({4, sizes.width}), at::randn({4, sizes.width})},
                                 in.image_rows};
  const RopeTable rope = model.rope(in.positions, at::kFloat);
  const auto pass = [&](bool in_two_ranges) {
    at::Tensor h = start.clone().set_requires_grad(true);
    const at::Tensor middle =
        in_two_ranges ? model.layers(h, in.samples, rope, 0, 1, deepstack) : h;
    const at::Tensor out =
        model.layers(middle, in.samples, rope, in_two_ranges ? 1 : 0, 3, deepstack);
    out.pow(2).sum().backward();
    Tensors results{out.detach(), h.grad()};
    for (const auto& [name, grad] : take_gradients(model)) results.push_back(grad);
    return results;
  };
  for (const Fused& fused : {Fused{}, every_switch()}) {
    model.fused = fused;
    model.run = nullptr;
    const Tensors kept = pass(false);
    std::vector<int64_t> order;
    model.run = [&](int64_t layer, const UnitFunction& unit, const Tensors& inputs) {
      order.push_back(layer);
      return run_unit(nullptr, "unit", /*recomputed=*/true, unit, inputs);
    };
    const Tensors again = pass(true);
    EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2}));
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], again[i])) << i;
  }
}

TEST(Qwen3, PlainRotationIsTheOneOfEqualAxes) {
  Qwen3Sizes sizes = small_sizes();
  const at::Tensor positions = at::arange(40, at::kLong).unsqueeze(0);
  const Qwen3Text three(sizes);
  sizes.mrope_sections = {};
  const Qwen3Text plain(sizes);
  const RopeTable one = plain.rope(positions, at::kFloat);
  const RopeTable reference = rope_table(positions[0], sizes.head_dim, sizes.theta, at::kFloat);
  EXPECT_LE(difference(one.cos, reference.cos), 1e-5);
  for (const Qwen3Text* model : {&three, &plain}) {
    const RopeTable other = model->rope(positions.expand({3, 40}), at::kFloat);
    EXPECT_TRUE(at::equal(other.cos, one.cos));
    EXPECT_TRUE(at::equal(other.sin, one.sin));
  }
}

TEST(Qwen3, ShapesWithoutMemory) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  Qwen3Text model(sizes);  // on the meta device
  const auto meta = [](const at::Tensor& t) { return t.to(at::kMeta); };
  const at::Tensor ids = meta(at::zeros({in.rows}, at::kLong));
  const at::Tensor features = meta(at::zeros({4, sizes.width}));
  const at::Tensor h = replace_rows(model.embed(ids), meta(in.image_rows), features);
  const PackedSamples samples{meta(in.samples.cu_seqlens), meta(in.samples.segment_ids), 7};
  for (const Fused& fused : every_choice()) {
    model.fused = fused;
    const at::Tensor out = model.layers(h, samples, model.rope(meta(in.positions), at::kFloat), 0,
                                        3, {{features}, meta(in.image_rows)});
    EXPECT_EQ(model.final_norm(out).sizes(), (at::IntArrayRef{in.rows, sizes.width}));
  }
}

TEST(Qwen3, NormRoundsBeforeItsWeight) {
  const at::Tensor x = at::randn({50, 64}).to(at::kBFloat16);
  const at::Tensor weight = at::randn({64}).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed =
      (wide * (wide.pow(2).mean({-1}, true) + 1e-6).rsqrt()).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(scaled_rms_norm(x, weight, 1e-6), normed * weight));
  const at::Tensor trained = weight.to(at::kFloat) + 1e-4;
  EXPECT_TRUE(at::equal(scaled_rms_norm(x, trained, 1e-6), normed * trained));  // fp32
}

TEST(Qwen3, TrainableFp32LayersKeepABf16Stream) {
  const Qwen3Sizes sizes = small_sizes();
  const SmallInput in;
  Qwen3Text model(sizes);
  fill(model, at::kFloat);
  for (const Fused& fused : every_choice()) {
    model.fused = fused;
    const at::Tensor h = at::randn({in.rows, sizes.width}).to(at::kBFloat16);
    const RopeTable rope = model.rope(in.positions, at::kBFloat16);
    const at::Tensor out = model.layers(h, in.samples, rope, 0, 3);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    EXPECT_EQ(model.final_norm(out).scalar_type(), at::kBFloat16);
    out.to(at::kFloat).pow(2).sum().backward();
    for (const auto& [name, grad] : take_gradients(model))
      EXPECT_EQ(grad.scalar_type(), at::kFloat) << name;
  }
}

TEST(Qwen3, WrongInputsAreNamed) {
  Qwen3Sizes sizes = small_sizes();
  sizes.mrope_sections = {2, 2, 1};
  expect_error<ConfigError>([&] { Qwen3Text model(sizes); }, {"2 + 2 + 1", "8"});
  const at::Tensor ids = at::tensor({7, 9, 9, 7, 9, 9}, at::kLong);
  const std::vector<int64_t> lengths{3, 3};
  using Grids = std::vector<std::array<int64_t, 2>>;
  const auto positions = [&](const Grids& grids) { mrope_positions(ids, lengths, 9, grids, 2); };
  EXPECT_NO_THROW(positions({{2, 4}, {4, 2}}));
  expect_error<DataError>([&] { positions({{2, 4}}); }, {"sample 1", "only 1 pictures"});
  expect_error<DataError>(
      [&] {
        positions({{2, 4}, {4, 4}});
      },
      {"sample 1", "picture 1", "4x4", "takes 4", "found 2"});
  expect_error<DataError>([&] { positions({{2, 4}, {4, 2}, {2, 2}}); }, {"3 pictures", "for 2"});
  expect_error<DataError>([&] { positions({{2, 3}, {4, 2}}); }, {"picture 0", "2x3"});
  const at::Tensor h = at::zeros({5, 4});
  expect_error<ShapeError>(
      [&] {
        add_rows(h, at::tensor({1, 2}, at::kLong), at::zeros({3, 4}));
      },
      {"3 rows", "2 places"});
}

TEST(Qwen3Gpu, PackedBf16LayersAreCloseToFp64) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Device gpu(at::kCUDA, 0);
  expect_close_to_fp64({at::kBFloat16, at::kBFloat16, 8e-2}, gpu);  // 5.1e-2 seen on an H200
  expect_close_to_fp64({at::kFloat, at::kBFloat16, 8e-2}, gpu);
  expect_close_to_fp64({at::kFloat, at::kFloat, 1e-4}, gpu);
}

}  // namespace
}  // namespace longship::nn
