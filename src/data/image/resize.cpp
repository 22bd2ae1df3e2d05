// Each flavour keeps the order of operations of its source, because the golden values are exact for
// the uint8 ones.

#include "data/image/resize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "data/image/letterbox.h"
#include "data/image/separable.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;

/// Two-tap taps of torch's align_corners=False bilinear in arithmetic type F; the tap behind the
/// end has merged into the last sample.
template <class F>
Taps<F> bilinear_taps(int64_t n_in, int64_t n_out) {
  const F scale = static_cast<F>(n_in) / static_cast<F>(n_out);
  Taps<F> taps;
  taps.stride = 2;
  taps.first.resize(static_cast<size_t>(n_out));
  taps.count.resize(static_cast<size_t>(n_out));
  taps.weights.assign(static_cast<size_t>(n_out) * 2, F(0));
  for (int64_t i = 0; i < n_out; ++i) {
    const F source = std::max(scale * (static_cast<F>(i) + F(0.5)) - F(0.5), F(0));
    const int64_t j = std::min(static_cast<int64_t>(source), n_in - 1);
    const F lambda = std::clamp(source - static_cast<F>(j), F(0), F(1));
    const bool last = j == n_in - 1;
    taps.first[static_cast<size_t>(i)] = j;
    taps.count[static_cast<size_t>(i)] = last ? 1 : 2;
    taps.weights[static_cast<size_t>(i) * 2] = last ? F(1) : F(1) - lambda;
    taps.weights[static_cast<size_t>(i) * 2 + 1] = last ? F(0) : lambda;
  }
  return taps;
}

/// Two separable float passes over [h, w, 3] -> [h_out, w_out, 3], horizontal first (the order in
/// which torch nests its interpolation).
template <class W>
std::vector<float> separable_float(const std::vector<float>& in, int64_t h, int64_t w,
                                   const Taps<W>& across, const Taps<W>& down) {
  const auto w_out = static_cast<int64_t>(across.first.size());
  const auto h_out = static_cast<int64_t>(down.first.size());
  std::vector<W> rows(static_cast<size_t>(h * w_out * kChannels));
  for (int64_t y = 0; y < h; ++y) {
    for (int64_t x = 0; x < w_out; ++x) {
      const float* src =
          &in[static_cast<size_t>((y * w + across.first[static_cast<size_t>(x)]) * kChannels)];
      const W* weights = &across.weights[static_cast<size_t>(x * across.stride)];
      W acc[kChannels] = {0, 0, 0};
      for (int64_t j = 0; j < across.count[static_cast<size_t>(x)]; ++j, src += kChannels) {
        for (int64_t c = 0; c < kChannels; ++c) acc[c] += weights[j] * static_cast<W>(src[c]);
      }
      std::copy(acc, acc + kChannels, &rows[static_cast<size_t>((y * w_out + x) * kChannels)]);
    }
  }
  const int64_t pitch = w_out * kChannels;
  std::vector<float> out(static_cast<size_t>(h_out * pitch));
  std::vector<W> acc(static_cast<size_t>(pitch));
  for (int64_t y = 0; y < h_out; ++y) {
    std::fill(acc.begin(), acc.end(), W(0));
    const W* src = &rows[static_cast<size_t>(down.first[static_cast<size_t>(y)] * pitch)];
    const W* weights = &down.weights[static_cast<size_t>(y * down.stride)];
    for (int64_t j = 0; j < down.count[static_cast<size_t>(y)]; ++j, src += pitch) {
      for (int64_t i = 0; i < pitch; ++i) acc[static_cast<size_t>(i)] += weights[j] * src[i];
    }
    for (int64_t i = 0; i < pitch; ++i) {
      out[static_cast<size_t>(y * pitch + i)] = static_cast<float>(acc[static_cast<size_t>(i)]);
    }
  }
  return out;
}

using Levels = std::array<float, 256>;

const Levels& levels01() {
  static const Levels table = [] {
    Levels t{};
    for (int i = 0; i < 256; ++i) t[static_cast<size_t>(i)] = static_cast<float>(i) / 255.0F;
    return t;
  }();
  return table;
}

const Levels& levels11() {
  static const Levels table = [] {
    Levels t{};
    for (int i = 0; i < 256; ++i)
      t[static_cast<size_t>(i)] = static_cast<float>(i) / 255.0F * 2.0F - 1.0F;
    return t;
  }();
  return table;
}

void check_image(const Image& image, int64_t size) {
  LS_CHECK(size > 0, ConfigError, "picture size {} is not positive", size);
  check_picture(image);
}

void hwc_u8_to_chw(const uint8_t* in, int64_t size, float* out) {
  const Levels& table = levels11();
  const int64_t plane = size * size;
  for (int64_t i = 0; i < plane; ++i, in += kChannels) {
    out[i] = table[in[0]];
    out[plane + i] = table[in[1]];
    out[2 * plane + i] = table[in[2]];
  }
}

void resize_float(const Image& image, int64_t size, ResizeFlavour flavour, std::span<float> out) {
  const PadPlan plan = plan_resize_with_pad(image.height, image.width, size);
  const bool unit = flavour == ResizeFlavour::kTorch01;
  const Levels& table = unit ? levels01() : levels11();
  std::vector<float> in(image.rgb.size());
  std::transform(image.rgb.begin(), image.rgb.end(), in.begin(),
                 [&](uint8_t v) { return table[v]; });
  if (flavour == ResizeFlavour::kJax11) {
    in = separable_float(in, image.height, image.width,
                         antialias_taps(image.width, plan.resized_w, FilterKernel::kTriangle),
                         antialias_taps(image.height, plan.resized_h, FilterKernel::kTriangle));
  } else {
    in = separable_float(in, image.height, image.width,
                         bilinear_taps<float>(image.width, plan.resized_w),
                         bilinear_taps<float>(image.height, plan.resized_h));
  }
  std::fill(out.begin(), out.end(), -1.0F);
  const int64_t plane = size * size;
  for (int64_t y = 0; y < plan.resized_h; ++y) {
    const float* src = &in[static_cast<size_t>(y * plan.resized_w * kChannels)];
    float* dst = out.data() + (plan.top + y) * size + plan.left;
    for (int64_t x = 0; x < plan.resized_w; ++x, src += kChannels) {
      for (int64_t c = 0; c < kChannels; ++c) {
        const float v = src[c];
        dst[c * plane + x] =
            unit ? std::clamp(v, 0.0F, 1.0F) * 2.0F - 1.0F : std::clamp(v, -1.0F, 1.0F);
      }
    }
  }
}

}  // namespace

const std::vector<std::string>& resize_flavour_names() {
  static const std::vector<std::string> names = {"openpi_pil", "torch01", "torch11", "torch_u8",
                                                 "jax11"};
  return names;
}

ResizeFlavour parse_resize_flavour(std::string_view name) {
  const auto& names = resize_flavour_names();
  const auto it = std::find(names.begin(), names.end(), name);
  LS_CHECK(
      it != names.end(), ConfigError,
      "unknown picture resize flavour '{}'; use openpi_pil, torch01, torch11, torch_u8 or jax11",
      name);
  return static_cast<ResizeFlavour>(it - names.begin());
}

std::string_view resize_flavour_name(ResizeFlavour flavour) {
  return resize_flavour_names()[static_cast<size_t>(flavour)];
}

PadPlan plan_resize_with_pad(int64_t height, int64_t width, int64_t size) {
  const auto h = static_cast<double>(height);
  const auto w = static_cast<double>(width);
  const auto s = static_cast<double>(size);
  const double ratio = std::max(w / s, h / s);
  PadPlan plan;
  plan.resized_h = static_cast<int64_t>(h / ratio);
  plan.resized_w = static_cast<int64_t>(w / ratio);
  LS_CHECK(plan.resized_h > 0 && plan.resized_w > 0, DataError,
           "a picture of {}x{} (height x width) is too narrow for a square of {}: its short side "
           "would vanish",
           height, width, size);
  plan.top = (size - plan.resized_h) / 2;
  plan.left = (size - plan.resized_w) / 2;
  return plan;
}

void resize_with_pad_u8(const Image& image, int64_t size, ResizeFlavour flavour,
                        std::span<uint8_t> out) {
  check_image(image, size);
  LS_CHECK(flavour == ResizeFlavour::kOpenpiPil || flavour == ResizeFlavour::kTorchU8,
           InternalError, "resize flavour {} has no uint8 form", resize_flavour_name(flavour));
  LS_CHECK(static_cast<int64_t>(out.size()) == size * size * kChannels, ShapeError,
           "resize output has {} bytes, expected {}", out.size(), size * size * kChannels);
  if (image.height == size && image.width == size) {
    std::copy(image.rgb.begin(), image.rgb.end(), out.begin());
    return;
  }
  const PadPlan plan = plan_resize_with_pad(image.height, image.width, size);
  const auto taps = [&](int64_t n_in, int64_t n_out) {
    return flavour == ResizeFlavour::kOpenpiPil
               ? fixed_point(antialias_taps(n_in, n_out, FilterKernel::kTriangle), kPillowBits)
               : torch_fixed_point(bilinear_taps<double>(n_in, n_out));
  };
  std::vector<uint8_t> across;
  const uint8_t* rows = image.rgb.data();
  if (plan.resized_w != image.width) {
    across = horizontal_u8(rows, image.height, image.width, taps(image.width, plan.resized_w));
    rows = across.data();
  }
  const int64_t pitch = size * kChannels;
  const int64_t row_bytes = plan.resized_w * kChannels;
  uint8_t* dst = out.data() + plan.top * pitch + plan.left * kChannels;
  if (plan.resized_h != size || plan.resized_w != size)
    std::fill(out.begin(), out.end(), uint8_t{0});
  if (plan.resized_h != image.height) {
    vertical_u8(rows, plan.resized_w, taps(image.height, plan.resized_h), dst, pitch);
  } else {
    for (int64_t y = 0; y < plan.resized_h; ++y) {
      std::memcpy(dst + y * pitch, rows + y * row_bytes, static_cast<size_t>(row_bytes));
    }
  }
}

void resize_with_pad_chw(const Image& image, int64_t size, ResizeFlavour flavour,
                         std::span<float> out) {
  check_image(image, size);
  LS_CHECK(static_cast<int64_t>(out.size()) == size * size * kChannels, ShapeError,
           "resize output has {} numbers, expected {}", out.size(), size * size * kChannels);
  if (image.height == size && image.width == size) {
    hwc_u8_to_chw(image.rgb.data(), size, out.data());
    return;
  }
  if (flavour == ResizeFlavour::kOpenpiPil || flavour == ResizeFlavour::kTorchU8) {
    std::vector<uint8_t> square(out.size());
    resize_with_pad_u8(image, size, flavour, square);
    hwc_u8_to_chw(square.data(), size, out.data());
    return;
  }
  resize_float(image, size, flavour, out);
}

}  // namespace longship::data
