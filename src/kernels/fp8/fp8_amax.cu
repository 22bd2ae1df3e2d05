// Largest absolute value of a matrix, or of what the fused GEGLU kernels would compute: partial
// maxima of at most 264 blocks, which the converting kernel joins itself (find_scale), so that
// scaling a matrix by its own amax costs two launches, no clearing and no atomics.
// Bound by memory: 64 bytes in flight a thread, 1,024 threads a multiprocessor.
#include "kernels/common/launch.cuh"
#include "kernels/fp8/fp8_geglu.cuh"
#include "kernels/fp8/fp8_tile.cuh"

namespace longship::kernels {
namespace fp8 {
namespace {

constexpr int kAmaxThreads = 512;

__device__ bool has_scale(const float* state) {
  return state != nullptr && state[0] != 0.0f;
}

struct Bf16Max {
  using Element = __nv_bfloat16;
  PairMax pairs;

  __device__ void add(const uint4& v) { pairs.add(v); }
  __device__ void add(Element v) { pairs.add(static_cast<uint32_t>(__bfloat16_as_ushort(v))); }
  __device__ unsigned bits() const { return pairs.bits(); }
};

struct Fp32Max {
  using Element = float;
  unsigned value = 0;

  __device__ void add(unsigned v) { value = max(value, v & 0x7fffffffu); }
  __device__ void add(const uint4& v) { add(v.x), add(v.y), add(v.z), add(v.w); }
  __device__ void add(Element v) { add(__float_as_uint(v)); }
  __device__ unsigned bits() const { return value; }
};

/// `num_vectors` of 16 bytes, then the elements behind them.
template <class Max>
__global__ __launch_bounds__(kAmaxThreads) void amax_kernel(const typename Max::Element* x,
                                                            int64_t num_elements,
                                                            int64_t num_vectors, const float* state,
                                                            float* partials) {
  await_previous_kernel();
  __shared__ unsigned shared[kAmaxThreads / 32];
  constexpr int kUnroll = 4;
  constexpr int kVector = 16 / sizeof(typename Max::Element);
  if (has_scale(state)) return;
  const uint4* vectors = reinterpret_cast<const uint4*>(x);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kAmaxThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kAmaxThreads + threadIdx.x;
  Max result;
  int64_t i = first;
  for (; i + (kUnroll - 1) * step < num_vectors; i += kUnroll * step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) v[k] = __ldg(vectors + i + k * step);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) result.add(v[k]);
  }
  for (; i < num_vectors; i += step) result.add(__ldg(vectors + i));
  for (int64_t k = num_vectors * kVector + first; k < num_elements; k += step) result.add(x[k]);
  const unsigned bits = block_max<kAmaxThreads>(result.bits(), shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = __uint_as_float(bits);
}

__global__ void join_kernel(const float* partials, int num_partials, float* amax) {
  await_previous_kernel();
  __shared__ unsigned shared[kAmaxThreads / 32];
  unsigned bits = 0;
  for (int i = threadIdx.x; i < num_partials; i += kAmaxThreads) {
    bits = max(bits, __float_as_uint(partials[i]));
  }
  bits = block_max<kAmaxThreads>(bits, shared);
  if (threadIdx.x == 0) *amax = __uint_as_float(bits);
}

template <bool kBackward>
__device__ float vector_amax(const uint4& dy, const uint4& gate, const uint4& up, float amax) {
  float g[8], u[8], d[8];
  unpack(gate, g);
  unpack(up, u);
  if (kBackward) unpack(dy, d);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (kBackward) {
      const GegluGradient gradient = geglu_gradient(d[i], g[i], u[i]);
      amax = max_abs(max_abs(amax, gradient.gate), gradient.up);
    } else {
      amax = max_abs(amax, geglu(g[i], u[i]));
    }
  }
  return amax;
}

/// `per_row` vectors of 8 elements in a row of gate, of up and of dy; fewer than 2^32 in all.
template <bool kBackward>
__global__ __launch_bounds__(kAmaxThreads,
                             2) void geglu_amax_kernel(const uint4* dy, const uint4* gate_up,
                                                       unsigned num_vectors, unsigned per_row,
                                                       const float* state, float* partials) {
  await_previous_kernel();
  __shared__ unsigned shared[kAmaxThreads / 32];
  if (has_scale(state)) return;
  float amax = 0.0f;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kAmaxThreads;
#pragma unroll 2
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kAmaxThreads + threadIdx.x; i < num_vectors;
       i += step) {
    const unsigned row = static_cast<unsigned>(i) / per_row;
    const uint4* gate = gate_up + i + static_cast<int64_t>(row) * per_row;
    const uint4 d = kBackward ? __ldg(dy + i) : make_uint4(0, 0, 0, 0);
    amax = vector_amax<kBackward>(d, __ldg(gate), __ldg(gate + per_row), amax);
  }
  const unsigned bits = block_max<kAmaxThreads>(__float_as_uint(amax), shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = __uint_as_float(bits);
}

int num_blocks(int64_t num_items) {
  const int64_t blocks = (num_items + kAmaxThreads - 1) / kAmaxThreads;
  return static_cast<int>(blocks < 1 ? 1 : blocks > kFp8AmaxPartials ? kFp8AmaxPartials : blocks);
}

}  // namespace

cudaError_t find_amax(const void* x, int64_t num_elements, ElementType element,
                      const Fp8ScaleArgs& scale, int* num_partials, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const int per_vector = element == ElementType::kBFloat16 ? 8 : 4;
  const int64_t num_vectors = aligned ? num_elements / per_vector : 0;
  const int blocks = num_blocks(aligned ? num_vectors : num_elements);
  *num_partials = blocks;
  if (element == ElementType::kBFloat16) {
    launch_kernel(amax_kernel<Bf16Max>, blocks, kAmaxThreads, 0, stream,
                  static_cast<const __nv_bfloat16*>(x), num_elements, num_vectors, scale.state,
                  scale.partials);
  } else {
    launch_kernel(amax_kernel<Fp32Max>, blocks, kAmaxThreads, 0, stream,
                  static_cast<const float*>(x), num_elements, num_vectors, scale.state,
                  scale.partials);
  }
  return cudaGetLastError();
}

cudaError_t find_geglu_amax(const Fp8GegluArgs& args, int* num_partials, cudaStream_t stream) {
  const int64_t per_row = args.hidden / 8;
  const int64_t num_vectors = args.rows * per_row;
  if (num_vectors > 0xffffffffll) return cudaErrorInvalidValue;
  const int blocks = num_blocks(num_vectors);
  *num_partials = blocks;
  const uint4* dy = static_cast<const uint4*>(args.dy);
  const uint4* gate_up = static_cast<const uint4*>(args.gate_up);
  const auto kernel = dy != nullptr ? geglu_amax_kernel<true> : geglu_amax_kernel<false>;
  launch_kernel(kernel, blocks, kAmaxThreads, 0, stream, dy, gate_up,
                static_cast<unsigned>(num_vectors), static_cast<unsigned>(per_row),
                args.scale.state, args.scale.partials);
  return cudaGetLastError();
}

}  // namespace fp8

cudaError_t fp8_amax(const Fp8AmaxArgs& args, cudaStream_t stream) {
  Fp8ScaleArgs scale;
  scale.partials = args.partials;
  int num_partials = 0;
  const cudaError_t status =
      fp8::find_amax(args.x, args.num_elements, args.element, scale, &num_partials, stream);
  if (status != cudaSuccess) return status;
  launch_kernel(fp8::join_kernel, 1, fp8::kAmaxThreads, 0, stream, args.partials, num_partials,
                args.amax);
  return cudaGetLastError();
}

}  // namespace longship::kernels
