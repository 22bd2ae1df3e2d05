// Multi-tensor AdamW. Update: one block of 256 threads per chunk, two groups of four elements per
// thread in flight (112 bytes of loads), four blocks per multiprocessor: 112 KiB in flight, three
// times what covers the latency of HBM3e. Norm: a persistent grid, 64 bytes per thread in flight.
// Both are bound by memory traffic. The bf16 arrays are read and written 8 bytes per thread, which
// fills whole sectors just as 16-byte accesses do, and keeps the fp32 arrays, three quarters of the
// bytes, coalesced. Streaming accesses: nothing is used twice within reach of the L2.
#include <cuda_bf16.h>

#include "kernels/common/launch.cuh"
#include "kernels/optimizer/adamw.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kUpdateBlocksPerSm = 4;
constexpr int kNormBlocksPerSm = 6;
constexpr int kFinishThreads = 1024;
constexpr int kVec = 4;

// ---------------------------------------------------------------------------------------------
// Accesses

__device__ inline float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
         (static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16);
}

template <int V>
__device__ inline void load(const float* x, float (&out)[V]) {
  if constexpr (V == kVec) {
    const float4 t = __ldcs(reinterpret_cast<const float4*>(x));
    out[0] = t.x;
    out[1] = t.y;
    out[2] = t.z;
    out[3] = t.w;
  } else {
    out[0] = __ldcs(x);
  }
}

/// Gradients stay as they were loaded until they are used: bf16 pairs need half the registers.
template <class T, int V>
struct Packed;
template <>
struct Packed<float, kVec> {
  float4 raw = {0.0f, 0.0f, 0.0f, 0.0f};
  __device__ inline void load(const float* x) { raw = __ldcs(reinterpret_cast<const float4*>(x)); }
  __device__ inline float get(int k) const {
    return k == 0 ? raw.x : k == 1 ? raw.y : k == 2 ? raw.z : raw.w;
  }
};
template <>
struct Packed<float, 1> {
  float raw = 0.0f;
  __device__ inline void load(const float* x) { raw = __ldcs(x); }
  __device__ inline float get(int) const { return raw; }
};
template <>
struct Packed<__nv_bfloat16, kVec> {
  uint2 raw = {0, 0};
  __device__ inline void load(const __nv_bfloat16* x) {
    raw = __ldcs(reinterpret_cast<const uint2*>(x));
  }
  __device__ inline float get(int k) const {
    const uint32_t pair = k < 2 ? raw.x : raw.y;
    return (k & 1) == 0 ? low_bf16(pair) : high_bf16(pair);
  }
};
template <>
struct Packed<__nv_bfloat16, 1> {
  unsigned short raw = 0;
  __device__ inline void load(const __nv_bfloat16* x) {
    raw = __ldcs(reinterpret_cast<const unsigned short*>(x));
  }
  __device__ inline float get(int) const { return low_bf16(raw); }
};

template <int V>
__device__ inline void store(float* x, const float (&value)[V]) {
  if constexpr (V == kVec) {
    __stcs(reinterpret_cast<float4*>(x), make_float4(value[0], value[1], value[2], value[3]));
  } else {
    __stcs(x, value[0]);
  }
}

template <int V>
__device__ inline void store(__nv_bfloat16* x, const float (&value)[V]) {
  if constexpr (V == kVec) {
    __stcs(reinterpret_cast<uint2*>(x),
           make_uint2(pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3])));
  } else {
    __stcs(reinterpret_cast<unsigned short*>(x), __bfloat16_as_ushort(__float2bfloat16_rn(*value)));
  }
}

__device__ inline void* advance(void* data, ElementType type, int64_t elements) {
  if (data == nullptr) return nullptr;
  return static_cast<char*>(data) + elements * (type == ElementType::kFloat32 ? 4 : 2);
}

__device__ inline bool aligned(const void* data, ElementType type) {
  const uintptr_t mask = type == ElementType::kFloat32 ? 15 : 7;
  return (reinterpret_cast<uintptr_t>(data) & mask) == 0;
}

// ---------------------------------------------------------------------------------------------
// Norm

/// Sum of squares of eight bf16 or four fp32 in 16 bytes. Products and short sums are exact enough
/// in fp32 (their rounding errors average out over millions of groups); values whose squares leave
/// fp32's range, zeros and non-finite ones take the slow way through double.
__device__ inline double square_sum(const uint4& raw, const __nv_bfloat16*) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float a = low_bf16(words[k]);
    const float b = high_bf16(words[k]);
    sum = fmaf(a, a, sum);
    sum = fmaf(b, b, sum);
  }
  if (sum > 1e-30f && sum < 1e30f) return static_cast<double>(sum);
  double exact = 0.0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double a = low_bf16(words[k]);
    const double b = high_bf16(words[k]);
    exact += a * a;
    exact += b * b;
  }
  return exact;
}

__device__ inline double square_sum(const uint4& raw, const float*) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float a = __uint_as_float(words[k]);
    sum = fmaf(a, a, sum);
  }
  if (sum > 1e-30f && sum < 1e30f) return static_cast<double>(sum);
  double exact = 0.0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double a = __uint_as_float(words[k]);
    exact += a * a;
  }
  return exact;
}

/// This thread's share of the sum of squares of x[0, count).
template <class T>
__device__ inline double square_sum_span(const T* x, int count) {
  constexpr int kPerAccess = 16 / static_cast<int>(sizeof(T));
  constexpr int kUnroll = 4;
  constexpr int kStride = kThreads * kPerAccess;
  double sum = 0.0;
  const bool wide = (reinterpret_cast<uintptr_t>(x) & 15) == 0;
  const int wide_end = wide ? count / kPerAccess * kPerAccess : 0;
  for (int i = static_cast<int>(threadIdx.x) * kPerAccess; i < wide_end; i += kStride * kUnroll) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * kStride < wide_end) {
        raw[u] = __ldcs(reinterpret_cast<const uint4*>(x + i + u * kStride));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * kStride < wide_end) sum += square_sum(raw[u], x);
    }
  }
  for (int i = wide_end + static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    Packed<T, 1> value;
    value.load(x + i);
    sum += static_cast<double>(value.get(0)) * static_cast<double>(value.get(0));
  }
  return sum;
}

/// Sum over the block in a fixed order, valid in thread 0. `shared` holds 32 doubles.
__device__ inline double block_sum(double value, double* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < static_cast<int>(blockDim.x >> 5); ++warp) sum += shared[warp];
  }
  return sum;
}

__device__ inline double chunk_square_sum(const AdamWNormArgs& args, const AdamWChunk& chunk) {
  const AdamWGrad grad = args.grads[chunk.tensor];
  if (grad.data == nullptr) return 0.0;
  const uint8_t* flags = args.tensors[chunk.tensor].row_flags;
  const int length = flags == nullptr ? chunk.count : args.tensors[chunk.tensor].row_length;
  if (flags != nullptr) flags += chunk.begin / length;
  double sum = 0.0;
  for (int row = 0; row * length < chunk.count; ++row) {
    if (flags != nullptr && flags[row] == 0) continue;
    void* data = advance(grad.data, grad.type, chunk.begin + static_cast<int64_t>(row) * length);
    sum += grad.type == ElementType::kFloat32
               ? square_sum_span(static_cast<const float*>(data), length)
               : square_sum_span(static_cast<const __nv_bfloat16*>(data), length);
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads, kNormBlocksPerSm) norm_kernel(AdamWNormArgs args) {
  await_previous_kernel();
  __shared__ double shared[32];
  double sum = 0.0;
  int64_t index = blockIdx.x;
  AdamWChunk chunk;
  if (index < args.num_chunks) chunk = args.chunks[index];
  while (index < args.num_chunks) {
    const int64_t next = index + gridDim.x;
    AdamWChunk following;  // fetched early: the data's address hangs on it
    if (next < args.num_chunks) following = args.chunks[next];
    sum += chunk_square_sum(args, chunk);
    index = next;
    chunk = following;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) args.partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFinishThreads) finish_kernel(AdamWFinishArgs args) {
  await_previous_kernel();
  __shared__ double shared[32];
  if (args.with_norm) {
    double sum = 0.0;
    for (int i = static_cast<int>(threadIdx.x); i < args.num_partials; i += kFinishThreads) {
      sum += args.partials[i];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) args.report[kAdamWNorm] = sqrt(sum);
  }
  if (threadIdx.x != 0 || !args.with_decision) return;
  const double norm = args.report[kAdamWNorm];
  const bool finite = isfinite(norm);
  double clip = 1.0;
  if (finite && args.max_norm >= 0.0) {
    const double ratio = args.max_norm / (norm + 1e-6);
    if (ratio < 1.0) clip = ratio;
  }
  int64_t updates = *args.num_updates;
  int32_t fault = *args.fault;
  int32_t row = -1;
  if (args.row_updates[0] == updates) {
    row = 0;
  } else if (args.row_updates[1] == updates) {
    row = 1;
  }
  if (!finite) fault |= kAdamWFaultNonFinite;
  if (fault == 0 && row < 0) fault |= kAdamWFaultScalars;
  if (fault != 0) {
    row = -1;
  } else {
    ++updates;
  }
  *args.num_updates = updates;
  *args.fault = fault;
  *args.decision = row;
  args.report[kAdamWClip] = clip;
  args.report[kAdamWFinite] = finite ? 1.0 : 0.0;
  args.report[kAdamWUpdated] = row >= 0 ? 1.0 : 0.0;
  args.report[kAdamWNumUpdates] = static_cast<double>(updates);
  args.report[kAdamWFault] = static_cast<double>(fault);
}

// ---------------------------------------------------------------------------------------------
// Update

/// Part of a tensor that is treated alike: pointers to its first element.
struct Span {
  void* param;
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  float* ema;
  void* grad;
  int count;
  ElementType param_type;
  bool zero_grad;  // after it was read
};

struct Factors {
  float clip, decay, step_size, sqrt_correction2;
  float one_minus_beta1, beta2, one_minus_beta2, eps, ema_keep, ema_take;
};

/// Explicitly rounded operations: the compiler must not fuse a product with a sum.
__device__ inline void update_element(float& p, float& m, float& v, float grad, const Factors& f) {
  const float g = __fmul_rn(grad, f.clip);
  m = __fadd_rn(m, __fmul_rn(f.one_minus_beta1, __fsub_rn(g, m)));
  v = __fadd_rn(__fmul_rn(f.beta2, v), __fmul_rn(f.one_minus_beta2, __fmul_rn(g, g)));
  const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), f.sqrt_correction2), f.eps);
  p = __fsub_rn(__fmul_rn(p, f.decay), __fdiv_rn(__fmul_rn(f.step_size, m), denominator));
}

template <int V>
__device__ inline void update_ema(float (&ema)[V], const float (&p)[V], const Factors& f) {
#pragma unroll
  for (int k = 0; k < V; ++k) {
    ema[k] = __fadd_rn(__fmul_rn(f.ema_keep, ema[k]), __fmul_rn(f.ema_take, p[k]));
  }
}

template <int V>
__device__ inline void store_weights(const Span& span, int i, const float (&p)[V]) {
  store<V>(span.master + i, p);
  if (span.param == nullptr) return;
  if (span.param_type == ElementType::kBFloat16) {
    store<V>(static_cast<__nv_bfloat16*>(span.param) + i, p);
  } else {
    store<V>(static_cast<float*>(span.param) + i, p);
  }
}

/// Full update of elements [begin, end), V at a time, U groups in flight per thread.
template <class Grad, bool kEma, int V, int U>
__device__ inline void update_range(const Span& span, const Factors& f, int begin, int end) {
  Grad* grad = static_cast<Grad*>(span.grad);
  constexpr int kStride = kThreads * V;
#pragma unroll 1
  for (int i = begin + static_cast<int>(threadIdx.x) * V; i < end; i += kStride * U) {
    Packed<Grad, V> g[U];
    float p[U][V], m[U][V], v[U][V], ema[U][V];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int j = i + u * kStride;
      if (j >= end) continue;
      if (grad != nullptr) g[u].load(grad + j);
      load<V>(span.master + j, p[u]);
      load<V>(span.exp_avg + j, m[u]);
      load<V>(span.exp_avg_sq + j, v[u]);
      if constexpr (kEma) load<V>(span.ema + j, ema[u]);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int j = i + u * kStride;
      if (j >= end) continue;
#pragma unroll
      for (int k = 0; k < V; ++k) update_element(p[u][k], m[u][k], v[u][k], g[u].get(k), f);
      store<V>(span.exp_avg + j, m[u]);
      store<V>(span.exp_avg_sq + j, v[u]);
      store_weights<V>(span, j, p[u]);
      if constexpr (kEma) {
        update_ema<V>(ema[u], p[u], f);
        store<V>(span.ema + j, ema[u]);
      }
      if (span.zero_grad) {
        const float zeros[V] = {};
        store<V>(grad + j, zeros);
      }
    }
  }
}

template <class Grad, bool kEma>
__device__ inline void update_span(const Span& span, const Factors& f, int vector_end) {
  update_range<Grad, kEma, kVec, kEma ? 1 : 2>(span, f, 0, vector_end);
  update_range<Grad, kEma, 1, 1>(span, f, vector_end, span.count);
}

template <int V, int U>
__device__ inline void decay_range(const Span& span, const Factors& f, int begin, int end) {
  constexpr int kStride = kThreads * V;
#pragma unroll 1
  for (int i = begin + static_cast<int>(threadIdx.x) * V; i < end; i += kStride * U) {
    float p[U][V], ema[U][V];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int j = i + u * kStride;
      if (j >= end) continue;
      load<V>(span.master + j, p[u]);
      if (span.ema != nullptr) load<V>(span.ema + j, ema[u]);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int j = i + u * kStride;
      if (j >= end) continue;
#pragma unroll
      for (int k = 0; k < V; ++k) p[u][k] = __fmul_rn(p[u][k], f.decay);
      store_weights<V>(span, j, p[u]);
      if (span.ema != nullptr) {
        update_ema<V>(ema[u], p[u], f);
        store<V>(span.ema + j, ema[u]);
      }
    }
  }
}

/// Elements that go four at a time; the rest, or everything when a pointer is not aligned, goes one
/// by one.
__device__ inline int vector_end(const Span& span, ElementType grad_type) {
  constexpr ElementType kFp32 = ElementType::kFloat32;
  const bool wide = aligned(span.master, kFp32) && aligned(span.exp_avg, kFp32) &&
                    aligned(span.exp_avg_sq, kFp32) && aligned(span.ema, kFp32) &&
                    aligned(span.param, span.param_type) && aligned(span.grad, grad_type);
  return wide ? span.count / kVec * kVec : 0;
}

/// Updates a span that gets a gradient (live), or applies the decay alone.
__device__ inline void process(const Span& span, ElementType grad_type, const Factors& f,
                               bool live) {
  const int end = vector_end(span, grad_type);
  if (!live) {
    // A factor of one changes nothing, and the average moves only when there is one.
    if (f.decay == 1.0f && span.ema == nullptr) return;
    decay_range<kVec, 2>(span, f, 0, end);
    decay_range<1, 1>(span, f, end, span.count);
  } else if (grad_type == ElementType::kBFloat16) {
    if (span.ema != nullptr) {
      update_span<__nv_bfloat16, true>(span, f, end);
    } else {
      update_span<__nv_bfloat16, false>(span, f, end);
    }
  } else {
    if (span.ema != nullptr) {
      update_span<float, true>(span, f, end);
    } else {
      update_span<float, false>(span, f, end);
    }
  }
}

__device__ inline void zero_row(void* data, ElementType type, int length) {
  const int bytes = length * (type == ElementType::kFloat32 ? 4 : 2);
  const bool wide = (reinterpret_cast<uintptr_t>(data) & 15) == 0;
  const int wide_end = wide ? bytes / 16 * 16 : 0;
  char* begin = static_cast<char*>(data);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < wide_end; i += kThreads * 16) {
    *reinterpret_cast<uint4*>(begin + i) = make_uint4(0, 0, 0, 0);
  }
  for (int i = wide_end + static_cast<int>(threadIdx.x) * 2; i < bytes; i += kThreads * 2) {
    *reinterpret_cast<unsigned short*>(begin + i) = 0;
  }
}

__device__ inline void zero_chunk_rows(const AdamWTensor& tensor, const AdamWGrad& grad,
                                       const AdamWChunk& chunk) {
  if (grad.data == nullptr) return;
  const uint8_t* flags = tensor.row_flags + chunk.begin / tensor.row_length;
  for (int row = 0; row * tensor.row_length < chunk.count; ++row) {
    if (flags[row] == 0) continue;
    zero_row(
        advance(grad.data, grad.type, chunk.begin + static_cast<int64_t>(row) * tensor.row_length),
        grad.type, tensor.row_length);
  }
}

__global__ void zero_rows_kernel(const AdamWTensor* tensors, const AdamWGrad* grads,
                                 const AdamWChunk* chunks) {
  await_previous_kernel();
  const AdamWChunk chunk = chunks[blockIdx.x];
  zero_chunk_rows(tensors[chunk.tensor], grads[chunk.tensor], chunk);
}

__device__ inline Factors factors_of(const AdamWUpdateArgs& args, int row, int group) {
  const AdamWGroupScalars s = args.scalars[row * args.num_groups + group];
  Factors f;
  f.clip = static_cast<float>(args.report[kAdamWClip]);
  f.decay = s.decay;
  f.step_size = s.step_size;
  f.sqrt_correction2 = s.sqrt_correction2;
  f.one_minus_beta1 = args.constants.one_minus_beta1;
  f.beta2 = args.constants.beta2;
  f.one_minus_beta2 = args.constants.one_minus_beta2;
  f.eps = args.constants.eps;
  f.ema_keep = args.constants.ema_keep;
  f.ema_take = args.constants.ema_take;
  return f;
}

__global__ void __launch_bounds__(kThreads, kUpdateBlocksPerSm)
    update_kernel(AdamWUpdateArgs args) {
  await_previous_kernel();
  __shared__ uint8_t flags[kAdamWMaxRows];
  const int32_t scalar_row = *args.decision;
  const AdamWChunk chunk = args.chunks[blockIdx.x];
  // Read again per row rather than kept: registers are for data in flight.
  const AdamWTensor& tensor = args.tensors[chunk.tensor];
  const AdamWGrad& grad = args.grads[chunk.tensor];
  if (scalar_row < 0) {
    if (tensor.row_flags != nullptr) zero_chunk_rows(tensor, grad, chunk);
    return;
  }
  const Factors f = factors_of(args, scalar_row, tensor.group);
  const bool sparse = tensor.row_flags != nullptr;
  const int length = sparse ? tensor.row_length : chunk.count;
  const int num_rows = sparse ? chunk.count / length : 1;
  if (sparse) {
    const uint8_t* own = tensor.row_flags + chunk.begin / length;
    for (int r = static_cast<int>(threadIdx.x); r < num_rows; r += kThreads) flags[r] = own[r];
    __syncthreads();
  }
  for (int r = 0; r < num_rows; ++r) {
    const int64_t begin = chunk.begin + static_cast<int64_t>(r) * length;
    Span span;
    span.param = advance(tensor.param, tensor.param_type, begin);
    span.master = tensor.master + begin;
    span.exp_avg = tensor.exp_avg == nullptr ? nullptr : tensor.exp_avg + begin;
    span.exp_avg_sq = tensor.exp_avg_sq == nullptr ? nullptr : tensor.exp_avg_sq + begin;
    span.ema = tensor.ema == nullptr ? nullptr : tensor.ema + begin;
    span.grad = advance(grad.data, grad.type, begin);
    span.count = length;
    span.param_type = tensor.param_type;
    span.zero_grad = sparse && grad.data != nullptr;
    const bool live = tensor.exp_avg != nullptr && (!sparse || flags[r] != 0);
    process(span, grad.type, f, live);
  }
}

}  // namespace

int32_t adamw_norm_blocks(int64_t num_chunks, int32_t num_multiprocessors) {
  const int64_t most = static_cast<int64_t>(num_multiprocessors) * kNormBlocksPerSm;
  return static_cast<int32_t>(num_chunks < most ? num_chunks : most);
}

cudaError_t adamw_norm(const AdamWNormArgs& args, cudaStream_t stream) {
  if (args.num_blocks == 0) return cudaSuccess;
  launch_kernel(norm_kernel, static_cast<unsigned>(args.num_blocks), kThreads, 0, stream, args);
  return cudaGetLastError();
}

cudaError_t adamw_finish(const AdamWFinishArgs& args, cudaStream_t stream) {
  launch_kernel(finish_kernel, 1, args.with_norm ? kFinishThreads : 32, 0, stream, args);
  return cudaGetLastError();
}

cudaError_t adamw_update(const AdamWUpdateArgs& args, cudaStream_t stream) {
  if (args.num_chunks == 0) return cudaSuccess;
  launch_kernel(update_kernel, static_cast<unsigned>(args.num_chunks), kThreads, 0, stream, args);
  return cudaGetLastError();
}

cudaError_t adamw_zero_rows(const AdamWTensor* tensors, const AdamWGrad* grads,
                            const AdamWChunk* chunks, int64_t num_chunks, cudaStream_t stream) {
  if (num_chunks == 0) return cudaSuccess;
  launch_kernel(zero_rows_kernel, static_cast<unsigned>(num_chunks), kThreads, 0, stream, tensors,
                grads, chunks);
  return cudaGetLastError();
}

}  // namespace longship::kernels
