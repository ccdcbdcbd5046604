#include "backend/cpu/isa.h"

#include <cstdlib>

#include "backend/cpu/cpu.h"
#include "base/error.h"

namespace quantspec::cpu {

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      break;
  }
  return "avx512vnni";
}

std::vector<Isa> supported_isa_list() {
  std::vector<Isa> list = {Isa::kScalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // NOTE: whatever has AVX2 has F16C; clang 14 cannot ask for it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    list.push_back(Isa::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      list.push_back(Isa::kAvx512);
      if (__builtin_cpu_supports("avx512vnni")) list.push_back(Isa::kAvx512Vnni);
    }
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
