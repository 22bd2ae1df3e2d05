// One thread converts kPerThread runs of 8 elements, a block apart from each other, so that as many
// loads are in flight; one element at a time where addresses do not allow 16-byte accesses.
#include "kernels/activation/pack.cuh"
#include "kernels/exchange/convert.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;

template <bool kAdd, int N>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(float* __restrict__ target, const __nv_bfloat16* __restrict__ source,
                   int64_t num_runs) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPerThread + threadIdx.x;
  pack::Raw<__nv_bfloat16, N> raw[kPerThread];
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t run = first + k * kThreads;
    if (run < num_runs) raw[k] = pack::fetch<N>(source + run * N);
  }
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t run = first + k * kThreads;
    if (run >= num_runs) return;
    float v[N];
    pack::expand(raw[k], v);
    if constexpr (kAdd) {
      float before[N];
      pack::load<N>(target + run * N, before);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += before[i];
    }
    pack::store<N>(target + run * N, v);
  }
}

template <bool kAdd, int N>
void launch(const ConvertArgs& args, int64_t begin, int64_t num_runs, cudaStream_t stream) {
  constexpr int64_t kPerBlock = int64_t{kThreads} * kPerThread;
  const int64_t blocks = (num_runs + kPerBlock - 1) / kPerBlock;
  convert_kernel<kAdd, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      args.target + begin, args.source + begin, num_runs);
}

template <bool kAdd>
cudaError_t convert(const ConvertArgs& args, cudaStream_t stream) {
  const bool wide = pack::aligned16(args.target, args.source);
  const int64_t runs = wide ? args.count / pack::kWide : 0;
  if (runs > 0) launch<kAdd, pack::kWide>(args, 0, runs, stream);
  const int64_t rest = args.count - runs * pack::kWide;
  if (rest > 0) launch<kAdd, 1>(args, runs * pack::kWide, rest, stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t convert_into(const ConvertArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  return args.add ? convert<true>(args, stream) : convert<false>(args, stream);
}

}  // namespace longship::kernels
