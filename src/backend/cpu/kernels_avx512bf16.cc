// What AVX-512 BF16 adds to AVX-512 VNNI (flags: src/CMakeLists.txt).
#if defined(__x86_64__)
#include "backend/cpu/simd_avx512.h"
// The wrapper comes first: it keeps the compiler's own headers quiet.
#include "backend/cpu/kernels.h"

namespace quantspec::cpu {
namespace {

void round(const float* in, int count, std::uint16_t* out) {
  for (int i = 0; i < count; i += 2 * kLanes) {
    const auto lanes = [&](int first) {
      return count - first >= kLanes ? load(in + first) : load_n(in + first, count - first);
    };
    const F32 low = lanes(i), high = i + kLanes < count ? lanes(i + kLanes) : zero_f32();
    const auto mask = count - i >= 2 * kLanes ? ~__mmask32{0} : (__mmask32{1} << (count - i)) - 1;
    _mm512_mask_storeu_epi16(out + i, mask,
                             reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v)));
  }
}

}  // namespace

extern const Bf16Kernels kAvx512Bf16Kernels;
constinit const Bf16Kernels kAvx512Bf16Kernels = {.round = round};

}  // namespace quantspec::cpu
#endif
