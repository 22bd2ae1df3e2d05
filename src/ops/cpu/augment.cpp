// CPU implementation of augment_pictures: the oracle of the CUDA kernels. Every output pixel is
// computed from the definition, neighbours again and again; positions in fp32, colours in the type
// of the arithmetic, the mean in fp64.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "ops/augment_check.h"
#include "ops/cpu/float_types.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

enum Operation { kNone = 0, kBrightness = 1, kContrast = 2, kSaturation = 3, kHue = 4 };

struct Row {
  explicit Row(const float* row) : n(row) {}
  bool flag(int bit) const { return (static_cast<int>(n[10]) & bit) != 0; }
  bool geometry_last() const { return flag(1); }
  bool nearest() const { return flag(2); }
  bool openpi() const { return flag(4); }
  int op(int k) const { return static_cast<int>(n[11 + k]); }
  float factor(int k) const { return n[15 + k]; }
  float sharpness() const { return n[19]; }
  bool colours() const { return op(0) != kNone || sharpness() != 1.0F; }
  int contrast() const {
    for (int k = 0; k < 4; ++k) {
      if (op(k) == kContrast) return k;
    }
    return -1;
  }
  const float* n;
};

template <class Acc>
using Rgb = std::array<Acc, 3>;
template <class Acc>
using Tap = std::function<Rgb<Acc>(int64_t x, int64_t y)>;

template <class Acc>
Rgb<Acc> clamped(Rgb<Acc> v) {
  for (Acc& c : v) c = std::clamp(c, Acc(0), Acc(1));
  return v;
}

struct Look {
  int64_t low = 0, high = 0;
  float part = 0, cover = 1;
};

Look look(float q, float first, float part, int64_t frame, bool nearest) {
  const auto size = static_cast<float>(frame);
  Look out;
  out.cover = std::clamp(std::min(q + 1.0F, size - q), 0.0F, 1.0F);
  float p = (q + 0.5F) * (part / size) + (first - 0.5F);
  p = std::clamp(p, first, first + part - 1.0F);
  if (nearest) {
    const float rounded = std::nearbyint(q);
    out.cover = rounded >= 0.0F && rounded < size ? 1.0F : 0.0F;
    out.low = out.high = static_cast<int64_t>(std::nearbyint(p));
    return out;
  }
  out.low = static_cast<int64_t>(std::floor(p));
  out.high = std::min(out.low + 1, static_cast<int64_t>(first + part) - 1);
  out.part = p - std::floor(p);
  return out;
}

/// What the frame's pixel (x, y) sees.
template <class Acc>
Rgb<Acc> placed(const Row& row, int64_t height, int64_t width, Acc black, int64_t x, int64_t y,
                const Tap<Acc>& tap) {
  const auto fx = static_cast<float>(x), fy = static_cast<float>(y);
  const float* m = row.n;
  const Look h = look(m[0] * fx + m[1] * fy + m[2], m[6], m[8], width, row.nearest());
  const Look v = look(m[3] * fx + m[4] * fy + m[5], m[7], m[9], height, row.nearest());
  const Rgb<Acc> a = tap(h.low, v.low), b = tap(h.high, v.low), c = tap(h.low, v.high),
                 d = tap(h.high, v.high);
  const Acc right = h.part, down = v.part, cover = h.cover * v.cover;
  Rgb<Acc> out;
  for (size_t i = 0; i < 3; ++i) {
    const Acc upper = (1 - right) * a[i] + right * b[i];
    const Acc lower = (1 - right) * c[i] + right * d[i];
    const Acc value = (1 - down) * upper + down * lower;
    out[i] = cover == 1 ? value : black + cover * (value - black);
  }
  return out;
}

template <class Acc>
Acc grey(const Rgb<Acc>& v, bool openpi) {
  if (openpi) return (v[0] + v[1] + v[2]) / Acc(3);
  return Acc(0.2989) * v[0] + Acc(0.587) * v[1] + Acc(0.114) * v[2];
}

/// Through hue, saturation and value: the definition, with no shortcut.
template <class Acc>
Rgb<Acc> turn_hue(const Rgb<Acc>& v, Acc turns) {
  const Acc most = std::max({v[0], v[1], v[2]}), least = std::min({v[0], v[1], v[2]});
  if (most == least) return v;
  const Acc spread = most - least, saturation = spread / most;
  Acc hue = 0;
  if (most == v[0]) {
    hue = (v[1] - v[2]) / spread;
  } else if (most == v[1]) {
    hue = 2 + (v[2] - v[0]) / spread;
  } else {
    hue = 4 + (v[0] - v[1]) / spread;
  }
  hue = hue / 6 + turns;
  hue -= std::floor(hue);
  // Channel c is bright where the hue is within a sixth of its own, dark beyond a third.
  Rgb<Acc> out;
  for (size_t c = 0; c < 3; ++c) {
    Acc away = std::abs(hue - Acc(c) / 3);
    away = std::min(away, 1 - away);
    const Acc bright = std::clamp(2 - 6 * away, Acc(0), Acc(1));
    out[c] = most * (1 - saturation * (1 - bright));
  }
  return out;
}

template <class Acc>
Rgb<Acc> coloured(const Row& row, Rgb<Acc> v, int count, Acc mean) {
  for (int k = 0; k < count && row.op(k) != kNone; ++k) {
    const Acc factor = row.factor(k);
    if (row.op(k) == kHue) {
      v = turn_hue(clamped(v), factor);
    } else {
      const Acc about = row.op(k) == kBrightness ? Acc(0)
                        : row.op(k) == kContrast ? mean
                                                 : grey(v, row.openpi());
      for (Acc& c : v) c = factor * c + (1 - factor) * about;
    }
    if (!row.openpi()) v = clamped(v);
  }
  return v;
}

template <class Acc>
Rgb<Acc> sharpened(const Row& row, int64_t height, int64_t width, int64_t x, int64_t y,
                   const Tap<Acc>& tap) {
  const Rgb<Acc> here = tap(x, y);
  if (row.sharpness() == 1.0F || x == 0 || y == 0 || x + 1 >= width || y + 1 >= height) return here;
  Rgb<Acc> blurred = {4 * here[0], 4 * here[1], 4 * here[2]};  // and once in the loop
  for (int64_t dy = -1; dy <= 1; ++dy) {
    for (int64_t dx = -1; dx <= 1; ++dx) {
      const Rgb<Acc> v = tap(x + dx, y + dy);
      for (size_t c = 0; c < 3; ++c) blurred[c] += v[c];
    }
  }
  Rgb<Acc> out;
  const Acc factor = row.sharpness();
  for (size_t c = 0; c < 3; ++c) out[c] = factor * here[c] + (1 - factor) * (blurred[c] / 13);
  return row.openpi() ? out : clamped(out);
}

template <class Acc>
double mean_over(const Row& row, int64_t height, int64_t width, const Tap<Acc>& tap) {
  if (row.contrast() < 0) return 0;
  double sum = 0;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      sum +=
          static_cast<double>(grey(coloured(row, tap(x, y), row.contrast(), Acc(0)), row.openpi()));
    }
  }
  return sum / static_cast<double>(height * width);
}

struct Size {
  int64_t height = 0, width = 0;
};

/// store(y, x, rgb in [-1, 1]) for every output pixel.
template <class Acc, class Store>
void augment_one(const Row& row, const Size& in, const Size& out, bool bytes,
                 const Tap<Acc>& source, const Store& store) {
  const bool to_unit = row.colours() && !bytes, in_unit = row.colours() || bytes;
  const Acc black = in_unit ? Acc(0) : Acc(-1);
  const Tap<Acc> base = [&](int64_t x, int64_t y) {
    Rgb<Acc> v = source(x, y);
    if (to_unit) {
      for (Acc& c : v) c = c * Acc(0.5) + Acc(0.5);
    }
    return v;
  };
  const auto at_place = [&](const Tap<Acc>& tap) -> Tap<Acc> {
    return [&row, &out, black, &tap](int64_t x, int64_t y) {
      return placed<Acc>(row, out.height, out.width, black, x, y, tap);
    };
  };
  const bool last = row.geometry_last();
  const Tap<Acc> first = last ? base : at_place(base);
  const Size size = last ? in : out;
  const Acc mean = static_cast<Acc>(mean_over<Acc>(row, size.height, size.width, first));
  const Tap<Acc> colour = [&](int64_t x, int64_t y) {
    return coloured<Acc>(row, first(x, y), 4, mean);
  };
  const Tap<Acc> sharp = [&](int64_t x, int64_t y) {
    const Rgb<Acc> v = sharpened<Acc>(row, size.height, size.width, x, y, colour);
    return row.colours() ? clamped(v) : v;
  };
  const Tap<Acc> whole = last ? at_place(sharp) : sharp;
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      Rgb<Acc> v = whole(x, y);
      if (in_unit) {
        for (Acc& c : v) c = c * 2 - 1;
      }
      store(y, x, v);
    }
  }
}

template <class T, class Acc, class Out>
void augment_all(const at::Tensor& pictures, const at::Tensor& params, const AugmentShape& shape,
                 at::Tensor& result) {
  const Size in{shape.in_height, shape.in_width}, out{result.size(2), result.size(3)};
  const int64_t plane = in.height * in.width, out_plane = out.height * out.width;
  for (int64_t i = 0; i < shape.num_pictures; ++i) {
    const Row row(params.const_data_ptr<float>() + i * kAugmentNumbers);
    const T* data = pictures.const_data_ptr<T>() + i * 3 * plane;
    Out* target = result.mutable_data_ptr<Out>() + i * 3 * out_plane;
    const Tap<Acc> source = [&](int64_t x, int64_t y) {
      const int64_t at = y * in.width + x;
      Rgb<Acc> v;
      for (int64_t c = 0; c < 3; ++c) {
        v[static_cast<size_t>(c)] = shape.bytes ? static_cast<Acc>(data[at * 3 + c]) / Acc(255)
                                                : static_cast<Acc>(data[c * plane + at]);
      }
      return v;
    };
    augment_one<Acc>(
        row, in, out, shape.bytes, source, [&](int64_t y, int64_t x, const Rgb<Acc>& v) {
          for (int64_t c = 0; c < 3; ++c) {
            target[c * out_plane + y * out.width + x] = static_cast<Out>(v[static_cast<size_t>(c)]);
          }
        });
  }
}

at::Tensor augment_cpu(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                       int64_t width) {
  const AugmentShape shape = check_augment(pictures, params, height, width);
  at::Tensor result =
      at::empty({shape.num_pictures, 3, height, width}, pictures.options().dtype(shape.out_type));
  if (shape.bytes) {
    augment_all<uint8_t, float, float>(pictures, params, shape, result);
  } else {
    dispatch_float("augment_pictures", pictures.scalar_type(), [&]<class T, class Acc>(T, Acc) {
      augment_all<T, Acc, T>(pictures, params, shape, result);
    });
  }
  return result;
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("augment_pictures", augment_cpu);
}

}  // namespace
}  // namespace longship::ops
