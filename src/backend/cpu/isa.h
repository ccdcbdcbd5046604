// The instruction sets that the CPU kernels exist for, and the choice among them. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quantspec::cpu {

// Those with bf16 multiply prompts in it, by AVX-512 or by AMX.
enum class Isa {
  kScalar,
  kAvx2,
  kAvxVnni,
  kAvx512,
  kAvx512Vnni,
  kAvx512Bf16,
  kAmxBf16,
  kNeon,
  kNeonDot,
  kNeonI8mm
};

// "scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amxbf16", "neon", "neondot",
// "neoni8mm"
std::string_view name_of(Isa isa);

// What this machine can run, worst first; kScalar always.
std::vector<Isa> supported_isa_list();

// The best that this machine can run, or what the environment variable QUANTSPEC_ISA names. Throws
// kInvalidRequest when that is unknown or cannot run here.
Isa choose_isa();

}  // namespace quantspec::cpu
