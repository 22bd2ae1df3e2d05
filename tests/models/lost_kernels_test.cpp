// A model that cannot have a kernel that is switched on says so once, when it is built.
#include "models/common/lost_kernels.h"

#include <gtest/gtest.h>

#include <string>

#include "base/log.h"
#include "models/groot/model.h"
#include "models/pi05/model.h"

namespace longship::models {
namespace {

nn::Fused everything() {
  return {.norms = true,
          .activations = true,
          .rope = true,
          .embedding = true,
          .loss = true,
          .stacked = true,
          .attention = true};
}

/// A model for a CUDA device; shapes only, so that none is needed.
BuildOptions options_for(at::Device device, at::ScalarType dtype) {
  BuildOptions out;
  out.device = device;
  out.dtype = dtype;
  out.fused = everything();
  return out;
}

/// What building a model prints.
template <class Build>
std::string printed(Build&& build) {
  log::init();
  ::testing::internal::CaptureStderr();
  build();
  log::flush();
  return ::testing::internal::GetCapturedStderr();
}

std::string line(const std::string& key, const std::string& why) {
  return "warning: " + key + ": " + why + ": the library's operators run, which is slower\n";
}

GrootConfig groot_config(GrootVersion version) {
  GrootConfig config(version);
  config.size = "demo";
  config.data.horizon = 16;
  return config;
}

std::string build_groot(const GrootConfig& config, const BuildOptions& options) {
  return printed([&] { const GrootModel model(config, options); });
}

class LostKernelsOfGroot : public ::testing::TestWithParam<GrootVersion> {};

TEST_P(LostKernelsOfGroot, NoneWhereEveryKernelRuns) {
  const GrootConfig config = groot_config(GetParam());
  EXPECT_EQ(build_groot(config, options_for(at::kCUDA, at::kBFloat16)), "");
}

TEST_P(LostKernelsOfGroot, AFullPrecisionModelHasNoFlashKernels) {
  const GrootConfig config = groot_config(GetParam());
  EXPECT_EQ(build_groot(config, options_for(at::kCUDA, at::kFloat)),
            line("perf.flash_attention", "flash kernels are for bf16, not fp32"));
}

TEST_P(LostKernelsOfGroot, EveryPartWithSuchHeadsIsNamed) {
  GrootConfig config = groot_config(GetParam());
  config.vision.width = 4 * 36;
  config.vision.num_heads = 4;
  config.head.head_dim = 20;
  EXPECT_EQ(build_groot(config, options_for(at::kCUDA, at::kBFloat16)),
            line("perf.flash_attention", "the vision tower: heads of 36 are no multiple of 8") +
                line("perf.flash_attention",
                     "the diffusion transformer: heads of 20 are no multiple of 8"));
}

TEST_P(LostKernelsOfGroot, NothingIsSaidOfSwitchesThatAreOffNorOnTheCpu) {
  const GrootConfig config = groot_config(GetParam());
  BuildOptions off = options_for(at::kCUDA, at::kFloat);
  off.fused.attention = false;
  EXPECT_EQ(build_groot(config, off), "");
  EXPECT_EQ(build_groot(config, options_for(at::kCPU, at::kFloat)), "");
  EXPECT_EQ(build_groot(config, options_for(at::kMeta, at::kFloat)), "");
}

INSTANTIATE_TEST_SUITE_P(Both, LostKernelsOfGroot,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

Pi05Config pi05_config() {
  Pi05Config config;
  config.size = "demo";
  config.action_dim = 2;
  return config;
}

std::string build_pi05(const Pi05Config& config, const BuildOptions& options) {
  return printed([&] { const Pi05Model model(config, options); });
}

TEST(LostKernelsOfPi05, EachIsNamedWithItsReason) {
  const BuildOptions bf16 = options_for(at::kCUDA, at::kBFloat16);
  EXPECT_EQ(build_pi05(pi05_config(), bf16), "");
  EXPECT_EQ(build_pi05(pi05_config(), options_for(at::kCUDA, at::kFloat)),
            line("perf.flash_attention", "flash kernels are for bf16, not fp32"));
  EXPECT_EQ(build_pi05(pi05_config(), options_for(at::kCPU, at::kFloat)), "");
  Pi05Config pi0 = pi05_config();
  pi0.variant = "pi0";
  EXPECT_EQ(build_pi05(pi0, bf16),
            line("perf.flash_attention", "the state token of pi0 needs a mask"));
  Pi05Config rounded = pi05_config();
  rounded.rope_dtype = "model";
  EXPECT_EQ(build_pi05(rounded, bf16),
            line("perf.fused_rope",
                 "model.rope_dtype model rotates in the model's dtype, the kernel in fp32"));
  Pi05Config differing = pi05_config();
  differing.data.dims_differ = true;
  EXPECT_EQ(build_pi05(differing, bf16),
            line("perf.fused_loss",
                 "the datasets have different action dimensions, the kernel takes one number of "
                 "them"));
}

TEST(LostKernelsOfPi05, AVisionTowerWithTwoDtypesHasNone) {
  Pi05Config config = pi05_config();
  config.parity = "loongforge";
  const std::string why =
      "the vision tower: model.parity loongforge keeps fp32 around its products in bf16";
  EXPECT_EQ(build_pi05(config, options_for(at::kCUDA, at::kBFloat16)),
            line("perf.fused_norms", why) + line("perf.fused_activations", why) +
                line("perf.stacked_linears", why) + line("perf.flash_attention", why));
  BuildOptions some = options_for(at::kCUDA, at::kBFloat16);
  some.fused.norms = some.fused.attention = some.fused.stacked = false;
  EXPECT_EQ(build_pi05(config, some), line("perf.fused_activations", why));
}

}  // namespace
}  // namespace longship::models
