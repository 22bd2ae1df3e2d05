// One thread for each other device. 32 threads, few registers and no shared memory, so that the
// warp fits beside the largest blocks of a matrix product and takes no multiprocessor from it.
#include "kernels/exchange/meet.h"

namespace longship::kernels {
namespace {

// The host's word is behind the bus: it is read once in so many looks at the own memory.
constexpr uint32_t kLooksPerStop = 64;

__device__ __forceinline__ void store_release(uint64_t* place, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(place), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire(const uint64_t* place) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(place) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void __launch_bounds__(32) meet_kernel(const __grid_constant__ MeetArgs args) {
  const int peer = static_cast<int>(threadIdx.x);
  const uint64_t turn = *args.count + 1;
  __syncwarp();  // all have read it
  if (peer < args.world_size && peer != args.rank) {
    __threadfence_system();
    store_release(args.places[peer], turn);
    const uint64_t begin = now_ns();
    for (uint32_t looks = 0; load_acquire(args.arrived + peer) < turn; ++looks) {
      if (looks % kLooksPerStop != kLooksPerStop - 1) continue;
      if (*args.stop != 0) break;
      if (now_ns() - begin > args.timeout_ns) {
        *args.failed = 1 + static_cast<uint64_t>(peer);
        __threadfence_system();
        if (args.trap) __trap();
        break;
      }
    }
  }
  __syncwarp();
  if (peer == 0) *args.count = turn;
}

}  // namespace

cudaError_t meet(const MeetArgs& args, cudaStream_t stream) {
  if (args.world_size < 1 || args.world_size > kMaxMeeting) return cudaErrorInvalidValue;
  meet_kernel<<<1, 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace longship::kernels
