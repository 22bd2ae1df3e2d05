#pragma once
// What is done to pictures while training: the recipe's section data.augment. Torch-free.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/visitor.h"

namespace longship::data {

enum class AugmentKind {
  kCrop,        // a part of the picture, enlarged to the whole; range: side of the part / side
  kRotate,      // about the middle; range: degrees
  kAffine,      // rotation about the middle and a shift; range: degrees
  kBrightness,  // range: factor
  kContrast,    // range: factor, about the picture's mean
  kSaturation,  // range: factor, about the pixel's grey
  kHue,         // range: turns of the colour circle
  kSharpness,   // range: factor; 0 blurs, 1 nothing, 2 sharpens
};

/// "crop", "rotate", ...; throws ConfigError listing them.
AugmentKind parse_augment_kind(std::string_view name);
std::string_view augment_kind_name(AugmentKind kind);
bool is_geometric(AugmentKind kind);
bool is_colour(AugmentKind kind);  // brightness, contrast, saturation, hue

struct AugmentTransform {
  std::string name;
  std::vector<double> range;        // [low, high], drawn uniformly
  std::vector<double> translate;    // affine: largest shift in x and y, as a part of the side
  double weight = 1.0;              // share in the choice of max_transforms
  std::vector<std::string> except;  // cameras left alone: patterns with * and ?
  void reflect(config::Visitor& visitor);
};

/// data.augment. Order of the list = order of application. Geometric transforms stand together, all
/// first or all last; sharpness stands after the colours.
struct AugmentConfig {
  std::string preset = "none";  // none | openpi | lerobot | custom
  std::vector<AugmentTransform> transforms;
  std::optional<int64_t> max_transforms;
  bool random_order = false;
  std::string colour = "auto";         // auto | openpi | torchvision
  std::string interpolation = "auto";  // auto | bilinear | nearest
  bool share_cameras = false;
  std::string on = "auto";  // auto | host | device
  void reflect(config::Visitor& visitor);

  bool enabled() const { return preset != "none"; }
  /// Replaces what is left open by the preset's values, so that the resolved recipe says
  /// everything, and checks the rest. Does nothing twice. Throws ConfigError naming key and value.
  void resolve();
};

}  // namespace longship::data
