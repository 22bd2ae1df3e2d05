#include "ops/augment.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

/// One row of parameters; the identity of a picture of the given size to begin with.
struct Row {
  Row(int64_t height, int64_t width)
      : n{1, 0, 0, 0, 1, 0, 0, 0, static_cast<float>(width), static_cast<float>(height)} {
    for (int k = 0; k < 4; ++k) n[15 + k] = 1;
    n[19] = 1;
  }
  Row& rotate(double degrees, int64_t height, int64_t width, double dx = 0, double dy = 0) {
    const double a = degrees * std::numbers::pi / 180, c = std::cos(a), s = std::sin(a);
    const double mx = (double(width) - 1) / 2, my = (double(height) - 1) / 2;
    const double x = mx + dx, y = my + dy;
    const std::array<double, 6> m = {c, -s, mx - c * x + s * y, s, c, my - s * x - c * y};
    for (size_t i = 0; i < 6; ++i) n[i] = static_cast<float>(m[i]);
    return *this;
  }
  Row& crop(float x, float y, float w, float h) {
    n[6] = x;
    n[7] = y;
    n[8] = w;
    n[9] = h;
    return *this;
  }
  Row& flags(int bits) {
    n[10] = static_cast<float>(bits);
    return *this;
  }
  Row& op(int kind, float factor) {
    int k = 0;
    while (n[11 + k] != 0) ++k;
    n[11 + k] = static_cast<float>(kind);
    n[15 + k] = factor;
    return *this;
  }
  Row& sharpness(float factor) {
    n[19] = factor;
    return *this;
  }
  std::array<float, 20> n;
};
constexpr int kLast = 1, kNearest = 2, kOpenpi = 4;
constexpr int kBrightness = 1, kContrast = 2, kSaturation = 3, kHue = 4;

at::Tensor table(const std::vector<Row>& rows) {
  at::Tensor out = at::empty({static_cast<int64_t>(rows.size()), 20}, at::kFloat);
  float* data = out.mutable_data_ptr<float>();
  for (const Row& row : rows) data = std::copy(row.n.begin(), row.n.end(), data);
  return out;
}

at::Tensor pictures(std::vector<int64_t> sizes, at::ScalarType type = at::kDouble) {
  return at::clamp(random(sizes, type) * 0.6, -1, 1);
}

// ---- the transforms by library operators, on [0, 1] ----

at::Tensor unit(const at::Tensor& x) {
  return x * 0.5 + 0.5;
}
at::Tensor signed_of(const at::Tensor& u) {
  return u * 2.0 - 1.0;
}

at::Tensor crop_resize(const at::Tensor& u, int64_t x, int64_t y, int64_t w, int64_t h,
                       int64_t out_h, int64_t out_w) {
  return at::upsample_bilinear2d(u.narrow(2, y, h).narrow(3, x, w), {out_h, out_w}, false);
}

/// grid_sampler over the positions that Row::rotate means, zeros outside.
at::Tensor turned(const at::Tensor& u, const Row& row, bool nearest) {
  const int64_t h = u.size(2), w = u.size(3);
  const auto options = u.options();
  const at::Tensor x = at::arange(w, options).view({1, w}).expand({h, w});
  const at::Tensor y = at::arange(h, options).view({h, 1}).expand({h, w});
  const auto& m = row.n;
  const at::Tensor qx = x * m[0] + y * m[1] + m[2], qy = x * m[3] + y * m[4] + m[5];
  const at::Tensor grid =
      at::stack({(qx * 2.0 + 1.0) / double(w) - 1.0, (qy * 2.0 + 1.0) / double(h) - 1.0}, -1);
  return at::grid_sampler_2d(u, grid.unsqueeze(0).expand({u.size(0), h, w, 2}), nearest ? 1 : 0, 0,
                             false);
}

at::Tensor grey(const at::Tensor& u, bool openpi) {
  if (openpi) return u.mean(1, true);
  return u.narrow(1, 0, 1) * 0.2989 + u.narrow(1, 1, 1) * 0.587 + u.narrow(1, 2, 1) * 0.114;
}

at::Tensor contrast(const at::Tensor& u, double f, bool openpi) {
  const at::Tensor mean = grey(u, openpi).mean(at::IntArrayRef{1, 2, 3}, true);
  return (u - mean) * f + mean;
}

at::Tensor saturation(const at::Tensor& u, double f, bool openpi) {
  const at::Tensor g = grey(u, openpi);
  return g + (u - g) * f;
}

/// RGB to HSV, hue shift and back, as tables of sectors.
at::Tensor hue(const at::Tensor& u, double turns) {
  const at::Tensor r = u.select(1, 0), g = u.select(1, 1), b = u.select(1, 2);
  const at::Tensor most = u.amax(1), least = u.amin(1), spread = most - least;
  const at::Tensor safe = at::where(spread > 0, spread, at::full_like(spread, 1.0));
  const at::Tensor from_red = at::remainder((g - b) / safe, 6.0);
  const at::Tensor from_green = (b - r) / safe + 2.0, from_blue = (r - g) / safe + 4.0;
  const at::Tensor sector =
      at::where(most == r, from_red, at::where(most == g, from_green, from_blue));
  const at::Tensor h = at::remainder(sector / 6.0 + turns, 1.0) * 6.0;
  const at::Tensor chroma_x = spread * (1.0 - (at::remainder(h, 2.0) - 1.0).abs());
  const at::Tensor zero = at::zeros_like(spread);
  const at::Tensor whole = at::floor(h);
  const auto pick = [&](const std::array<const at::Tensor*, 6>& values) {
    at::Tensor out = *values[0];
    for (int i = 1; i < 6; ++i) out = at::where(whole == double(i), *values[size_t(i)], out);
    return out + least;
  };
  return at::stack({pick({&spread, &chroma_x, &zero, &zero, &chroma_x, &spread}),
                    pick({&chroma_x, &spread, &spread, &chroma_x, &zero, &zero}),
                    pick({&zero, &zero, &chroma_x, &spread, &spread, &chroma_x})},
                   1);
}

at::Tensor sharpened(const at::Tensor& u, double f) {
  at::Tensor kernel = at::ones({1, 1, 3, 3}, u.options());
  kernel.select(2, 1).select(2, 1).fill_(5.0);
  at::Tensor blurred = u.clone();
  const int64_t h = u.size(2), w = u.size(3);
  const at::Tensor flat = u.reshape({u.size(0) * 3, 1, h, w});
  blurred.narrow(2, 1, h - 2)
      .narrow(3, 1, w - 2)
      .copy_(at::conv2d(flat, kernel / 13.0).view({u.size(0), 3, h - 2, w - 2}));
  return u * f + blurred * (1.0 - f);
}

at::Tensor clamp01(const at::Tensor& u) {
  return at::clamp(u, 0, 1);
}

at::Tensor run(const at::Tensor& x, const std::vector<Row>& rows) {
  return augment_pictures(x, table(rows), x.size(2), x.size(3));
}

// Positions are fp32, so a fp64 comparison agrees to the error of a position times a slope.
constexpr double kPlace = 1e-4;
constexpr double kExact = 1e-12;

TEST(Augment, IdentityKeepsTheBits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor x = pictures({2, 3, 5, 7}, type);
    EXPECT_TRUE(same_bits(run(x, {Row(5, 7), Row(5, 7)}), x));
    EXPECT_TRUE(same_bits(run(x, {Row(5, 7).flags(7), Row(5, 7).flags(kLast)}), x));
  }
}

TEST(Augment, CropAndResizeIsTheLibrarysBilinear) {
  const at::Tensor x = pictures({1, 3, 40, 33});
  const at::Tensor want = crop_resize(x, 3, 2, 29, 38, 40, 33);
  EXPECT_TRUE(close(run(x, {Row(40, 33).crop(3, 2, 29, 38)}), want, kPlace));
  const at::Tensor smaller = augment_pictures(x, table({Row(40, 33).crop(3, 2, 29, 38)}), 21, 50);
  EXPECT_TRUE(close(smaller, crop_resize(x, 3, 2, 29, 38, 21, 50), kPlace));
}

TEST(Augment, RotationIsTheLibrarysGridSampler) {
  const at::Tensor x = pictures({1, 3, 31, 44});
  for (const double degrees : {5.0, -3.3, 90.0, 137.0}) {
    const Row row = Row(31, 44).rotate(degrees, 31, 44, 2.5, -1.0);
    const at::Tensor want = signed_of(turned(unit(x), row, false));
    EXPECT_TRUE(close(run(x, {row}), want, kPlace)) << degrees;
  }
}

TEST(Augment, NearestIsTheLibrarysGridSampler) {
  const at::Tensor x = pictures({1, 3, 31, 44});
  const Row row = Row(31, 44).rotate(4.1, 31, 44, 2, 1).flags(kNearest);
  EXPECT_TRUE(close(run(x, {row}), signed_of(turned(unit(x), row, true)), kExact));
}

// The reference resizes the crop and rotates the result: two interpolations. Here it is one, so
// that smooth pictures agree closely, and rough ones are blurred less.
TEST(Augment, CropThenRotateFollowsTheTwoSteps) {
  const at::Tensor a = at::arange(48, at::kDouble) / 48.0;
  const at::Tensor smooth =
      at::stack({a.view({1, 48}).expand({48, 48}), a.view({48, 1}).expand({48, 48}),
                 (a.view({1, 48}) + a.view({48, 1})) / 2.0})
          .unsqueeze(0);
  const Row row = Row(48, 48).crop(2, 1, 45, 45).rotate(-5, 48, 48);
  const at::Tensor want = turned(crop_resize(smooth, 2, 1, 45, 45, 48, 48), row, false);
  EXPECT_TRUE(close(unit(run(signed_of(smooth), {row})), want, 3e-3));
}

TEST(Augment, ColoursAreTheFormulas) {
  const at::Tensor x = pictures({1, 3, 9, 11}), u = unit(x);
  for (const bool openpi : {false, true}) {
    const int flags = openpi ? kOpenpi : 0;
    const auto one = [&](int kind, float f) {
      return unit(run(x, {Row(9, 11).flags(flags).op(kind, f)}));
    };
    for (const float f : {0.0F, 0.5F, 1.0F, 1.5F}) {
      EXPECT_TRUE(close(one(kBrightness, f), clamp01(u * f), kExact)) << f;
      EXPECT_TRUE(close(one(kContrast, f), clamp01(contrast(u, f, openpi)), kExact)) << f;
      EXPECT_TRUE(close(one(kSaturation, f), clamp01(saturation(u, f, openpi)), kExact)) << f;
    }
    for (const float f : {-0.5F, -0.05F, 0.0F, 0.125F, 0.4F}) {
      EXPECT_TRUE(close(one(kHue, f), hue(u, f), 1e-9)) << f;
    }
  }
}

TEST(Augment, OpenpiClampsOnceAndTorchvisionAfterEach) {
  const at::Tensor x = pictures({1, 3, 12, 12}), u = unit(x);
  const auto chain = [&](int flags) {
    return unit(run(x, {Row(12, 12)
                            .flags(flags)
                            .op(kBrightness, 1.3F)
                            .op(kContrast, 1.4F)
                            .op(kSaturation, 0.5F)}));
  };
  const at::Tensor openpi =
      clamp01(saturation(contrast(u * double(1.3F), double(1.4F), true), 0.5, true));
  EXPECT_TRUE(close(chain(kOpenpi), openpi, kExact));
  const at::Tensor torchvision = clamp01(
      saturation(clamp01(contrast(clamp01(u * double(1.3F)), double(1.4F), false)), 0.5, false));
  EXPECT_TRUE(close(chain(0), torchvision, kExact));
  EXPECT_FALSE(close(chain(0), openpi, 1e-3));
}

TEST(Augment, SharpnessIsTheLibrarysConvolution) {
  const at::Tensor x = pictures({1, 3, 9, 11}), u = unit(x);
  for (const float f : {0.0F, 0.5F, 1.5F}) {
    EXPECT_TRUE(close(unit(run(x, {Row(9, 11).sharpness(f)})), clamp01(sharpened(u, f)), kExact));
  }
  const at::Tensor thin = pictures({1, 3, 2, 11});
  EXPECT_TRUE(close(run(thin, {Row(2, 11).sharpness(0)}), thin, kExact));
}

// openpi: the frame first, then the colours, so that the black corners take part in the contrast.
TEST(Augment, GeometryFirst) {
  const at::Tensor x = pictures({1, 3, 30, 30});
  const Row row = Row(30, 30).rotate(20, 30, 30);
  Row all = row;
  all.flags(kOpenpi).op(kBrightness, 0.8F).op(kContrast, 1.3F);
  const at::Tensor want =
      clamp01(contrast(turned(unit(x), row, false) * double(0.8F), double(1.3F), true));
  EXPECT_TRUE(close(unit(run(x, {all})), want, kPlace));
}

// lerobot: colours, sharpness, then the affine transform, whose corners stay black.
TEST(Augment, GeometryLast) {
  const at::Tensor x = pictures({1, 3, 30, 26});
  const Row row = Row(30, 26).rotate(-4.5, 30, 26, 1, -1);
  Row all = row;
  all.flags(kLast | kNearest).op(kContrast, 0.8F).op(kHue, 0.04F).sharpness(0.6F);
  const at::Tensor coloured = clamp01(sharpened(
      clamp01(hue(clamp01(contrast(unit(x), double(0.8F), false)), double(0.04F))), double(0.6F)));
  EXPECT_TRUE(close(unit(run(x, {all})), turned(coloured, row, true), 1e-9));
  all.flags(kLast);
  EXPECT_TRUE(close(unit(run(x, {all})), turned(coloured, row, false), kPlace));
}

std::vector<Row> varied_rows(int64_t h, int64_t w) {
  const auto fh = static_cast<float>(h), fw = static_cast<float>(w);
  const float ch = std::max(1.0F, std::floor(fh * 0.95F)),
              cw = std::max(1.0F, std::floor(fw * 0.9F));
  return {
      Row(h, w),
      Row(h, w)
          .crop(fw - cw, fh - ch, cw, ch)
          .rotate(4.9, h, w)
          .flags(kOpenpi)
          .op(kBrightness, 1.2F)
          .op(kContrast, 0.6F)
          .op(kSaturation, 1.5F),
      Row(h, w).flags(kOpenpi).op(kContrast, 1.4F),
      Row(h, w).rotate(-3, h, w),
      Row(h, w)
          .rotate(5, h, w, 2, 1)
          .flags(kLast | kNearest)
          .op(kSaturation, 0.5F)
          .op(kHue, -0.05F)
          .op(kContrast, 1.2F)
          .op(kBrightness, 0.8F)
          .sharpness(1.5F),
      Row(h, w).rotate(5, h, w, -2, 0).flags(kLast).op(kContrast, 0.8F).sharpness(0.5F),
      Row(h, w).rotate(2, h, w).op(kHue, 0.3F).sharpness(0.0F),
      Row(h, w).crop(0, 0, cw, fh).flags(kNearest),
  };
}

TEST(Augment, EveryPictureHasItsOwnRow) {
  const std::vector<Row> rows = varied_rows(17, 20);
  const at::Tensor x = pictures({8, 3, 17, 20}, at::kFloat);
  const at::Tensor all = run(x, rows);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(same_bits(all.narrow(0, i, 1), run(x.narrow(0, i, 1), {rows[size_t(i)]}))) << i;
  }
}

TEST(Augment, BytesAreFloatsOver255) {
  const at::Tensor bytes =
      at::randint(0, 256, {8, 13, 10, 3}, at::TensorOptions(at::kLong)).to(at::kByte);
  const at::Tensor floats =
      (bytes.to(at::kFloat) / 255.0F * 2.0F - 1.0F).permute({0, 3, 1, 2}).contiguous();
  const at::Tensor params = table(varied_rows(13, 10));
  const at::Tensor got = augment_pictures(bytes, params, 13, 10);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_TRUE(close(got, augment_pictures(floats, params, 13, 10), 2e-6));
  EXPECT_TRUE(same_bits(got.narrow(0, 0, 1), floats.narrow(0, 0, 1)));
}

TEST(Augment, SinglePrecisionFollowsDouble) {
  const std::vector<Row> rows = varied_rows(24, 24);
  const at::Tensor x = pictures({8, 3, 24, 24});
  EXPECT_TRUE(close(run(x.to(at::kFloat), rows), run(x, rows), 3e-6, 0));
  EXPECT_TRUE(
      close(run(x.to(at::kBFloat16), rows), run(x.to(at::kBFloat16).to(at::kDouble), rows)));
}

TEST(Augment, FaultsAndMeta) {
  const at::Tensor x = pictures({2, 3, 4, 5}, at::kFloat), rows = table({Row(4, 5), Row(4, 5)});
  EXPECT_THROW(augment_pictures(x.narrow(1, 0, 2), rows, 4, 5), ShapeError);
  EXPECT_THROW(augment_pictures(x, rows.narrow(0, 0, 1), 4, 5), ShapeError);
  EXPECT_THROW(augment_pictures(x, rows.to(at::kDouble), 4, 5), ShapeError);
  EXPECT_THROW(augment_pictures(x, rows, 0, 5), ShapeError);
  EXPECT_THROW(augment_pictures(x.to(at::kInt), rows, 4, 5), ShapeError);
  EXPECT_THROW(augment_pictures(x.clone().set_requires_grad(true), rows, 4, 5), ShapeError);
  const at::Tensor meta =
      augment_pictures(at::empty({2, 3, 4, 5}, x.options().device(at::kMeta)),
                       at::empty({2, 20}, rows.options().device(at::kMeta)), 6, 7);
  EXPECT_EQ(meta.sizes(), augment_pictures(x, rows, 6, 7).sizes());
  const at::Tensor none = augment_pictures(x.narrow(0, 0, 0), rows.narrow(0, 0, 0), 6, 7);
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 3, 6, 7}));
}

TEST(AugmentGpu, EqualsTheOracle) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const auto& [h, w] :
       {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {17, 20}, {64, 64}, {61, 130}}) {
    const std::vector<Row> rows = varied_rows(h, w);
    const at::Tensor params = table(rows);
    const at::Tensor x = pictures({8, 3, h, w}, at::kFloat);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor here = x.to(type);
      const at::Tensor there =
          augment_pictures(here.to(at::kCUDA), params.to(at::kCUDA), h, w).cpu();
      const at::Tensor want = augment_pictures(here, params, h, w);
      if (type == at::kFloat) {
        EXPECT_TRUE(close(there, want, 5e-6, 0)) << h << "x" << w;
      } else {
        EXPECT_TRUE(close(there, want)) << h << "x" << w;
      }
      EXPECT_TRUE(same_bits(there.narrow(0, 0, 1), here.narrow(0, 0, 1)));
    }
    const at::Tensor bytes =
        at::randint(0, 256, {8, h, w, 3}, at::TensorOptions(at::kLong)).to(at::kByte);
    EXPECT_TRUE(close(augment_pictures(bytes.to(at::kCUDA), params.to(at::kCUDA), h + 1, w).cpu(),
                      augment_pictures(bytes, params, h + 1, w), 5e-6, 0));
  }
}

TEST(AugmentGpu, RepeatsBitForBitAndTakesAnyLayout) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor x = pictures({8, 3, 224, 224}, at::kFloat).to(at::kCUDA);
  const at::Tensor params = table(varied_rows(224, 224)).to(at::kCUDA);
  const at::Tensor first = augment_pictures(x, params, 224, 224).cpu();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(same_bits(first, augment_pictures(x, params, 224, 224).cpu()));
  }
  EXPECT_TRUE(
      same_bits(first, augment_pictures(misaligned(x), misaligned(params), 224, 224).cpu()));
  const at::Tensor strided = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
  EXPECT_TRUE(same_bits(first, augment_pictures(strided, params, 224, 224).cpu()));
  EXPECT_EQ(augment_pictures(x.narrow(0, 0, 0), params.narrow(0, 0, 0), 8, 8).numel(), 0);
}

TEST(AugmentGpu, ACapturedCallReadsTheParametersOfTheReplay) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const c10::Device device(c10::DeviceType::CUDA, 0);
  const at::Tensor x = pictures({8, 3, 61, 61}, at::kFloat).to(device);
  const std::vector<Row> rows = varied_rows(61, 61);
  const std::vector<Row> turned_rows(rows.rbegin(), rows.rend());
  at::Tensor params = table(rows).to(device);
  at::Tensor out;
  const runtime::Stream stream = runtime::Stream::make(device, false);
  const runtime::GraphPool pool(device);
  runtime::CapturedGraph graph;
  graph.capture(stream, pool, [&] { out = augment_pictures(x, params, 61, 61); });
  for (const auto& now : {rows, turned_rows}) {
    const at::Tensor want = augment_pictures(x, table(now).to(device), 61, 61).cpu();
    const runtime::StreamScope scope(stream);
    params.copy_(table(now));
    graph.replay();
    stream.synchronize();
    EXPECT_TRUE(same_bits(out.cpu(), want));
  }
}

}  // namespace
}  // namespace longship::ops
