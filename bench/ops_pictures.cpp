// Augmentation of pictures.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numbers>

#include "bench/families.h"
#include "bench/paired.h"
#include "ops/augment.h"

namespace longship::bench {
namespace {

constexpr int64_t kPictures = 64, kSide = 224;
constexpr float kBrightness = 0.9F, kContrast = 1.3F, kSaturation = 0.7F;

struct Inputs {
  at::Tensor pictures, params, grid;
};

/// Every picture is turned by another angle; the grid says the same to the library.
Inputs make_inputs(const BenchContext& context, bool turn) {
  const int64_t count = context.rows(kPictures);
  const int64_t side = context.width(kSide);
  Inputs in;
  in.pictures = at::clamp(context.randn({count, 3, side, side}, at::kFloat, 0.5), -1, 1);
  const at::Tensor rows = at::zeros({count, 20}, at::kFloat);
  const at::Tensor grid = at::empty({count, side, side, 2}, at::kFloat);
  const at::Tensor x = at::arange(side, at::kFloat).view({1, side}).expand({side, side});
  const at::Tensor y = at::arange(side, at::kFloat).view({side, 1}).expand({side, side});
  float* row = rows.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i, row += 20) {
    const double angle = turn ? (static_cast<double>(i % 11) - 4.7) * std::numbers::pi / 180 : 0;
    const double c = std::cos(angle), s = std::sin(angle);
    const double mid = (static_cast<double>(side) - 1) / 2;
    const double place[6] = {c, -s, mid - c * mid + s * mid, s, c, mid - s * mid - c * mid};
    for (int k = 0; k < 6; ++k) row[k] = static_cast<float>(place[k]);
    row[8] = row[9] = static_cast<float>(side);
    row[10] = 4;  // openpi's colours
    row[11] = 1;
    row[12] = 2;
    row[13] = 3;
    row[15] = kBrightness;
    row[16] = kContrast;
    row[17] = kSaturation;
    row[18] = row[19] = 1;
    const double half = static_cast<double>(side);
    grid.select(0, i).copy_(at::stack({((x * row[0] + y * row[1] + row[2]) * 2 + 1) / half - 1,
                                       ((x * row[3] + y * row[4] + row[5]) * 2 + 1) / half - 1},
                                      -1));
  }
  in.params = rows.to(context.device);
  in.grid = grid.to(context.device);
  return in;
}

at::Tensor library_augment(const Inputs& in, bool turn) {
  at::Tensor u = in.pictures * 0.5 + 0.5;
  if (turn) u = at::grid_sampler_2d(u, in.grid, 0, 0, false);
  u = u * kBrightness;
  const at::Tensor mean = u.mean(at::IntArrayRef{1, 2, 3}, true);
  u = (u - mean) * kContrast + mean;
  const at::Tensor grey = u.mean(1, true);
  return at::clamp(grey + (u - grey) * kSaturation, 0, 1) * 2 - 1;
}

OpRow augment_row(const char* shape, bool turn) {
  const auto make = [turn](const BenchContext& context) {
    const std::vector<Inputs> sets = {make_inputs(context, turn), make_inputs(context, turn)};
    const auto ours = [](const Inputs& in) {
      return ops::augment_pictures(in.pictures, in.params, in.pictures.size(2),
                                   in.pictures.size(3));
    };
    OpBench op;
    op.bytes = 2 * bytes_of(sets[0].pictures);
    op.run = rotate<Inputs>(sets, [ours](const Inputs& in) { ours(in); });
    op.library.emplace_back(
        "aten", rotate<Inputs>(sets, [turn](const Inputs& in) { library_augment(in, turn); }));
    op.deviation = [set = sets[0], ours, turn] {
      return deviation({ours(set)}, {library_augment(set, turn)});
    };
    op.max_deviation = 1e-3;
    return op;
  };
  return {"augment_pictures", shape, make};
}

}  // namespace

std::vector<OpRow> picture_rows() {
  return {augment_row("turn and colours 64x3x224x224", true),
          augment_row("colours 64x3x224x224", false)};
}

}  // namespace longship::bench
