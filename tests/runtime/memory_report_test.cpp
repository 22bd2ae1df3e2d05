#include "runtime/memory_report.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include "runtime/device.h"

namespace longship::runtime {
namespace {

const c10::Device kCpu(c10::kCPU);

std::vector<int64_t> bytes_of(const MemoryReport& report) {
  std::vector<int64_t> bytes;
  for (const MemoryComponent& c : report.components) bytes.push_back(c.bytes);
  return bytes;
}

TEST(MemoryReport, SumsByGroup) {
  const std::vector<TensorGroup> groups = {
      {"weights", {at::zeros({10, 4}), at::zeros({3}, at::kBFloat16)}},
      {"moments", {at::zeros({5}, at::kDouble), at::Tensor()}},
      {"nothing", {}}};
  const MemoryReport report = memory_report(groups, kCpu);
  EXPECT_EQ(bytes_of(report), (std::vector<int64_t>{166, 40, 0}));
  EXPECT_EQ(report.named_bytes, 206);
  EXPECT_FALSE(report.allocator.has_value());
  EXPECT_EQ(report.activations_peak, 0);
}

TEST(MemoryReport, ViewsAndSharedStorageCountOnce) {
  const at::Tensor flat = at::zeros({100});
  const std::vector<TensorGroup> groups = {
      {"slices", {flat.slice(0, 0, 10), flat.slice(0, 50, 60), flat.view({10, 10})}},
      {"again", {flat, flat.slice(0, 0, 10)}}};
  // A view stands for its whole storage, which the first group already has.
  EXPECT_EQ(bytes_of(memory_report(groups, kCpu)), (std::vector<int64_t>{400, 0}));
}

TEST(MemoryReport, TwoStoragesOverTheSameMemoryCountOnce) {
  const at::Tensor flat = at::zeros({100});
  auto* data = flat.mutable_data_ptr<float>();
  const at::Tensor left = at::from_blob(data, {30});
  const at::Tensor middle = at::from_blob(data + 20, {30});
  const at::Tensor right = at::from_blob(data + 80, {20});
  EXPECT_EQ(
      bytes_of(memory_report(
          std::vector<TensorGroup>{{"a", {right, left}}, {"b", {middle}}, {"c", {flat}}}, kCpu)),
      (std::vector<int64_t>{200, 80, 120}));
}

TEST(MemoryReport, MetaTensorsCountByObject) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor a = at::empty({8}, meta);
  EXPECT_EQ(bytes_of(memory_report(
                std::vector<TensorGroup>{{"a", {a, a.view({2, 4}), at::empty({4}, meta)}}},
                c10::Device(c10::kMeta))),
            (std::vector<int64_t>{48}));
}

TEST(MemoryReport, OtherDevicesStandBeside) {
  const std::vector<TensorGroup> groups = {
      {"inputs", {at::zeros({4}), at::empty({8}, at::TensorOptions().device(at::kMeta))}}};
  const MemoryReport report = memory_report(groups, kCpu);
  EXPECT_EQ(report.components[0].bytes, 16);
  EXPECT_EQ(report.components[0].host_bytes, 32);
  EXPECT_EQ(report.named_bytes, 16);
}

TEST(MemoryReport, JsonAndText) {
  const MemoryReport report =
      memory_report(std::vector<TensorGroup>{{"exp_avg", {at::zeros({256})}}}, kCpu);
  const nlohmann::json json = memory_report_json(report);
  EXPECT_EQ(json["components"]["exp_avg"], 1024);
  EXPECT_EQ(json["named"], 1024);
  EXPECT_TRUE(json["allocator"].is_null());
  EXPECT_THAT(memory_report_text(report), ::testing::HasSubstr("exp_avg"));
}

TEST(MemoryReportGpu, ActivationsAreThePeakBeyondTheNamed) {
  if (!cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const c10::Device cuda(c10::kCUDA, 0);
  const auto options = at::TensorOptions().device(cuda);
  reset_peak_memory(cuda);
  const int64_t before = allocator_memory(cuda)->allocated;
  const at::Tensor weights = at::zeros({1 << 20}, options);
  { const at::Tensor activation = at::zeros({1 << 21}, options); }
  const MemoryReport report = memory_report(std::vector<TensorGroup>{{"weights", {weights}}}, cuda);
  EXPECT_EQ(report.named_bytes, 4 << 20);
  EXPECT_EQ(report.activations_peak, before + (8 << 20));
  EXPECT_GE(report.allocator->reserved_peak, 12 << 20);
  EXPECT_GT(report.allocator->device_total, int64_t{1} << 30);
}

}  // namespace
}  // namespace longship::runtime
