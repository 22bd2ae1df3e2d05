// stream_norm (inputs h, scale, shift; outputs h, y), add_stream_norm (inputs h, branch, bias,
// scale, shift; outputs x, y) and add_dropped (inputs h, branch, bias).
#include "ops/stream_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/rng.h"
#include "norm_support.h"
#include "ops/dropout.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::ops {
namespace {

using test::Op;
using test::OpRun;
using test::random;
using test::run_op;
using test::Tensors;

constexpr double kEps = 1e-5;
constexpr double kP = 0.2;

at::Tensor make_keys(int64_t count, uint64_t seed = 7) {
  at::Tensor keys = at::empty({count}, at::TensorOptions(at::kLong));
  for (int64_t b = 0; b < count; ++b) {
    keys[b].fill_(static_cast<int64_t>(
        random_bits(make_key(seed, RngStream::kTest), static_cast<uint64_t>(b))));
  }
  return keys;
}

/// How the operators are called. h is [samples, rows, width]; parameters are absent, one row, or
/// one row a sample.
struct Case {
  int64_t samples, rows, width;
  int64_t groups = 0;  // rows of scale and shift; 0: none
  bool plus_one = true;
  std::vector<int64_t> sites = {};
  bool bias = true;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.samples << "x" << c.rows << "x" << c.width << ", " << c.groups << " groups"
       << (c.plus_one ? " plus one" : "") << ", " << c.sites.size() << " sites"
       << (c.bias ? ", bias" : "");
}

std::string text_of(const Case& c) {
  std::ostringstream out;
  PrintTo(c, &out);
  return out.str();
}

StreamBranch branch_of(const Case& c, const at::Tensor& values, const at::Tensor& bias) {
  return {values, bias, make_keys(c.samples).to(values.device()), c.sites, kP};
}

Op norm_alone(const Case& c, at::ScalarType product) {
  return [=](const Tensors& in) {
    auto [h, y] = stream_norm(in[0], {in[1], in[2], c.plus_one, kEps}, product);
    return Tensors{h, y};
  };
}

Op added(const Case& c) {
  return [=](const Tensors& in) {
    auto [x, y] =
        add_stream_norm(in[0], branch_of(c, in[1], in[2]), {in[3], in[4], c.plus_one, kEps});
    return Tensors{x, y};
  };
}

Op only_added(const Case& c) {
  return [=](const Tensors& in) { return Tensors{add_dropped(in[0], branch_of(c, in[1], in[2]))}; };
}

/// The definition, from library operators and ops::dropout.
Tensors norm_composite(const Case& c, const at::Tensor& h, const at::Tensor& scale,
                       const at::Tensor& shift, at::ScalarType product) {
  at::Tensor y = at::layer_norm(h, {h.size(-1)}, {}, {}, kEps);
  const auto rows = [](const at::Tensor& p) { return p.dim() == 2 ? p.unsqueeze(1) : p; };
  if (scale.defined()) y = y * rows(c.plus_one ? scale + 1.0 : scale);
  if (shift.defined()) y = y + rows(shift);
  return {h, y.to(product)};
}

at::Tensor add_composite(const Case& c, const at::Tensor& h, const at::Tensor& branch,
                         const at::Tensor& bias) {
  at::Tensor v = bias.defined() ? branch + bias : branch;
  for (const int64_t site : c.sites) v = dropout(v, make_keys(c.samples), site, kP);
  return h + v;
}

Op composite(const Case& c, at::ScalarType product) {
  return [=](const Tensors& in) {
    return norm_composite(c, add_composite(c, in[0], in[1], in[2]), in[3], in[4], product);
  };
}

Op composite_alone(const Case& c, at::ScalarType product) {
  return [=](const Tensors& in) { return norm_composite(c, in[0], in[1], in[2], product); };
}

at::Tensor matrix(const Case& c, at::ScalarType type) {
  return random({c.samples, c.rows, c.width}, type);
}

at::Tensor parameter(const Case& c, at::ScalarType type) {
  if (c.groups == 0) return {};
  return c.groups == 1 ? random({c.width}, type) : random({c.groups, c.width}, type);
}

/// h, branch, bias, scale, shift.
Tensors inputs_of(const Case& c, at::ScalarType stream = at::kDouble,
                  at::ScalarType product = at::kDouble, at::ScalarType params = at::kDouble) {
  return {matrix(c, stream), matrix(c, product), c.bias ? random({c.width}, params) : at::Tensor(),
          parameter(c, params), parameter(c, params)};
}

Tensors without_branch(const Tensors& in) {
  return {in[0], in[3], in[4]};
}

Tensors only_branch(const Tensors& in) {
  return {in[0], in[1], in[2]};
}

class StreamNormCases : public ::testing::TestWithParam<Case> {};

TEST_P(StreamNormCases, MatchesDefinitionAndItsGradients) {
  const Case c = GetParam();
  const Tensors in = inputs_of(c);
  const at::Tensor dh = matrix(c, at::kDouble), dy = matrix(c, at::kDouble), none;
  const auto expect_same = [&](const Op& ours, const Op& theirs, const Tensors& inputs,
                               const Tensors& gradients) {
    const OpRun a = run_op(ours, inputs, gradients), b = run_op(theirs, inputs, gradients);
    for (size_t i = 0; i < a.outputs.size(); ++i) {
      EXPECT_LE((a.outputs[i] - b.outputs[i]).abs().max().item<double>(), 1e-10);
    }
    test::expect_close_gradients(b, a, 1e-9);
  };
  for (const Tensors& gradients : {Tensors{dh, dy}, Tensors{none, dy}}) {
    expect_same(added(c), composite(c, at::kDouble), in, gradients);
    expect_same(norm_alone(c, at::kDouble), composite_alone(c, at::kDouble), without_branch(in),
                gradients);
  }
  const Op theirs = [&](const Tensors& t) { return Tensors{add_composite(c, t[0], t[1], t[2])}; };
  expect_same(only_added(c), theirs, only_branch(in), {dh});
}

INSTANTIATE_TEST_SUITE_P(Cases, StreamNormCases,
                         ::testing::Values(Case{1, 1, 2}, Case{3, 7, 5, 3, true, {4, 5}},
                                           Case{2, 65, 16, 1, false, {3}},
                                           Case{2, 70, 33, 2, true, {}, false},
                                           Case{1, 9, 48, 1, true, {8, 9}, false},
                                           Case{4, 3, 24, 0, true, {0, 1}}));

// An output that nobody reads.
TEST(StreamNorm, StreamOnly) {
  const Case c{2, 5, 8, 2, true, {1, 2}};
  const Tensors in = inputs_of(c);
  const at::Tensor dh = matrix(c, at::kDouble);
  const OpRun ours = run_op(added(c), in, {dh, {}});
  const OpRun theirs = run_op(composite(c, at::kDouble), in, {dh, {}});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE((ours.gradients[i] - theirs.gradients[i]).abs().max().item<double>(), 1e-12) << i;
  }
  EXPECT_FALSE(ours.gradients[3].defined());
  const OpRun alone = run_op(norm_alone(c, at::kDouble), without_branch(in), {dh, {}});
  EXPECT_TRUE(at::equal(alone.gradients[0], dh));
}

TEST(StreamNorm, NumericalGradientInFloat64) {
  for (const Case& c : {Case{2, 2, 5, 2, true, {4, 5}}, Case{2, 2, 3, 1, false, {1}}}) {
    const Tensors in = inputs_of(c);
    const at::Tensor dh = matrix(c, at::kDouble), dy = matrix(c, at::kDouble);
    test::expect_numerical_gradients(added(c), in, {dh, dy});
    test::expect_numerical_gradients(norm_alone(c, at::kDouble), without_branch(in), {dh, dy});
    test::expect_numerical_gradients(only_added(c), only_branch(in), {dh});
  }
}

// Where the plain way rounds, in the dtypes of training.
TEST(StreamNorm, RoundsWhereTheCompositeRounds) {
  const Case c{3, 11, 64, 3, true, {6, 7}, false};
  const Tensors in = inputs_of(c, at::kFloat, at::kBFloat16, at::kBFloat16);
  const Tensors out = added(c)(in);
  EXPECT_EQ(out[0].scalar_type(), at::kFloat);
  EXPECT_EQ(out[1].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(out[0], add_composite(c, in[0], in[1], in[2])));
  EXPECT_TRUE(
      at::equal(out[1], stream_norm(out[0], {in[3], in[4], true, kEps}, at::kBFloat16).second));
  EXPECT_TRUE(at::equal(out[0], add_dropped(in[0], branch_of(c, in[1], in[2]))));
  test::expect_same_arithmetic(composite(c, at::kBFloat16)(in)[1], out[1], "y");
  // The same masks and roundings backwards.
  const at::Tensor dh = matrix(c, at::kFloat);
  const OpRun ours = run_op(only_added(c), only_branch(in), {dh});
  const OpRun theirs =
      run_op([&](const Tensors& t) { return Tensors{add_composite(c, t[0], t[1], t[2])}; },
             only_branch(in), {dh});
  EXPECT_TRUE(at::equal(ours.gradients[1], theirs.gradients[1]));
}

TEST(StreamNorm, BiasIsAddedBeforeTheDropoutAndRoundedOnce) {
  const Case c{2, 5, 16, 0, true, {3}};
  const Tensors in = inputs_of(c, at::kFloat, at::kBFloat16, at::kFloat);
  const at::Tensor v = (in[1].to(at::kFloat) + in[2]).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(add_dropped(in[0], branch_of(c, in[1], in[2])),
                        in[0] + dropout(v, make_keys(2), 3, kP)));
}

TEST(StreamNorm, WithoutProbabilityOrKeysNothingIsDropped) {
  const Case c{2, 5, 16, 0, true, {3, 4}, false};
  const Tensors in = inputs_of(c, at::kFloat, at::kFloat, at::kFloat);
  const at::Tensor expected = in[0] + in[1];
  EXPECT_TRUE(at::equal(add_dropped(in[0], {in[1], {}, make_keys(2), {3, 4}, 0.0}), expected));
  EXPECT_TRUE(at::equal(add_dropped(in[0], {in[1], {}, {}, {3, 4}, kP}), expected));
  EXPECT_TRUE(at::equal(add_stream_norm(in[0], {in[1]}, {}).first, expected));
}

TEST(StreamNorm, GradientsHaveTheDtypeOfTheirInput) {
  for (const auto& [stream, product] : {std::pair{at::kFloat, at::kBFloat16},
                                        {at::kBFloat16, at::kFloat},
                                        {at::kBFloat16, at::kBFloat16}}) {
    const Case c{2, 3, 16, 2, true, {1}};
    Tensors in = inputs_of(c, stream, product, at::kBFloat16);
    in[2] = in[2].to(at::kFloat);
    in[4] = in[4].to(at::kFloat);
    const OpRun run = run_op(added(c), in, {matrix(c, stream), matrix(c, product)});
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(run.gradients[i].scalar_type(), in[i].scalar_type()) << i;
      EXPECT_EQ(run.gradients[i].sizes(), in[i].sizes()) << i;
    }
  }
}

TEST(StreamNorm, StridedRowsOfParametersAreReadInPlace) {
  const Case c{3, 4, 8, 3};
  const at::Tensor both = random({3, 16}), h = matrix(c, at::kDouble);
  const auto halves = both.split(8, 1);
  EXPECT_TRUE(at::equal(
      stream_norm(h, {halves[0], halves[1], true, kEps}, at::kDouble).second,
      stream_norm(h, {halves[0].contiguous(), halves[1].contiguous(), true, kEps}, at::kDouble)
          .second));
}

TEST(StreamNorm, SameBitsForAnyNumberOfThreads) {
  const Case c{7, 150, 96, 7, true, {0, 1}};
  const Tensors in = inputs_of(c, at::kFloat, at::kFloat, at::kFloat);
  const Tensors gradients = {matrix(c, at::kFloat), matrix(c, at::kFloat)};
  std::vector<OpRun> runs;
  const int saved = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    runs.push_back(run_op(added(c), in, gradients));
  }
  at::set_num_threads(saved);
  for (size_t r = 1; r < runs.size(); ++r)
    for (size_t i = 0; i < in.size(); ++i)
      EXPECT_TRUE(at::equal(runs[r].gradients[i], runs[0].gradients[i])) << i;
}

TEST(StreamNorm, ZeroRowsGiveZeroParameterGradients) {
  const Case c{2, 0, 8, 2, true, {0}};
  const OpRun run =
      run_op(added(c), inputs_of(c), {matrix(c, at::kDouble), matrix(c, at::kDouble)});
  EXPECT_EQ(run.outputs[1].sizes(), at::IntArrayRef({2, 0, 8}));
  for (size_t i = 2; i < 5; ++i) {
    EXPECT_EQ(run.gradients[i].abs().max().item<double>(), 0.0) << i;
  }
}

TEST(StreamNorm, MetaShapesEqualRealShapes) {
  const auto meta = [](std::vector<int64_t> sizes, at::ScalarType type) {
    return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(type))
        .set_requires_grad(true);
  };
  const Tensors in = {meta({2, 3, 16}, at::kFloat), meta({2, 3, 16}, at::kBFloat16),
                      meta({16}, at::kBFloat16), meta({2, 16}, at::kBFloat16),
                      meta({2, 16}, at::kBFloat16)};
  const Case c{2, 3, 16, 2, true, {0, 1}};
  const Tensors out = added(c)(in);
  EXPECT_EQ(out[1].scalar_type(), at::kBFloat16);
  const Tensors alone = norm_alone(c, at::kBFloat16)({out[0], in[3], in[4]});
  const at::Tensor last = add_dropped(alone[0], branch_of(c, in[1], in[2]));
  torch::autograd::backward({last, out[1], alone[1]}, {meta({2, 3, 16}, at::kFloat).detach(),
                                                       meta({2, 3, 16}, at::kBFloat16).detach(),
                                                       meta({2, 3, 16}, at::kBFloat16).detach()});
  for (const at::Tensor& t : in) {
    EXPECT_EQ(t.grad().sizes(), t.sizes());
    EXPECT_EQ(t.grad().scalar_type(), t.scalar_type());
  }
}

template <class Call>
void expect_refused(Call&& call, const char* text) {
  try {
    call();
    FAIL() << "no error: " << text;
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr(text));
  }
}

TEST(StreamNorm, ErrorsNameTheArgument) {
  const at::Tensor h = random({2, 3, 8}, at::kFloat), branch = random({2, 3, 8}, at::kBFloat16);
  const at::Tensor scale = random({2, 8}, at::kFloat), keys = make_keys(2);
  expect_refused(
      [&] {
        stream_norm(h, {random({2, 7}, at::kFloat), {}}, at::kFloat);
      },
      "stream_norm: scale must be [D] or [G, D] with D = 8");
  expect_refused(
      [&] {
        stream_norm(h, {scale, scale}, at::kDouble);
      },
      "a stream in Float and products in Double");
  expect_refused([&] { stream_norm(h, {scale, scale}, at::kLong); }, "products in Long");
  expect_refused([&] { add_dropped(h, {branch.narrow(1, 0, 2)}); },
                 "add_dropped: branch must be [2, 3, 8], got [2, 2, 8]");
  expect_refused(
      [&] {
        add_dropped(h, {branch, random({7}, at::kFloat)});
      },
      "bias must be [8], got [7]");
  expect_refused([&] { add_dropped(h, {branch, {}, keys, {1, 2, 3}, kP}); }, "at most 2 dropouts");
  expect_refused(
      [&] {
        add_dropped(h, {branch, {}, make_keys(3), {1}, kP});
      },
      "keys must be [2], got [3]");
  expect_refused([&] { add_dropped(h, {branch, {}, keys, {1}, 1.0}); }, "p = 1");
  expect_refused(
      [&] {
        add_stream_norm(h, {branch, {}, keys, {1}, kP}, {random({3, 8}, at::kFloat), {}});
      },
      "or one each, got 3 rows");
}

std::vector<Case> gpu_cases() {
  return {{3, 7, 5, 3, true, {4, 5}},        {2, 150, 33, 1, false, {3}},
          {1, 7, 1, 0, true, {0}},           {4, 16, 64, 4, true, {0, 1}},
          {9, 51, 1536, 9, true, {1, 2}},    {7, 41, 1536, 0, true, {3}, false},
          {3, 200, 2048, 1, false, {0, 1}},  {2, 9, 4104, 2, true, {1, 2}},
          {5, 1, 72, 5, true, {}},           {300, 2, 16, 300, true, {5}},
          {1, 700, 1024, 1, true, {}, false}};
}

/// Whether y and gradients of a norm of one column are rounding alone (see layer_norm_test.cpp).
bool is_degenerate(const Case& c) {
  return c.width == 1;
}

/// Error of the gradients of {h, branch, bias} beside the usual one, where they are of fp32 but
/// come from values that were rounded to bf16: some of those fall to the other side of a boundary,
/// by a step of up to 2^-7 of the gradient, and in the sum over rows more than one of them.
std::vector<double> flips_of(const Case& c, const Tensors& in, const at::Tensor& dh,
                             const at::Tensor& dy) {
  const auto is_wide = [](const at::Tensor& t) {
    return t.defined() && t.scalar_type() == at::kFloat;
  };
  const bool rounded = !is_wide(in[0]) || !is_wide(in[1]);
  if (!rounded) return {};
  const double step = run_op(added(c), in, {dh, dy}).gradients[1].abs().max().item<double>() / 128;
  return {0.0, is_wide(in[1]) ? step : 0.0, is_wide(in[2]) ? 3 * step : 0.0};
}

TEST(StreamNormGpu, MatchesCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const Case& c : gpu_cases()) {
    for (const auto& [stream, product] : {std::pair{at::kFloat, at::kBFloat16},
                                          {at::kFloat, at::kFloat},
                                          {at::kBFloat16, at::kFloat},
                                          {at::kBFloat16, at::kBFloat16}}) {
      for (const at::ScalarType params : {at::kFloat, at::kBFloat16}) {
        for (const bool offset : {false, true}) {
          if (offset && c.samples * c.rows > 1000) continue;
          const std::string what =
              fmt::format("{}, {} and {}, parameters {}{}", text_of(c), at::toString(stream),
                          at::toString(product), at::toString(params), offset ? ", offset" : "");
          const Tensors in = inputs_of(c, stream, product, params);
          const at::Tensor dh = matrix(c, stream), dy = matrix(c, product);
          const std::vector<double> flips = flips_of(c, in, dh, dy);
          // Each dropout rounds the gradient of the branch once more.
          const int roundings = 1 + static_cast<int>(c.sites.size());
          test::expect_gpu_matches_cpu(only_added(c), only_branch(in), {dh}, offset, "add, " + what,
                                       {}, roundings);
          if (is_degenerate(c)) continue;
          test::expect_gpu_matches_cpu(added(c), in, {dh, dy}, offset, "add and norm, " + what,
                                       flips, roundings);
          test::expect_gpu_matches_cpu(norm_alone(c, product), without_branch(in), {dh, dy}, offset,
                                       "norm, " + what);
        }
      }
    }
  }
}

TEST(StreamNormGpu, UndefinedGradientsAndZeroRows) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor none;
  for (const Case& c : {Case{3, 51, 1536, 3, true, {1, 2}}, Case{2, 30, 77, 1, true, {3}},
                        Case{2, 0, 64, 2, true, {0}}}) {
    const Tensors in = inputs_of(c, at::kFloat, at::kBFloat16, at::kBFloat16);
    const at::Tensor dh = matrix(c, at::kFloat), dy = matrix(c, at::kBFloat16);
    for (const Tensors& gradients : {Tensors{none, dy}, Tensors{dh, none}}) {
      test::expect_gpu_matches_cpu(added(c), in, gradients, false, text_of(c), {},
                                   1 + static_cast<int>(c.sites.size()));
      test::expect_gpu_matches_cpu(norm_alone(c, at::kBFloat16), without_branch(in), gradients,
                                   false, text_of(c));
    }
  }
}

// The masks are those of ops::dropout: the stream has the composite's bits.
TEST(StreamNormGpu, DropsLikeTheOperator) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const Case& c :
       {Case{5, 51, 1536, 5, true, {40, 41}, false}, Case{3, 13, 45, 1, true, {7}, false}}) {
    const Tensors in = inputs_of(c, at::kFloat, at::kBFloat16, at::kBFloat16);
    Tensors moved;
    for (const at::Tensor& t : in) moved.push_back(t.defined() ? t.to(at::kCUDA) : t);
    EXPECT_TRUE(at::equal(added(c)(moved)[0].cpu(), add_composite(c, in[0], in[1], in[2])));
    EXPECT_TRUE(at::equal(only_added(c)(moved)[0].cpu(), add_composite(c, in[0], in[1], in[2])));
    const at::Tensor dh = matrix(c, at::kFloat);
    const OpRun cpu = run_op(only_added(c), only_branch(in), {dh});
    const OpRun gpu = run_op(only_added(c), only_branch(in), {dh}, at::Device(at::kCUDA, 0));
    EXPECT_TRUE(at::equal(cpu.gradients[1], gpu.gradients[1]));
  }
}

TEST(StreamNormGpu, ACapturedCallReadsTheKeysOfTheReplay) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const c10::Device device(c10::DeviceType::CUDA, 0);
  const Case c{4, 33, 48, 4, true, {1, 2}, false};
  const Tensors in = inputs_of(c, at::kFloat, at::kBFloat16, at::kBFloat16);
  at::Tensor keys = make_keys(4).to(device);
  Tensors moved;
  for (const at::Tensor& t : in) moved.push_back(t.defined() ? t.to(device) : t);
  at::Tensor x, y, dbranch;
  const auto step = [&] {
    const at::Tensor branch = moved[1].detach().set_requires_grad(true);
    std::tie(x, y) =
        add_stream_norm(moved[0], {branch, {}, keys, {1, 2}, kP}, {moved[3], moved[4], true, kEps});
    y.backward(moved[1]);
    dbranch = branch.grad();
  };
  const runtime::Stream stream = runtime::Stream::make(device, false);
  const runtime::GraphPool pool(device);
  runtime::CapturedGraph graph;
  {
    const runtime::StreamScope scope(stream);
    step();  // loads the kernels, as the eager step before a captured one does
  }
  graph.capture(stream, pool, step);
  for (const uint64_t seed : {11u, 12u, 11u}) {
    const at::Tensor now = make_keys(4, seed);
    const runtime::StreamScope scope(stream);
    keys.copy_(now);
    graph.replay();
    stream.synchronize();
    EXPECT_TRUE(at::equal(x.cpu(), add_dropped(in[0], {in[1], {}, now, {1, 2}, kP})));
    const at::Tensor kept = dropout_mask(now, 1, in[1].sizes(), kP, at::kFloat) *
                            dropout_mask(now, 2, in[1].sizes(), kP, at::kFloat);
    EXPECT_TRUE(at::equal(dbranch.cpu().ne(0), kept.ne(0)));
  }
}

}  // namespace
}  // namespace longship::ops
