#include "backend/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdlib>

#include "backend/cpu/cpu.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

#if defined(__x86_64__)
// NOTE: not every compiler's __builtin_cpu_supports knows it.
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 4) != 0;
}
#if !defined(QUANTSPEC_NO_AVX512)
// What the kernel must allow this process first, since threads' states become 8 KB larger. It
// refuses where it or the processor has no tiles.
bool has_amx_bf16() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kBf16) != 0 &&
         (edx & kTiles) != 0 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif
#endif

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avxvnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmxBf16:
      return "amxbf16";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonDot:
      return "neondot";
    case Isa::kNeonI8mm:
      break;
  }
  return "neoni8mm";
}

std::vector<Isa> supported_isa_list() {
  std::vector<Isa> list = {Isa::kScalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // NOTE: whatever has AVX2 has F16C; clang 14 cannot ask for it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    list.push_back(Isa::kAvx2);
    if (has_avx_vnni()) list.push_back(Isa::kAvxVnni);
#if !defined(QUANTSPEC_NO_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      list.push_back(Isa::kAvx512);
      if (__builtin_cpu_supports("avx512vnni")) {
        list.push_back(Isa::kAvx512Vnni);
        if (__builtin_cpu_supports("avx512bf16")) {
          list.push_back(Isa::kAvx512Bf16);
          if (has_amx_bf16()) list.push_back(Isa::kAmxBf16);
        }
      }
    }
#endif
  }
#elif defined(__aarch64__)
  list.push_back(Isa::kNeon);
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    list.push_back(Isa::kNeonDot);
    if ((getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0) list.push_back(Isa::kNeonI8mm);
  }
#endif
  return list;
}

Isa choose_isa() {
  const std::vector<Isa> list = supported_isa_list();
  const char* wanted = std::getenv("QUANTSPEC_ISA");
  if (wanted == nullptr || *wanted == '\0') return list.back();
  for (const Isa isa : list) {
    if (name_of(isa) == wanted) return isa;
  }
  std::string names;
  for (const Isa isa : list) names.append(" ").append(name_of(isa));
  fail(ErrorKind::kInvalidRequest, "QUANTSPEC_ISA={}: this machine runs{}", wanted, names);
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Isa isa : supported_isa_list()) names.emplace_back(name_of(isa));
  return names;
}

}  // namespace quantspec::cpu
