#include "runtime/trace_summary.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace longship::runtime {
namespace {

constexpr int64_t kUs = 1000;

DeviceEvent kernel(const std::string& name, int64_t start_us, int64_t duration_us,
                   int64_t stream = 7) {
  DeviceEvent event;
  event.name = name;
  event.start_ns = start_us * kUs;
  event.duration_ns = duration_us * kUs;
  event.stream = stream;
  return event;
}

DeviceEvent of_kind(DeviceEvent event, DeviceEventKind kind) {
  event.kind = kind;
  return event;
}

DeviceEvent launched(DeviceEvent event, int64_t launch_us, uint64_t id, bool from_graph = false) {
  event.launch_ns = launch_us * kUs;
  event.launch_id = id;
  event.from_graph = from_graph;
  return event;
}

double ms_of(const TraceSummary& s, KernelCategory category) {
  return s.categories[static_cast<size_t>(category)].ms_per_step;
}

TEST(TraceSummary, OneStreamWithGaps) {
  const std::vector<DeviceEvent> events = {kernel("nvjet_a", 0, 100), kernel("nvjet_b", 105, 95),
                                           kernel("nvjet_c", 240, 60)};
  const std::vector<int64_t> boundaries = {0, 400 * kUs};
  const TraceSummary s = summarise_trace(events, boundaries);
  EXPECT_EQ(s.num_steps, 1);
  EXPECT_DOUBLE_EQ(s.window_ms, 0.4);
  EXPECT_DOUBLE_EQ(s.busy_ms, 0.255);
  EXPECT_DOUBLE_EQ(s.busy_fraction, 0.255 / 0.4);
  EXPECT_NEAR(s.idle_us, 145, 1e-9);
  // The gap of 5 us is below the limit; 40 us inside and 100 us at the end are not.
  EXPECT_DOUBLE_EQ(s.gap_count, 2);
  EXPECT_DOUBLE_EQ(s.gap_us, 140);
  ASSERT_EQ(s.largest_gaps.size(), 2u);
  EXPECT_DOUBLE_EQ(s.largest_gaps[0].us, 100);
  EXPECT_EQ(s.largest_gaps[0].before, "nvjet_c");
  EXPECT_EQ(s.largest_gaps[0].after, "(end)");
  EXPECT_DOUBLE_EQ(s.largest_gaps[1].us, 40);
  EXPECT_DOUBLE_EQ(s.largest_gaps[1].at_ms, 0.2);
  EXPECT_EQ(s.largest_gaps[1].before, "nvjet_b");
  EXPECT_EQ(s.largest_gaps[1].after, "nvjet_c");
}

TEST(TraceSummary, OverlapOnSeveralStreamsCountsOnce) {
  // A long kernel covers two short ones; the gap begins where the long one ends.
  const std::vector<DeviceEvent> events = {kernel("long", 0, 100, 1), kernel("x", 10, 20, 2),
                                           kernel("y", 50, 20, 3), kernel("z", 150, 50, 2)};
  const TraceSummary s = summarise_trace(events, std::vector<int64_t>{0, 200 * kUs});
  EXPECT_DOUBLE_EQ(s.busy_ms, 0.15);
  EXPECT_DOUBLE_EQ(s.gap_count, 1);
  EXPECT_EQ(s.largest_gaps[0].before, "long");
  EXPECT_EQ(s.largest_gaps[0].after, "z");
  // By category every kernel counts with its whole duration.
  EXPECT_DOUBLE_EQ(ms_of(s, KernelCategory::kOther), 0.19);
}

TEST(TraceSummary, TheOrderOfEventsDoesNotMatter) {
  const std::vector<DeviceEvent> events = {kernel("b", 50, 30, 2), kernel("a", 0, 60, 1),
                                           kernel("c", 100, 10, 1)};
  const TraceSummary s = summarise_trace(events, std::vector<int64_t>{0, 110 * kUs});
  EXPECT_DOUBLE_EQ(s.busy_ms, 0.09);
  EXPECT_EQ(s.largest_gaps.at(0).before, "b");
}

TEST(TraceSummary, StepsAreToldApart) {
  // Two steps of 100 and 200 us; a kernel reaches 20 us over the boundary.
  const std::vector<DeviceEvent> events = {kernel("a", 0, 50), kernel("a", 80, 40),
                                           kernel("a", 200, 100)};
  const std::vector<int64_t> boundaries = {0, 100 * kUs, 300 * kUs};
  const TraceSummary s = summarise_trace(events, boundaries);
  EXPECT_EQ(s.num_steps, 2);
  EXPECT_DOUBLE_EQ(s.step_ms.min, 0.1);
  EXPECT_DOUBLE_EQ(s.step_ms.max, 0.2);
  EXPECT_DOUBLE_EQ(s.busy_step_ms.min, 0.07);
  EXPECT_DOUBLE_EQ(s.busy_step_ms.max, 0.12);
  EXPECT_DOUBLE_EQ(s.kernels, 1.5);
  EXPECT_DOUBLE_EQ(s.gap_count, 1);
  EXPECT_DOUBLE_EQ(s.gap_us, (30 + 80) / 2.0);
}

TEST(TraceSummary, AKernelAcrossManySteps) {
  const TraceSummary s = summarise_trace(std::vector<DeviceEvent>{kernel("a", -50, 400)},
                                         std::vector<int64_t>{0, 100 * kUs, 200 * kUs, 300 * kUs});
  EXPECT_DOUBLE_EQ(s.busy_step_ms.min, 0.1);
  EXPECT_DOUBLE_EQ(s.busy_step_ms.max, 0.1);
  EXPECT_DOUBLE_EQ(s.busy_fraction, 1);
  EXPECT_EQ(s.events_outside, 1);
  EXPECT_EQ(s.kernels, 0);
}

TEST(TraceSummary, EmptyTrace) {
  const TraceSummary s = summarise_trace({}, std::vector<int64_t>{0, 100 * kUs});
  EXPECT_EQ(s.busy_ms, 0);
  EXPECT_EQ(s.largest_gaps.at(0).before, "(begin)");
  EXPECT_EQ(s.largest_gaps.at(0).after, "(end)");
  EXPECT_THROW(summarise_trace({}, std::vector<int64_t>{0}), InternalError);
  EXPECT_THROW(summarise_trace({}, std::vector<int64_t>{5, 0}), InternalError);
}

TEST(TraceSummary, CountsByKindAndLaunch) {
  const std::vector<DeviceEvent> events = {
      launched(kernel("nvjet", 0, 30), 0, 1, true), launched(kernel("nvjet", 30, 10), 0, 1, true),
      launched(of_kind(kernel("Memcpy HtoD", 40, 25, 9), DeviceEventKind::kMemcpy), 1, 2),
      launched(of_kind(kernel("Memset (Device)", 65, 2), DeviceEventKind::kMemset), 2, 3)};
  const TraceSummary s = summarise_trace(events, std::vector<int64_t>{0, 100 * kUs});
  EXPECT_DOUBLE_EQ(s.kernels, 2);
  EXPECT_DOUBLE_EQ(s.memcpys, 1);
  EXPECT_DOUBLE_EQ(s.memsets, 1);
  EXPECT_DOUBLE_EQ(s.host_launches, 3);
  EXPECT_DOUBLE_EQ(s.graph_events, 2);
  EXPECT_DOUBLE_EQ(s.short_launches, 2);
  EXPECT_DOUBLE_EQ(s.short_launch_ms, 0.012);
  EXPECT_DOUBLE_EQ(ms_of(s, KernelCategory::kGemm), 0.04);
  EXPECT_DOUBLE_EQ(ms_of(s, KernelCategory::kCopy), 0.025);
  EXPECT_DOUBLE_EQ(ms_of(s, KernelCategory::kMemset), 0.002);
}

TEST(TraceSummary, CopiesBetweenDevicesAreCommunication) {
  EXPECT_EQ(
      categorise(of_kind(kernel("Memcpy PtoP (Device -> Device)", 0, 1), DeviceEventKind::kMemcpy)),
      KernelCategory::kCommunication);
  EXPECT_EQ(
      categorise(of_kind(kernel("Memcpy DtoD (Device -> Device)", 0, 1), DeviceEventKind::kMemcpy)),
      KernelCategory::kCopy);
}

TEST(TraceSummary, TopKernelsByTime) {
  std::vector<DeviceEvent> events;
  for (int64_t i = 0; i < 30; ++i)
    events.push_back(kernel("kernel_" + std::to_string(i), i * 100, i + 1));
  events.push_back(kernel("kernel_3", 5000, 96));
  const TraceSummary s = summarise_trace(events, std::vector<int64_t>{0, 10000 * kUs});
  ASSERT_EQ(s.top_kernels.size(), 20u);
  EXPECT_EQ(s.top_kernels[0].name, "kernel_3");
  EXPECT_DOUBLE_EQ(s.top_kernels[0].count_per_step, 2);
  EXPECT_DOUBLE_EQ(s.top_kernels[0].mean_us, 50);
  EXPECT_EQ(s.top_kernels[1].name, "kernel_29");
}

TEST(TraceSummary, BoundariesFromHostMarks) {
  // The host launches both steps long before the device runs them. A copy for step 2 runs early.
  const std::vector<DeviceEvent> events = {
      launched(kernel("a", 1000, 50), 10, 1), launched(kernel("b", 1060, 50), 12, 2),
      launched(of_kind(kernel("copy", 1020, 5, 9), DeviceEventKind::kMemcpy), 21, 3),
      launched(kernel("a", 1200, 50), 22, 4), launched(kernel("b", 1260, 80), 24, 5)};
  const std::vector<int64_t> marks = {5 * kUs, 20 * kUs, 30 * kUs};
  EXPECT_EQ(device_step_boundaries(events, marks),
            (std::vector<int64_t>{1000 * kUs, 1200 * kUs, 1340 * kUs}));
  // An event whose launch was not seen moves no boundary.
  std::vector<DeviceEvent> more = events;
  more.push_back(kernel("unknown", 25, 1));
  EXPECT_EQ(device_step_boundaries(more, marks), device_step_boundaries(events, marks));
  // Without marks: everything is one step.
  EXPECT_EQ(device_step_boundaries(events, {}), (std::vector<int64_t>{1000 * kUs, 1340 * kUs}));
  EXPECT_EQ(device_step_boundaries({}, marks), marks);
}

TEST(TraceSummary, JsonAndTextHoldTheFigures) {
  const std::vector<DeviceEvent> events = {
      kernel("void longship::kernels::geglu_forward<float>(float const*, long)", 0, 60),
      kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", 80, 120)};
  const TraceSummary s = summarise_trace(events, std::vector<int64_t>{0, 200 * kUs});
  const nlohmann::json json = trace_summary_json(s);
  EXPECT_EQ(json["gpu_busy_fraction"], 0.9);
  EXPECT_EQ(json["idle_gaps"]["count_per_step"], 1);
  EXPECT_EQ(json["idle_gaps"]["largest"][0]["before"], "longship::kernels::geglu_forward<float>");
  EXPECT_EQ(json["categories"]["gemm"]["ms_per_step"], 0.12);
  EXPECT_EQ(json["categories"]["elementwise"]["count_per_step"], 1);
  EXPECT_EQ(json["top_kernels"][0]["category"], "gemm");
  const std::string text = trace_summary_text(s);
  EXPECT_THAT(text, ::testing::HasSubstr("GPU busy 0.18 ms (90.0 %)"));
  EXPECT_THAT(text, ::testing::HasSubstr("nvjet_tst"));
}

struct NameCase {
  const char* name;
  KernelCategory category;
};

void PrintTo(const NameCase& c, std::ostream* out) {
  *out << c.name;
}

class KernelCategories : public ::testing::TestWithParam<NameCase> {};

TEST_P(KernelCategories, ByName) {
  EXPECT_EQ(category_name(categorise_kernel(GetParam().name)), category_name(GetParam().category));
}

INSTANTIATE_TEST_SUITE_P(
    Libraries, KernelCategories,
    ::testing::Values(
        NameCase{"nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNN", KernelCategory::kGemm},
        NameCase{"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
                 KernelCategory::kGemm},
        NameCase{
            "void "
            "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_nn_align2>"
            "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_nn_align2::Params)",
            KernelCategory::kGemm},
        NameCase{"void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(...)",
                 KernelCategory::kGemm},
        NameCase{"void gemv2T_kernel_val<int, int, __nv_bfloat16>(...)", KernelCategory::kGemm},
        NameCase{"void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<256, "
                 "64, 64, "
                 "4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
                 KernelCategory::kAttention},
        NameCase{"fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::...)",
                 KernelCategory::kAttention},
        NameCase{
            "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_32_64x64x256_4x1x1",
            KernelCategory::kAttention},
        NameCase{"void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16>(...)",
                 KernelCategory::kAttention},
        NameCase{
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(...)",
            KernelCategory::kAttention},
        NameCase{"void at::native::(anonymous "
                 "namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(...)",
                 KernelCategory::kNorm},
        NameCase{"void at::native::(anonymous "
                 "namespace)::GammaBetaBackwardCUDAKernelTemplate<float>(...)",
                 KernelCategory::kNorm},
        NameCase{"void at::native::vectorized_elementwise_kernel<4, "
                 "at::native::CUDAFunctor_add<float>>(...)",
                 KernelCategory::kElementwise},
        NameCase{"void "
                 "at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>"
                 "(...)",
                 KernelCategory::kCopy},
        NameCase{"void at::native::elementwise_kernel<128, 4, "
                 "at::native::bfloat16_copy_kernel_cuda(...)>(...)",
                 KernelCategory::kCopy},
        NameCase{"void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<...>(...)",
                 KernelCategory::kCopy},
        NameCase{"void at::native::vectorized_elementwise_kernel<4, "
                 "at::native::FillFunctor<float>>(...)",
                 KernelCategory::kMemset},
        NameCase{"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
                 "at::native::NormTwoOps>>(...)",
                 KernelCategory::kReduction},
        NameCase{"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<..., "
                 "FusedAdamMathFunctor>(...)",
                 KernelCategory::kOptimizer},
        NameCase{
            "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(...)",
            KernelCategory::kElementwise},
        NameCase{
            "longship::kernels::(anonymous namespace)::meet_kernel(longship::kernels::MeetArgs)",
            KernelCategory::kCommunication},
        NameCase{
            "void longship::kernels::(anonymous namespace)::sum_parts_kernel<__nv_bfloat16, 2, "
            "8>(longship::kernels::Pointers<__nv_bfloat16>, float, long, long)",
            KernelCategory::kCommunication},
        NameCase{"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", KernelCategory::kCommunication}));

INSTANTIATE_TEST_SUITE_P(
    Ours, KernelCategories,
    ::testing::Values(
        NameCase{
            "void longship::kernels::(anonymous namespace)::rms_norm_forward<__nv_bfloat16>(...)",
            KernelCategory::kNorm},
        NameCase{"void "
                 "longship::kernels::add_layer_norm_backward<float>(longship::kernels::"
                 "AddLayerNormArgs)",
                 KernelCategory::kNorm},
        NameCase{"void longship::kernels::(anonymous "
                 "namespace)::forward_kernel<float>(longship::kernels::RmsNormArgs)",
                 KernelCategory::kNorm},
        NameCase{"void longship::kernels::adamw_kernel(longship::kernels::AdamWArgs)",
                 KernelCategory::kOptimizer},
        NameCase{"void longship::kernels::grad_norm_partial(...)", KernelCategory::kOptimizer},
        NameCase{"longship::kernels::(anonymous "
                 "namespace)::norm_kernel(longship::kernels::AdamWNormArgs)",
                 KernelCategory::kOptimizer},
        NameCase{"longship::kernels::(anonymous "
                 "namespace)::finish_kernel(longship::kernels::AdamWFinishArgs)",
                 KernelCategory::kOptimizer},
        NameCase{"longship::kernels::(anonymous "
                 "namespace)::update_kernel(longship::kernels::AdamWUpdateArgs)",
                 KernelCategory::kOptimizer},
        NameCase{"longship::kernels::(anonymous "
                 "namespace)::zero_rows_kernel(longship::kernels::AdamWTensor const*, "
                 "longship::kernels::AdamWGrad const*, longship::kernels::AdamWChunk const*)",
                 KernelCategory::kOptimizer},
        NameCase{"longship::kernels::fp8::(anonymous namespace)::update_kernel(float*, long, int)",
                 KernelCategory::kFp8Quantize},
        NameCase{"void longship::kernels::(anonymous namespace)::add_gate_forward_kernel<float>("
                 "longship::kernels::AddGateArgs, longship::kernels::RowPlan)",
                 KernelCategory::kElementwise},
        NameCase{"void longship::kernels::(anonymous namespace)::add_gate_backward_kernel<float>("
                 "longship::kernels::AddGateBackwardArgs, longship::kernels::RowPlan, float*)",
                 KernelCategory::kElementwise},
        NameCase{"void longship::kernels::quantize_kernel<__nv_bfloat16>(...)",
                 KernelCategory::kFp8Quantize},
        NameCase{"void longship::kernels::amax_partial<float>(...)", KernelCategory::kFp8Quantize},
        NameCase{"void longship::kernels::geglu_quantize_forward<__nv_bfloat16>(...)",
                 KernelCategory::kElementwise},
        NameCase{"void longship::kernels::rope_qkv_forward(...)", KernelCategory::kElementwise},
        NameCase{"void longship::kernels::embedding_rows_backward(...)",
                 KernelCategory::kElementwise},
        NameCase{"void longship::kernels::flow_loss_partial(...)", KernelCategory::kElementwise},
        NameCase{"void longship::kernels::column_sums(...)", KernelCategory::kReduction},
        NameCase{"void longship::kernels::unheard_of(...)", KernelCategory::kOther}));

TEST(KernelNames, ShortNamesDropNoise) {
  EXPECT_EQ(short_kernel_name("void at::native::(anonymous namespace)::foo<float, 4>(float*, int)"),
            "foo<float, 4>");
  EXPECT_EQ(short_kernel_name("(begin)"), "(begin)");
  EXPECT_EQ(short_kernel_name(std::string(300, 'x'), 20), std::string(17, 'x') + "...");
}

}  // namespace
}  // namespace longship::runtime
