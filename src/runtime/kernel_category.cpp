// Names of kernels -> categories. One table; longer and more particular words stand first.
#include <array>
#include <cctype>

#include "base/strings.h"
#include "runtime/trace_summary.h"

namespace longship::runtime {
namespace {

enum class Scope { kOurs, kLibraries };

struct Rule {
  Scope scope;
  KernelCategory category;
  std::string_view words;  // any of them, lower case, separated by blanks
};

constexpr std::string_view kOurNamespace = "longship::kernels";

// Ours first: their argument types may hold words of the second half. A kernel that quantises what
// it produces counts as what it produces.
constexpr Rule kRules[] = {
    {Scope::kOurs, KernelCategory::kCommunication, "meet_kernel sum_parts_kernel"},
    {Scope::kOurs, KernelCategory::kOptimizer,
     "adamw optimizer grad_norm gradnorm global_norm clip"},
    {Scope::kOurs, KernelCategory::kAttention, "attention flash softmax"},
    {Scope::kOurs, KernelCategory::kNorm, "rms_norm rmsnorm layer_norm layernorm"},
    {Scope::kOurs, KernelCategory::kElementwise,
     "geglu gelu silu swiglu rope dropout embedding flow zero_tail zerotail permute add_gate "
     "addgate add_dropped noise modulate augment"},
    {Scope::kOurs, KernelCategory::kFp8Quantize, "quantize quantise amax fp8"},
    {Scope::kOurs, KernelCategory::kGemm, "gemm matmul"},
    {Scope::kOurs, KernelCategory::kCopy, "copy cast transpose pack"},
    {Scope::kOurs, KernelCategory::kMemset, "fill zero"},
    {Scope::kOurs, KernelCategory::kReduction, "sum reduce"},
    {Scope::kOurs, KernelCategory::kOther, "longship"},
    {Scope::kLibraries, KernelCategory::kCommunication, "nccl"},
    // cuDNN's and flash's kernels name cutlass types, so they come before the products.
    {Scope::kLibraries, KernelCategory::kAttention,
     "sdpa fmha flash cudnn::fusion attention softmax"},
    {Scope::kLibraries, KernelCategory::kGemm,
     "gemm nvjet cutlass cublas splitk gemv xmma s16816 dot_kernel"},
    {Scope::kLibraries, KernelCategory::kOptimizer, "adam multi_tensor_apply lpnorm"},
    {Scope::kLibraries, KernelCategory::kNorm,
     "layer_norm layernorm rms_norm rmsnorm group_norm groupnorm batch_norm gammabeta "
     "rowwisemoments"},
    {Scope::kLibraries, KernelCategory::kCopy,
     "copy_kernel batchedcopy catarray nchwtonhwc nhwctonchw transpose memcpy"},
    {Scope::kLibraries, KernelCategory::kMemset, "fillfunctor fill_kernel memset"},
    {Scope::kLibraries, KernelCategory::kReduction,
     "reduce_kernel reduceop devicereduce devicescan segmentedreduce reduction"},
    {Scope::kLibraries, KernelCategory::kElementwise,
     "elementwise index embedding scatter gather distribution upsample arange where"},
};

bool contains_any(std::string_view text, std::string_view words) {
  for (const std::string& word : split(words, ' ')) {
    if (text.find(word) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

std::string_view category_name(KernelCategory category) {
  constexpr std::array<std::string_view, kNumKernelCategories> kNames = {
      "gemm", "attention", "elementwise", "norm",          "optimizer", "fp8_quantize",
      "copy", "memset",    "reduction",   "communication", "other"};
  return kNames[static_cast<size_t>(category)];
}

KernelCategory categorise_kernel(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool ours = lower.find(kOurNamespace) != std::string::npos;
  for (const Rule& rule : kRules) {
    if ((rule.scope == Scope::kOurs) == ours && contains_any(lower, rule.words))
      return rule.category;
  }
  return KernelCategory::kOther;
}

KernelCategory categorise(const DeviceEvent& event) {
  switch (event.kind) {
    case DeviceEventKind::kMemcpy:  // "Memcpy PtoP": between two devices
      return contains_any(event.name, "PtoP") ? KernelCategory::kCommunication
                                              : KernelCategory::kCopy;
    case DeviceEventKind::kMemset:
      return KernelCategory::kMemset;
    case DeviceEventKind::kKernel:
      break;
  }
  return categorise_kernel(event.name);
}

std::string short_kernel_name(std::string_view name, size_t max_length) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  // The argument list is the last bracket at template depth 0; "(anonymous namespace)" is none.
  int depth = 0;
  size_t end = name.size();
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    const bool opens = name[i] == '(' && depth == 0 && i > 0;
    if (opens && !name.substr(i).starts_with("(anonymous namespace)")) {
      end = i;
      break;
    }
  }
  std::string text(name.substr(0, end));
  for (const std::string_view noise : {"(anonymous namespace)::", "at::native::"}) {
    for (size_t at = text.find(noise); at != std::string::npos; at = text.find(noise))
      text.erase(at, noise.size());
  }
  if (text.size() > max_length) text = text.substr(0, max_length - 3) + "...";
  return text;
}

}  // namespace longship::runtime
