#include "apps/versions.h"

#include <fmt/core.h>

#include "base/version.h"
#include "io/parquet.h"
#include "io/video.h"
#include "runtime/device.h"

namespace longship::apps {

std::string versions_text() {
  // The LS_*_VERSION macros are what CMake found; the others are asked of the libraries that were
  // loaded.
  return fmt::format(
      "{}\n  LibTorch {}\n  CUDA {}\n  Arrow {}\n  FFmpeg {}\n  SentencePiece {}\n  yaml-cpp {}\n"
      "  nlohmann-json {}\n  spdlog {}\n  fmt {}",
      build_info(), runtime::torch_version(), runtime::cuda_version(), io::arrow_version(),
      io::ffmpeg_version(), LS_SENTENCEPIECE_VERSION, LS_YAML_CPP_VERSION, LS_NLOHMANN_VERSION,
      LS_SPDLOG_VERSION, LS_FMT_VERSION);
}

}  // namespace longship::apps
