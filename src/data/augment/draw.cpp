// Random numbers of an augmentation. Every transform has its own places in the sequence of a
// sample's camera, so that adding one changes no other.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/augment/picture.h"

namespace longship::data {
namespace {

constexpr uint64_t kNumbersPerKind = 8;
constexpr uint64_t kChoice = 0;  // of the kind's numbers: is it chosen
constexpr uint64_t kValue = 1;   // from the range
constexpr uint64_t kFirst = 2;   // offset or shift in x, rank in a random order
constexpr uint64_t kSecond = 3;  // in y

/// Uniform numbers of one picture.
class Numbers {
 public:
  Numbers(const TrainDraw& draw, int64_t sample_id, std::string_view camera)
      : key_(make_key(draw.seed, RngStream::kAugment, draw.step, static_cast<uint64_t>(sample_id))),
        // 32 bits of the name: the block counter of one sample holds 2^64 numbers.
        base_((hash_name(camera) & 0xFFFFFFFFULL) << 16) {}
  double uniform(AugmentKind kind, uint64_t which) const {
    double value = 0;
    fill_uniform(key_, {&value, 1}, base_ + static_cast<uint64_t>(kind) * kNumbersPerKind + which);
    return value;
  }
  double between(AugmentKind kind, uint64_t which, double low, double high) const {
    return low + (high - low) * uniform(kind, which);
  }
  /// 0 .. most, all alike.
  int64_t integer(AugmentKind kind, uint64_t which, int64_t most) const {
    const auto count = static_cast<double>(most + 1);
    return std::min(most, static_cast<int64_t>(uniform(kind, which) * count));
  }

 private:
  RngKey key_;
  uint64_t base_;
};

/// max_transforms of the list without repetition, by weight: the largest values of log(u) / weight
/// (Efraimidis and Spirakis 2006), which is the distribution of drawing one after the other.
std::vector<bool> choose(const AugmentConfig& config, const Numbers& numbers) {
  const size_t count = config.transforms.size();
  const auto wanted =
      static_cast<size_t>(config.max_transforms.value_or(static_cast<int64_t>(count)));
  std::vector<bool> chosen(count, wanted >= count);
  if (wanted >= count) return chosen;
  std::vector<std::pair<double, size_t>> ranks;
  for (size_t i = 0; i < count; ++i) {
    const AugmentTransform& t = config.transforms[i];
    const double u = numbers.uniform(parse_augment_kind(t.name), kChoice);
    ranks.emplace_back(-std::log(u) / t.weight, i);
  }
  std::sort(ranks.begin(), ranks.end());
  for (size_t k = 0; k < wanted; ++k) chosen[ranks[k].second] = true;
  return chosen;
}

/// place after (x, y) -> (a x + b y + c, d x + e y + f) on the right: later transforms look at
/// earlier ones.
std::array<double, 6> after(const std::array<double, 6>& m, const std::array<double, 6>& n) {
  return {m[0] * n[0] + m[1] * n[3], m[0] * n[1] + m[1] * n[4], m[0] * n[2] + m[1] * n[5] + m[2],
          m[3] * n[0] + m[4] * n[3], m[3] * n[1] + m[4] * n[4], m[3] * n[2] + m[4] * n[5] + m[5]};
}

/// The frame's pixel looks at the place turned by `degrees` about the middle, after a shift back.
std::array<double, 6> turn(double degrees, double shift_x, double shift_y, double height,
                           double width) {
  const double angle = degrees * std::numbers::pi / 180.0;
  const double c = std::cos(angle), s = std::sin(angle);
  const double mid_x = (width - 1) / 2, mid_y = (height - 1) / 2;
  const double x = mid_x + shift_x, y = mid_y + shift_y;
  return {c, -s, mid_x - c * x + s * y, s, c, mid_y - s * x - c * y};
}

ColourOp colour_op(AugmentKind kind) {
  switch (kind) {
    case AugmentKind::kBrightness:
      return ColourOp::kBrightness;
    case AugmentKind::kContrast:
      return ColourOp::kContrast;
    case AugmentKind::kSaturation:
      return ColourOp::kSaturation;
    case AugmentKind::kHue:
      return ColourOp::kHue;
    default:
      throw InternalError(fmt::format("'{}' is no colour", augment_kind_name(kind)));
  }
}

bool left_alone(const AugmentTransform& t, std::string_view slot, std::string_view camera) {
  return std::any_of(t.except.begin(), t.except.end(), [&](const std::string& pattern) {
    return matches_glob(pattern, slot) || matches_glob(pattern, camera);
  });
}

void draw_crop(const AugmentTransform& t, const Numbers& numbers, int64_t height, int64_t width,
               PictureAugment& out) {
  const double side = numbers.between(AugmentKind::kCrop, kValue, t.range[0], t.range[1]);
  const int64_t h = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(height) * side));
  const int64_t w = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(width) * side));
  out.crop_x = static_cast<float>(numbers.integer(AugmentKind::kCrop, kFirst, width - w));
  out.crop_y = static_cast<float>(numbers.integer(AugmentKind::kCrop, kSecond, height - h));
  out.crop_w = static_cast<float>(w);
  out.crop_h = static_cast<float>(h);
}

}  // namespace

PictureAugment draw_augment(const AugmentConfig& config, const TrainDraw& draw, int64_t sample_id,
                            std::string_view slot, std::string_view camera, int64_t height,
                            int64_t width) {
  PictureAugment out;
  out.crop_w = static_cast<float>(width);
  out.crop_h = static_cast<float>(height);
  if (!config.enabled()) return out;
  out.nearest = config.interpolation == "nearest";
  out.openpi_colour = config.colour == "openpi";
  const Numbers numbers(draw, sample_id, config.share_cameras ? std::string_view{} : slot);
  const std::vector<bool> chosen = choose(config, numbers);
  const auto w = static_cast<double>(width), h = static_cast<double>(height);
  std::array<double, 6> place = {1, 0, 0, 0, 1, 0};
  std::vector<std::pair<double, std::pair<ColourOp, float>>> colours;
  out.geometry_last = !is_geometric(parse_augment_kind(config.transforms.front().name));
  for (size_t i = 0; i < config.transforms.size(); ++i) {
    const AugmentTransform& t = config.transforms[i];
    if (!chosen[i] || left_alone(t, slot, camera)) continue;
    const AugmentKind kind = parse_augment_kind(t.name);
    const double value = numbers.between(kind, kValue, t.range[0], t.range[1]);
    if (kind == AugmentKind::kCrop) {
      draw_crop(t, numbers, height, width, out);
    } else if (kind == AugmentKind::kRotate) {
      place = after(place, turn(value, 0, 0, h, w));
    } else if (kind == AugmentKind::kAffine) {
      const double most_x = t.translate.empty() ? 0 : t.translate[0] * w;
      const double most_y = t.translate.empty() ? 0 : t.translate[1] * h;
      // torchvision's positive angle turns clockwise, openpi's the other way.
      place =
          after(place, turn(-value, std::nearbyint(numbers.between(kind, kFirst, -most_x, most_x)),
                            std::nearbyint(numbers.between(kind, kSecond, -most_y, most_y)), h, w));
    } else if (kind == AugmentKind::kSharpness) {
      out.sharpness = static_cast<float>(value);
    } else {
      const double rank =
          config.random_order ? numbers.uniform(kind, kFirst) : static_cast<double>(i);
      colours.push_back({rank, {colour_op(kind), static_cast<float>(value)}});
    }
  }
  std::sort(colours.begin(), colours.end());
  for (size_t k = 0; k < colours.size(); ++k) {
    out.ops[k] = colours[k].second.first;
    out.factors[k] = colours[k].second.second;
  }
  for (size_t k = 0; k < place.size(); ++k) out.place[k] = static_cast<float>(place[k]);
  return out;
}

bool PictureAugment::moves(int64_t height, int64_t width) const {
  return place != std::array<float, 6>{1, 0, 0, 0, 1, 0} || crop_x != 0 || crop_y != 0 ||
         crop_w != static_cast<float>(width) || crop_h != static_cast<float>(height);
}

bool PictureAugment::identity(int64_t height, int64_t width) const {
  return !moves(height, width) && !colours();
}

void write_augment(const PictureAugment& augment, std::span<float> row) {
  LS_CHECK(static_cast<int64_t>(row.size()) == kAugmentNumbers, ShapeError,
           "a row of {} numbers for an augmentation, which has {}", row.size(), kAugmentNumbers);
  float* out = std::copy(augment.place.begin(), augment.place.end(), row.data());
  for (const float v : {augment.crop_x, augment.crop_y, augment.crop_w, augment.crop_h}) *out++ = v;
  *out++ = static_cast<float>((augment.geometry_last ? 1 : 0) + (augment.nearest ? 2 : 0) +
                              (augment.openpi_colour ? 4 : 0));
  for (const ColourOp op : augment.ops) *out++ = static_cast<float>(static_cast<int>(op));
  out = std::copy(augment.factors.begin(), augment.factors.end(), out);
  *out = augment.sharpness;
}

}  // namespace longship::data
