#pragma once
// Resize with black padding to a square, in the five arithmetic flavours of the reference
// implementations, pinned by tests/golden/pi05/preprocess. Torch-free and thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample.h"

namespace longship::data {

enum class ResizeFlavour {
  kOpenpiPil,  // openpi's data transform: Pillow 11 BILINEAR (antialiased), uint8 and 22-bit fixed
               // point, exact
  kTorch01,    // lerobot, LoongForge: float in [0,1], no antialias, pad 0, then 2x-1
  kTorch11,    // openpi's torch fallback: float in [-1,1], no antialias, pad -1
  kTorchU8,    // openpi's torch fallback on uint8: no antialias, rounded, pad 0
  kJax11,      // openpi's JAX fallback: float in [-1,1], antialiased, pad -1
};

/// "openpi_pil", "torch01", "torch11", "torch_u8", "jax11". Throws ConfigError listing them.
ResizeFlavour parse_resize_flavour(std::string_view name);
std::string_view resize_flavour_name(ResizeFlavour flavour);
const std::vector<std::string>& resize_flavour_names();

/// Where the resized picture lies in the square.
struct PadPlan {
  int64_t resized_h = 0;
  int64_t resized_w = 0;
  int64_t top = 0;
  int64_t left = 0;
};
/// ratio = max(w/size, h/size) in double; resized = trunc(side/ratio) (the long side may become
/// size-1); padding before is floor(rest/2). A side that would vanish throws DataError.
PadPlan plan_resize_with_pad(int64_t height, int64_t width, int64_t size);

/// uint8 flavours only (kOpenpiPil, kTorchU8): out [size, size, 3].
void resize_with_pad_u8(const Image& image, int64_t size, ResizeFlavour flavour,
                        std::span<uint8_t> out);

/// Any flavour: out [3, size, size] fp32 in [-1,1]; uint8 flavours give value/255*2-1 in fp32.
/// Throws DataError when the picture's bytes do not fit its size.
void resize_with_pad_chw(const Image& image, int64_t size, ResizeFlavour flavour,
                         std::span<float> out);

}  // namespace longship::data
