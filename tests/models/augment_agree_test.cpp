// The workers' augmentation and the operator's are written apart; they agree.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "data/augment/picture.h"
#include "ops/augment.h"
#include "runtime/device.h"

namespace longship::models {
namespace {

data::AugmentConfig config_of(const std::string& preset) {
  data::AugmentConfig config;
  config.preset = preset == "groot" ? "custom" : preset;
  if (preset == "groot") {
    const auto add = [&](const char* name, double low, double high) {
      config.transforms.emplace_back();
      config.transforms.back().name = name;
      config.transforms.back().range = {low, high};
    };
    add("crop", 0.8, 1.0);
    add("rotate", -15, 15);
    add("brightness", 0.7, 1.3);
    add("contrast", 0.6, 1.4);
    add("saturation", 0.5, 1.5);
    add("hue", -0.08, 0.08);
    config.random_order = true;
  }
  config.resolve();
  return config;
}

struct Case {
  at::Tensor pictures, params, host;
};

Case make_case(const std::string& preset, int64_t count, int64_t height, int64_t width) {
  const data::AugmentConfig config = config_of(preset);
  Case out;
  out.pictures = at::empty({count, 3, height, width}, at::kFloat);
  float* data = out.pictures.mutable_data_ptr<float>();
  fill_normal(make_key(9, RngStream::kTest), {data, static_cast<size_t>(out.pictures.numel())});
  out.pictures.mul_(0.5).clamp_(-1, 1);
  out.host = out.pictures.clone();
  out.params = at::empty({count, data::kAugmentNumbers}, at::kFloat);
  const auto size = static_cast<size_t>(3 * height * width);
  for (int64_t i = 0; i < count; ++i) {
    const auto a = data::draw_augment(config, {7, 3}, i, "top", "cam", height, width);
    data::write_augment(a, {out.params.mutable_data_ptr<float>() + i * data::kAugmentNumbers,
                            static_cast<size_t>(data::kAugmentNumbers)});
    data::apply_augment(a, {out.host.mutable_data_ptr<float>() + i * int64_t(size), size}, height,
                        width);
  }
  return out;
}

void expect_agreement(const at::Tensor& got, const Case& c, const std::string& what) {
  const double worst = (got - c.host).abs().max().item<double>();
  EXPECT_LE(worst, 1e-5) << what;
  EXPECT_GT((c.pictures - c.host).abs().max().item<double>(), 0.1) << what << ": nothing happened";
}

TEST(AugmentAgreement, HostAndOracle) {
  for (const char* preset : {"openpi", "lerobot", "groot"}) {
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{32, 32}, {19, 41}}) {
      const Case c = make_case(preset, 24, h, w);
      expect_agreement(ops::augment_pictures(c.pictures, c.params, h, w), c, preset);
    }
  }
}

TEST(AugmentAgreementGpu, HostAndKernel) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const char* preset : {"openpi", "lerobot", "groot"}) {
    const Case c = make_case(preset, 32, 224, 224);
    const at::Tensor got =
        ops::augment_pictures(c.pictures.to(at::kCUDA), c.params.to(at::kCUDA), 224, 224).cpu();
    expect_agreement(got, c, preset);
  }
}

}  // namespace
}  // namespace longship::models
