// Blocks of SHA-256 with the instructions that x86 processors have for it, several times faster
// than plain code: checkpoints of tens of gigabytes are hashed when they are written and read.
#include "base/sha256_x86.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

namespace longship {

bool has_sha256_instructions() {
  static const bool found = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
    const bool sse41 = (c >> 19 & 1U) != 0, ssse3 = (c >> 9 & 1U) != 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    return sse41 && ssse3 && (b >> 29 & 1U) != 0;
  }();
  return found;
}

// The state lives in two registers in the order that the instructions want: ABEF and CDGH.
__attribute__((target("sha,sse4.1,ssse3"))) void sha256_blocks_x86(uint32_t* state,
                                                                   const uint32_t* round,
                                                                   const uint8_t* bytes,
                                                                   size_t num_blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; num_blocks > 0; --num_blocks, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[16];
    for (int i = 0; i < 4; ++i) {
      const __m128i* source = reinterpret_cast<const __m128i*>(bytes + 16 * i);
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(source), big_endian);
    }
    for (int i = 4; i < 16; ++i) {
      const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]),
                                        _mm_alignr_epi8(w[i - 1], w[i - 2], 4));
      w[i] = _mm_sha256msg2_epu32(sum, w[i - 1]);
    }
    for (int i = 0; i < 16; ++i) {
      const __m128i* constants = reinterpret_cast<const __m128i*>(round + 4 * i);
      const __m128i sum = _mm_add_epi32(w[i], _mm_loadu_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace longship

#else

namespace longship {

bool has_sha256_instructions() {
  return false;
}
void sha256_blocks_x86(uint32_t*, const uint32_t*, const uint8_t*, size_t) {}

}  // namespace longship

#endif
