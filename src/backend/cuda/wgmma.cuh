// The matrix instructions of compute capability 9.0 (wgmma, for code compiled for 90a) and what
// feeds them, one function each (PTX ISA 9.0). A warpgroup of 4 warps multiplies 64 rows; warp w
// holds rows 16 w.. of A and of the result, as A and C fragments of mma.m16n8k16 (ptx.cuh): of a
// result of N columns the N / 8 C fragments one after the other.
//
// B, and A where it is not in registers, lie in shared memory in rows of 64 halves = 128 bytes,
// each 8 rows 1024-aligned, their 16-byte units XORed with the row mod 8 (the 128-byte swizzle, as
// tensor copies write it); or in core matrices, 8 rows of 16 bytes one after the other.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// --- operands ------------------------------------------------------------------------------------

// An operand at `tile`. block_bytes: from 64 columns to the next 64 of an operand that is read
// along its rows' columns (values below); unused where columns are the sum's index.
__device__ __forceinline__ std::uint64_t swizzled_operand(const void* tile,
                                                          std::uint32_t block_bytes = 0) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | std::uint64_t{block_bytes / 16} << 16 |
         (shared_address(tile) & 0x3ffff) / 16;
}

// An operand at a shared_address() in core matrices, a row's next 16 bytes and the next 8 rows so
// many bytes on. For wgmma_bf16(), wgmma_fp16() and wgmma_bytes().
__device__ __forceinline__ std::uint64_t plain_operand(std::uint32_t tile, std::uint32_t next_units,
                                                       std::uint32_t next_rows) {
  return std::uint64_t{next_rows / 16} << 32 | std::uint64_t{next_units / 16} << 16 |
         (tile & 0x3ffff) / 16;
}

// --- order ---------------------------------------------------------------------------------------

// After stores to shared memory of what products are to read; then a barrier.
__device__ __forceinline__ void stores_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Before the first product that reads or adds to registers which other instructions wrote.
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Makes a group of the products since the last.
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `Pending` groups are under way: what those before read in registers is free.
template <int Pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The same, and then has x.
template <int Pending, int N>
__device__ __forceinline__ void products_wait(float (&x)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]));  // no use may move up
}
template <int Pending, int N>
__device__ __forceinline__ void products_wait(std::int32_t (&x)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i]));
}

// --- products of 16 terms ------------------------------------------------------------------------

#define QUANTSPEC_F4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define QUANTSPEC_F16(x, i) \
  QUANTSPEC_F4(x, i), QUANTSPEC_F4(x, i + 4), QUANTSPEC_F4(x, i + 8), QUANTSPEC_F4(x, i + 12)
#define QUANTSPEC_F32(x, i) QUANTSPEC_F16(x, i), QUANTSPEC_F16(x, i + 16)
#define QUANTSPEC_R4(x, i) "+r"(x[i]), "+r"(x[i + 1]), "+r"(x[i + 2]), "+r"(x[i + 3])
#define QUANTSPEC_R16(x, i) \
  QUANTSPEC_R4(x, i), QUANTSPEC_R4(x, i + 4), QUANTSPEC_R4(x, i + 8), QUANTSPEC_R4(x, i + 12)
#define QUANTSPEC_REGISTERS_0_31                                                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define QUANTSPEC_REGISTERS_32_47 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define QUANTSPEC_REGISTERS_32_63                                                                \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define QUANTSPEC_REGISTERS_0_63 QUANTSPEC_REGISTERS_0_31 "," QUANTSPEC_REGISTERS_32_63
#define QUANTSPEC_REGISTERS_64_79 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define QUANTSPEC_REGISTERS_0_95                         \
  QUANTSPEC_REGISTERS_0_63 "," QUANTSPEC_REGISTERS_64_79 \
                           ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define QUANTSPEC_REGISTERS_96_127                                                              \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114," \
  "%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// s [64, 128] = a b^T, or += where Add. a: 64 rows, b: 128 rows of 16 halves in shared memory.
template <bool Add>
__device__ __forceinline__ void wgmma_rows(float (&s)[64], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{" QUANTSPEC_REGISTERS_0_31 "," QUANTSPEC_REGISTERS_32_63 "}, %64, %65, add, 1, 1, 0, 0;\n}"
      : QUANTSPEC_F32(s, 0), QUANTSPEC_F32(s, 32)
      : "l"(a), "l"(b), "n"(Add ? 1 : 0));
}

// The same with a an A fragment.
template <bool Add>
__device__ __forceinline__ void wgmma_rows(float (&s)[64], const std::uint32_t* a,
                                           std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{" QUANTSPEC_REGISTERS_0_31 "," QUANTSPEC_REGISTERS_32_63
      "}, {%64,%65,%66,%67}, %68, add, 1, 1, 0;\n}"
      : QUANTSPEC_F32(s, 0), QUANTSPEC_F32(s, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Add ? 1 : 0));
}

// o [64, 128] += a b. a: A fragment; b: 16 rows of 128 columns in shared memory.
__device__ __forceinline__ void wgmma_columns(float (&o)[64], const std::uint32_t* a,
                                              std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{" QUANTSPEC_REGISTERS_0_31 "," QUANTSPEC_REGISTERS_32_63
      "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : QUANTSPEC_F32(o, 0), QUANTSPEC_F32(o, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// The same with 64 columns.
__device__ __forceinline__ void wgmma_columns(float (&o)[32], const std::uint32_t* a,
                                              std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{" QUANTSPEC_REGISTERS_0_31 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
      : QUANTSPEC_F32(o, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// s [64, columns] = a b^T of bf16, or of fp16, or += where Add. a: A fragment; b: so many rows of
// 16 elements in shared memory.
#define QUANTSPEC_WGMMA(name, type, columns, registers, a_and_b, add, ...)                   \
  template <bool Add>                                                                        \
  __device__ __forceinline__ void name(float(&s)[columns / 2], const std::uint32_t* a,       \
                                       std::uint64_t b) {                                    \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add                                 \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
                 " {" registers "}, " a_and_b ", add, 1, 1, 0;\n}"                           \
                 : __VA_ARGS__                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Add ? 1 : 0));    \
  }
#define QUANTSPEC_WGMMA_64(name, type)                                                       \
  QUANTSPEC_WGMMA(name, type, 64, QUANTSPEC_REGISTERS_0_31, "{%32,%33,%34,%35}, %36", "%37", \
                  QUANTSPEC_F32(s, 0))
#define QUANTSPEC_WGMMA_96(name, type)                                                    \
  QUANTSPEC_WGMMA(name, type, 96, QUANTSPEC_REGISTERS_0_31 "," QUANTSPEC_REGISTERS_32_47, \
                  "{%48,%49,%50,%51}, %52", "%53", QUANTSPEC_F32(s, 0), QUANTSPEC_F16(s, 32))
#define QUANTSPEC_WGMMA_128(name, type)                                                       \
  QUANTSPEC_WGMMA(name, type, 128, QUANTSPEC_REGISTERS_0_63, "{%64,%65,%66,%67}, %68", "%69", \
                  QUANTSPEC_F32(s, 0), QUANTSPEC_F32(s, 32))
QUANTSPEC_WGMMA_64(wgmma_bf16, "bf16")
QUANTSPEC_WGMMA_64(wgmma_fp16, "f16")
QUANTSPEC_WGMMA_96(wgmma_bf16, "bf16")
QUANTSPEC_WGMMA_96(wgmma_fp16, "f16")
QUANTSPEC_WGMMA_128(wgmma_bf16, "bf16")
QUANTSPEC_WGMMA_128(wgmma_fp16, "f16")
QUANTSPEC_WGMMA(wgmma_bf16, "bf16", 160, QUANTSPEC_REGISTERS_0_63 "," QUANTSPEC_REGISTERS_64_79,
                "{%80,%81,%82,%83}, %84", "%85", QUANTSPEC_F32(s, 0), QUANTSPEC_F32(s, 32),
                QUANTSPEC_F16(s, 64))
QUANTSPEC_WGMMA(wgmma_bf16, "bf16", 192, QUANTSPEC_REGISTERS_0_95, "{%96,%97,%98,%99}, %100",
                "%101", QUANTSPEC_F32(s, 0), QUANTSPEC_F32(s, 32), QUANTSPEC_F32(s, 64))
QUANTSPEC_WGMMA(wgmma_bf16, "bf16", 256, QUANTSPEC_REGISTERS_0_95 "," QUANTSPEC_REGISTERS_96_127,
                "{%128,%129,%130,%131}, %132", "%133", QUANTSPEC_F32(s, 0), QUANTSPEC_F32(s, 32),
                QUANTSPEC_F32(s, 64), QUANTSPEC_F32(s, 96))
#undef QUANTSPEC_WGMMA
#undef QUANTSPEC_WGMMA_64
#undef QUANTSPEC_WGMMA_96
#undef QUANTSPEC_WGMMA_128

// s [64, 64] = a b^T of bytes, or += where Add; a unsigned and b signed. a: A fragment of
// mma.m16n8k32; b: 64 rows of 32 bytes in shared memory.
template <bool Add>
__device__ __forceinline__ void wgmma_bytes(std::int32_t (&s)[32], const std::uint32_t* a,
                                            std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 "
      "{" QUANTSPEC_REGISTERS_0_31 "}, {%32,%33,%34,%35}, %36, add;\n}"
      : QUANTSPEC_R16(s, 0), QUANTSPEC_R16(s, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Add ? 1 : 0));
}

// The same with 32 rows.
template <bool Add>
__device__ __forceinline__ void wgmma_bytes(std::int32_t (&s)[16], const std::uint32_t* a,
                                            std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, add;\n}"
      : QUANTSPEC_R16(s, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Add ? 1 : 0));
}
// And with 16.
template <bool Add>
__device__ __forceinline__ void wgmma_bytes(std::int32_t (&s)[8], const std::uint32_t* a,
                                            std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, add;\n}"
      : QUANTSPEC_R4(s, 0), QUANTSPEC_R4(s, 4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Add ? 1 : 0));
}
#undef QUANTSPEC_F4
#undef QUANTSPEC_F16
#undef QUANTSPEC_F32
#undef QUANTSPEC_R4
#undef QUANTSPEC_R16
#undef QUANTSPEC_REGISTERS_0_31
#undef QUANTSPEC_REGISTERS_32_47
#undef QUANTSPEC_REGISTERS_32_63
#undef QUANTSPEC_REGISTERS_0_63
#undef QUANTSPEC_REGISTERS_64_79
#undef QUANTSPEC_REGISTERS_0_95
#undef QUANTSPEC_REGISTERS_96_127

// --- warps of different roles --------------------------------------------------------------------

template <int Registers>
__device__ __forceinline__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Hardware barrier `id`, where one warpgroup waits for the arrival of another.
__device__ __forceinline__ void pair_wait(int id) {
  asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}
__device__ __forceinline__ void pair_arrive(int id) {
  asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
}

// --- tensor copies -------------------------------------------------------------------------------

// The map's box at element (x, y, z) to shared memory.
__device__ __forceinline__ void copy_tensor(void* to_shared, const CUtensorMap& map, int x, int y,
                                            int z, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to_shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}

#endif

}  // namespace quantspec::cuda
