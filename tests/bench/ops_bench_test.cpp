#include "bench/ops_bench.h"

#include <nlohmann/json.hpp>

#include "runtime/device.h"

namespace longship::bench {
namespace {

/// Small enough for a CPU.
const BenchContext kSmall{c10::Device(c10::kCPU), 1000, 16};

TEST(OpsBench, EveryRowRunsOnASmallMachine) {
  // Finds calls with wrong shapes or results without a GPU.
  for (const OpRow& row : all_op_rows()) {
    if (row.gpu_only) continue;
    SCOPED_TRACE(row.name + " " + row.shape);
    const OpBench op = row.make(kSmall);
    EXPECT_GT(op.bytes, 0);
    if (op.deviation) {
      EXPECT_LE(op.deviation(), op.max_deviation);
    }
    for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(op.run());
    for (const auto& [name, call] : op.library) EXPECT_NO_THROW(call()) << name;
    if (!op.deviation) continue;
    EXPECT_LE(op.deviation(), op.max_deviation);
  }
}

struct Traffic {
  const char *name, *shape;  // the shape's first words
  double bytes;              // in kSmall
};

// Sizes in kSmall: 18304 prefix rows 18 (FP8: 32, vision's 16384 rows 16), 1600 expert rows 1 (50
// for each of 1 group), 19904 joint rows 19, 1920 text rows 1; widths 2048, 16384, 1152, 4304,
// 1024, 4096 and 256: 128, 1024, 80, 272, 64, 256 and 16. GR00T's 64 samples 1, width 1536: 96.
constexpr Traffic kTraffic[] = {
    {"rms_norm fwd", "prefix", 2 * 18 * 128 * 2},
    {"add_rms_norm fwd", "prefix", 4 * 18 * 128 * 2},
    {"add_rms_norm bwd", "prefix", 4 * 18 * 128 * 2},
    {"add_rms_norm fwd", "expert", 4 * 50 * 64 * 2},
    {"add_rms_norm bwd", "expert", 6 * 50 * 64 * 2},
    {"add_gate fwd", "expert", 3 * 50 * 64 * 2},
    {"add_gate bwd", "expert", 3 * 50 * 64 * 2},
    {"layer_norm fwd", "vision", 2 * 16 * 80 * 2},
    {"layer_norm bwd", "vision", 3 * 16 * 80 * 2},
    {"add_layer_norm fwd", "vision", 4 * 16 * 80 * 2},
    {"add_layer_norm bwd", "vision", 4 * 16 * 80 * 2},
    {"stream_norm fwd", "dit", 51 * 96 * (4 + 2)},
    {"stream_norm bwd", "vl", 220 * 128 * (4 + 2 + 4 + 4)},
    {"add_stream_norm fwd", "dit", 51 * 96 * (4 + 2 + 4 + 2)},
    {"add_stream_norm bwd", "vl", 220 * 128 * (4 + 2 + 4 + 4 + 2)},
    {"add_dropped fwd", "dit", 51 * 96 * (4 + 2 + 4)},
    {"add_dropped bwd", "dit", 51 * 96 * (4 + 2)},
    {"gelu_bias_dropout bwd", "dit", 3 * 51 * 384 * 2},
    {"geglu fwd", "prefix", 3 * 18 * 1024 * 2},
    {"geglu bwd", "prefix", 5 * 18 * 1024 * 2},
    {"geglu bwd recompute", "prefix", 6 * 18 * 1024 * 2},
    {"geglu bwd recompute", "expert", 6 * 256 * 2},
    {"gelu_bias fwd", "vision", 2 * 16 * 272 * 2},
    {"gelu_bias bwd", "vision", 3 * 16 * 272 * 2},
    {"rope_qkv fwd", "prefix", 2 * 18 * 2560 * 2},  // heads are not made smaller
    {"rope_qkv bwd", "expert", 2 * 2560 * 2},
    {"permute_rows fwd", "joint", 2 * 19 * 16 * 2},
    {"permute_rows bwd", "joint", 2 * 19 * 16 * 2},
    {"embedding_rows fwd", "", 2 * 128 * 2},
    {"embedding_rows bwd", "", 3 * 128 * 2},
    {"pack_rows", "", 257 + 2 * 128 * 2},  // flags of 257152 rows, 1900 rows
    {"sum_row_lists", "", 3 * 128 * 2},
    {"flow_mix", "", 3 * 50 * 32 * 4},
    {"flow_loss fwd", "", 50 * 32 * (2 + 4 + 4)},
    {"flow_loss bwd", "", 50 * 32 * (2 + 4 + 4 + 2)},
    {"augment_pictures", "turn", 2 * 3 * 16 * 16 * 4},
    {"fp8_quantize both", "prefix 18304x2048", 32 * 128 * (2 + 2)},
    {"fp8_quantize both", "prefix hidden", 32 * 1024 * (2 + 2)},
    {"fp8_quantize both current", "", 32 * 1024 * (4 + 2)},
    {"fp8_geglu_quantize both", "", 32 * 1024 * (4 + 2)},
    {"fp8_geglu_backward_quantize", "", 32 * 1024 * (6 + 4)},
    {"fp8_refresh weight", "", 2 * 1024 * 128 * (4 + 2)},
};

TEST(OpsBench, BytesAreThoseOfTheOperatorsDescription) {
  const std::vector<OpRow> rows = all_op_rows();
  for (const Traffic& expected : kTraffic) {
    SCOPED_TRACE(std::string(expected.name) + " " + expected.shape);
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const OpRow& r) {
      return r.name == expected.name && r.shape.starts_with(expected.shape);
    });
    ASSERT_NE(row, rows.end());
    EXPECT_EQ(row->make(kSmall).bytes, expected.bytes);
  }
}

TEST(OpsBench, NamesAreUnique) {
  std::vector<std::string> names;
  for (const OpRow& row : all_op_rows()) names.push_back(row.name + " | " + row.shape);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(OpsBench, FilterTakesRowsWithEveryWord) {
  const std::vector<OpRow> rows = {{"norm fwd", "prefix 8x4", {}},
                                   {"norm bwd", "prefix 8x4", {}},
                                   {"norm fwd", "expert 2x4", {}}};
  EXPECT_EQ(select_op_rows(rows, "").size(), 3u);
  EXPECT_EQ(select_op_rows(rows, "fwd prefix").size(), 1u);
  EXPECT_EQ(select_op_rows(rows, "prefix").size(), 2u);
  EXPECT_TRUE(select_op_rows(rows, "nothing").empty());
}

TEST(OpsBench, InputSetsTakeTurns) {
  std::vector<int> seen;
  const auto run = rotate<int>({1, 2, 3}, [&seen](const int& value) { seen.push_back(value); });
  for (int i = 0; i < 4; ++i) run();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 1}));
}

OpResult result_of(double us, double bytes, double flops) {
  OpResult result;
  result.name = "op";
  result.shape = "shape";
  result.us = runtime::percentiles({us});
  result.bytes = bytes;
  result.flops = flops;
  return result;
}

TEST(OpsBench, FiguresComeFromTimeAndCeilings) {
  const MeasuredCeilings ceilings{4000, 800, 1600};
  // 4 MB in 2 us are 2000 GB/s, half of what a copy reaches.
  OpResult memory = result_of(2, 4e6, 0);
  memory.library.push_back({"slow", runtime::percentiles({6}), ""});
  memory.library.push_back({"good", runtime::percentiles({3}), ""});
  memory.library.push_back({"none", {}, "refused"});
  derive_figures(memory, false, ceilings);
  EXPECT_DOUBLE_EQ(memory.gb_s, 2000);
  EXPECT_DOUBLE_EQ(memory.ceiling_percent, 50);
  EXPECT_EQ(memory.bound, "memory");
  EXPECT_DOUBLE_EQ(memory.library_ratio.value(), 1.5);

  // 1.2e12 operations in 2000 us: 600 of 800 TFLOP/s in bf16, of 1600 in FP8.
  OpResult compute = result_of(2000, 4e6, 1.2e12);
  derive_figures(compute, false, ceilings);
  EXPECT_EQ(compute.bound, "compute");
  EXPECT_DOUBLE_EQ(compute.ceiling_percent, 75);
  derive_figures(compute, true, ceilings);
  EXPECT_DOUBLE_EQ(compute.ceiling_percent, 37.5);
  EXPECT_FALSE(compute.library_ratio.has_value());
}

TEST(OpsBench, ReportsNameRefusalsAndFailures) {
  OpResult result = result_of(2, 4e6, 0);
  result.library.push_back({"other", {}, "no such kernel"});
  const nlohmann::json json = result_json(result);
  EXPECT_EQ(json["library"][0]["error"], "no such kernel");
  EXPECT_TRUE(json["library_ratio"].is_null());
  EXPECT_EQ(json["us"]["median"], 2);
  EXPECT_THAT(table_line(result), ::testing::HasSubstr("other refused: no such kernel"));
  result.error = "out of memory";
  EXPECT_EQ(result_json(result)["error"], "out of memory");
  EXPECT_THAT(table_line(result), ::testing::HasSubstr("FAILED: out of memory"));
}

TEST(OpsBenchGpu, ACopyReachesTheCopyCeiling) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const BenchContext context{c10::Device(c10::kCUDA, 0)};
  Timer timer(context.device, {});
  const OpRow row = {"copy", "256 MiB", [](const BenchContext& c) {
                       const at::Tensor from = c.randn({64 << 20}, at::kFloat);
                       const at::Tensor to = from.clone();
                       OpBench op;
                       op.bytes = 2.0 * (256 << 20);
                       op.run = [from, to] { to.copy_(from); };
                       op.library.emplace_back("same", op.run);
                       op.library.emplace_back("refuses",
                                               [] { throw std::runtime_error("no\nmore"); });
                       return op;
                     }};
  const MeasuredCeilings ceilings = measure_ceilings(context, timer);
  EXPECT_GT(ceilings.copy_gb_s, 100);
  const OpResult result = measure_row(row, context, timer, ceilings);
  EXPECT_EQ(result.error, "");
  EXPECT_GT(result.ceiling_percent, 70);
  EXPECT_LT(result.ceiling_percent, 115);
  EXPECT_NEAR(result.library_ratio.value(), 1.0, 0.15);
  EXPECT_EQ(result.library[1].error, "no");
}

}  // namespace
}  // namespace longship::bench
