#include "data/augment/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/strings.h"

namespace longship::data {
namespace {

struct KindFacts {
  AugmentKind kind;
  const char* name;
  double min, max;  // limits of the range
};

constexpr std::array<KindFacts, 8> kKinds = {{
    {AugmentKind::kCrop, "crop", 0.05, 1.0},
    {AugmentKind::kRotate, "rotate", -180, 180},
    {AugmentKind::kAffine, "affine", -180, 180},
    {AugmentKind::kBrightness, "brightness", 0, 100},
    {AugmentKind::kContrast, "contrast", 0, 100},
    {AugmentKind::kSaturation, "saturation", 0, 100},
    {AugmentKind::kHue, "hue", -0.5, 0.5},
    {AugmentKind::kSharpness, "sharpness", 0, 100},
}};

const KindFacts& facts_of(AugmentKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(),
                       [&](const KindFacts& facts) { return facts.kind == kind; });
}

AugmentTransform make(const char* name, double low, double high) {
  AugmentTransform out;
  out.name = name;
  out.range = {low, high};
  return out;
}

/// openpi: the wrist camera keeps its geometry.
std::vector<AugmentTransform> openpi_transforms() {
  std::vector<AugmentTransform> out = {make("crop", 0.95, 0.95), make("rotate", -5, 5),
                                       make("brightness", 0.7, 1.3), make("contrast", 0.6, 1.4),
                                       make("saturation", 0.5, 1.5)};
  out[0].except = out[1].except = {"*wrist*"};
  return out;
}

std::vector<AugmentTransform> lerobot_transforms() {
  std::vector<AugmentTransform> out = {make("brightness", 0.8, 1.2), make("contrast", 0.8, 1.2),
                                       make("saturation", 0.5, 1.5), make("hue", -0.05, 0.05),
                                       make("sharpness", 0.5, 1.5),  make("affine", -5, 5)};
  out[5].translate = {0.05, 0.05};
  return out;
}

void check_transform(const AugmentTransform& t, size_t i) {
  const std::string key = fmt::format("data.augment.transforms.{}", i);
  const AugmentKind kind = parse_augment_kind(t.name);
  const KindFacts& facts = facts_of(kind);
  LS_CHECK(t.range.size() == 2 && t.range[0] <= t.range[1] && t.range[0] >= facts.min &&
               t.range[1] <= facts.max,
           ConfigError, "{}.range: [{}] of '{}' must be [low, high] within {} .. {}", key,
           fmt::join(t.range, ", "), t.name, facts.min, facts.max);
  if (kind == AugmentKind::kAffine) {
    LS_CHECK(t.translate.empty() ||
                 (t.translate.size() == 2 && std::min(t.translate[0], t.translate[1]) >= 0 &&
                  std::max(t.translate[0], t.translate[1]) <= 1),
             ConfigError, "{}.translate: [{}] must be [x, y], parts of the side from 0 to 1", key,
             fmt::join(t.translate, ", "));
  } else {
    LS_CHECK(t.translate.empty(), ConfigError,
             "{}.translate: has no effect on '{}', only on 'affine'; remove it", key, t.name);
  }
  LS_CHECK(t.weight > 0, ConfigError, "{}.weight: {} must be above 0; remove the transform instead",
           key, t.weight);
}

/// Each kind once; geometry together at one end; sharpness behind the colours; crop before the
/// transforms that turn the frame.
void check_order(const std::vector<AugmentTransform>& transforms) {
  std::set<AugmentKind> seen;
  std::vector<AugmentKind> kinds;
  for (const AugmentTransform& t : transforms) {
    kinds.push_back(parse_augment_kind(t.name));
    LS_CHECK(seen.insert(kinds.back()).second, ConfigError,
             "data.augment.transforms: '{}' stands twice; give it once, with the wider range",
             t.name);
  }
  const auto geometric = [](AugmentKind kind) { return is_geometric(kind); };
  const auto first = std::find_if(kinds.begin(), kinds.end(), geometric);
  const auto behind = std::find_if_not(first, kinds.end(), geometric);
  LS_CHECK(std::none_of(behind, kinds.end(), geometric) &&
               (first == kinds.begin() || behind == kinds.end()),
           ConfigError,
           "data.augment.transforms: crop, rotate and affine must stand together, all first or all "
           "last");
  bool sharpened = false, turned = false;
  for (const AugmentKind kind : kinds) {
    LS_CHECK(!(sharpened && is_colour(kind)), ConfigError,
             "data.augment.transforms: sharpness must stand after the colours");
    LS_CHECK(!(turned && kind == AugmentKind::kCrop), ConfigError,
             "data.augment.transforms: crop must stand before rotate and affine");
    sharpened = sharpened || kind == AugmentKind::kSharpness;
    turned = turned || kind == AugmentKind::kRotate || kind == AugmentKind::kAffine;
  }
}

}  // namespace

AugmentKind parse_augment_kind(std::string_view name) {
  std::vector<std::string> names;
  for (const KindFacts& facts : kKinds) {
    if (name == facts.name) return facts.kind;
    names.emplace_back(facts.name);
  }
  throw ConfigError(
      fmt::format("data.augment: unknown transform '{}'; there are {}", name, join(names, ", ")));
}

std::string_view augment_kind_name(AugmentKind kind) {
  return facts_of(kind).name;
}

bool is_geometric(AugmentKind kind) {
  return kind == AugmentKind::kCrop || kind == AugmentKind::kRotate || kind == AugmentKind::kAffine;
}

bool is_colour(AugmentKind kind) {
  return !is_geometric(kind) && kind != AugmentKind::kSharpness;
}

void AugmentTransform::reflect(config::Visitor& visitor) {
  visitor.field("name", name,
                {.doc = "crop, rotate, affine, brightness, contrast, saturation, hue or sharpness",
                 .required = true});
  visitor.field(
      "range", range,
      {.doc = "Lowest and highest value, drawn uniformly: crop: part of the side; rotate, "
              "affine: degrees; hue: turns; the others: factors"});
  visitor.field("translate", translate,
                {.doc = "affine: largest shift in x and y, as a part of the side"});
  visitor.field("weight", weight, {.doc = "Share in the choice of max_transforms", .min = 0});
  visitor.field("except", except,
                {.doc = "Cameras this transform leaves alone: patterns with * and ? over the "
                        "model's slot and the dataset's camera"});
}

void AugmentConfig::reflect(config::Visitor& visitor) {
  visitor.choice("preset", preset, {"none", "openpi", "lerobot", "custom"},
                 {.doc = "Whose transforms; custom: those listed; never in evaluation"});
  visitor.list(
      "transforms", transforms,
      "Applied in this order; empty: the preset's. Crop, rotate and affine stand together, "
      "first or last; sharpness after the colours");
  visitor.field("max_transforms", max_transforms,
                {.doc = "Transforms applied to a picture, chosen at random by weight; null: the "
                        "preset's number (lerobot: 3), else all",
                 .min = 1});
  visitor.field("random_order", random_order,
                {.doc = "Brightness, contrast, saturation and hue in a random order per picture"});
  visitor.choice("colour", colour, {"auto", "openpi", "torchvision"},
                 {.doc = "Arithmetic of the colours: openpi: grey is the mean of the channels, "
                         "clamped once; torchvision: Rec. 601 grey, clamped after each"});
  visitor.choice("interpolation", interpolation, {"auto", "bilinear", "nearest"},
                 {.doc = "Of crop, rotate and affine; auto: bilinear, lerobot's nearest"});
  visitor.field("share_cameras", share_cameras,
                {.doc = "The same draw for all cameras of a sample"});
  visitor.choice("on", on, {"auto", "host", "device"},
                 {.doc = "Where pictures are changed; auto: on the GPU when it trains, else by the "
                         "workers"});
}

void AugmentConfig::resolve() {
  if (preset == "none") {
    const AugmentConfig off;
    LS_CHECK(transforms.empty() && !max_transforms && random_order == off.random_order &&
                 colour == off.colour && interpolation == off.interpolation &&
                 share_cameras == off.share_cameras && on == off.on,
             ConfigError,
             "data.augment: settings have no effect with preset none; set data.augment.preset to "
             "openpi, lerobot or custom, or remove them");
    return;
  }
  if (transforms.empty()) {
    LS_CHECK(
        preset != "custom", ConfigError,
        "data.augment.transforms: preset custom needs a list, e.g. [{{name: brightness, range: "
        "[0.8, 1.2]}}]");
    transforms = preset == "openpi" ? openpi_transforms() : lerobot_transforms();
    if (preset == "lerobot" && !max_transforms) max_transforms = 3;
  }
  if (colour == "auto") colour = preset == "openpi" ? "openpi" : "torchvision";
  if (interpolation == "auto") interpolation = preset == "lerobot" ? "nearest" : "bilinear";
  for (size_t i = 0; i < transforms.size(); ++i) check_transform(transforms[i], i);
  check_order(transforms);
  const auto count = static_cast<int64_t>(transforms.size());
  LS_CHECK(!max_transforms || *max_transforms <= count, ConfigError,
           "data.augment.max_transforms: {} of {} transforms; null applies all", *max_transforms,
           count);
  const auto colours = std::count_if(
      transforms.begin(), transforms.end(),
      [](const AugmentTransform& t) { return is_colour(parse_augment_kind(t.name)); });
  LS_CHECK(!random_order || colours >= 2, ConfigError,
           "data.augment.random_order: has no effect with fewer than two colour transforms");
  for (size_t i = 0; i < transforms.size() && !max_transforms; ++i) {
    LS_CHECK(
        transforms[i].weight == 1.0, ConfigError,
        "data.augment.transforms.{}.weight: has no effect when all transforms are applied; set "
        "max_transforms or remove it",
        i);
  }
}

}  // namespace longship::data
