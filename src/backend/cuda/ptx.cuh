// The instructions that C++ has no word for, one function each (PTX ISA 9.0). Fragments are those
// of the mma instructions: lane = 4 * g + t holds of
//
//     A (16 x 16, row x k)     a[0] (g, 2t..)      a[1] (g + 8, 2t..)
//                              a[2] (g, 2t + 8..)  a[3] (g + 8, 2t + 8..)
//     B (16 x 8, k x column)   b[0] (2t.., g)      b[1] (2t + 8.., g)
//     C (16 x 8)               c[0], c[1] (g, 2t..)  c[2], c[3] (g + 8, 2t..)
//
// where "2t.." is the pair 2t, 2t + 1 in one register (of C: two).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace quantspec::cuda {

// --- tensor cores --------------------------------------------------------------------------------

// c += A B, fp16 in, fp32 sums.
__device__ __forceinline__ void mma_f16(float (&c)[4], const std::uint32_t (&a)[4],
                                        std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += A B, bf16 in, fp32 sums.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += A B of bytes, A (16 x 32) unsigned, B (32 x 8) signed: each register has four k where the
// above has a pair, b[0] k = 4t.., b[1] 4t + 16...
__device__ __forceinline__ void mma_u8(std::int32_t (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                       std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with half as many k: A (16 x 16) has two registers, four k of rows g and g + 8, B one.
__device__ __forceinline__ void mma_u8(std::int32_t (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
// Both with A signed, too.
__device__ __forceinline__ void mma_s8(std::int32_t (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void mma_s8(std::int32_t (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                       std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transposes an 8 x 8 matrix of 16-bit elements, a row's pair (2t, 2t + 1) of row g in each lane.
__device__ __forceinline__ std::uint32_t transpose8x8(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + r has the address of row r
// of matrix i (16 bytes, aligned). x[i]: the lane's pair of matrix i, as of an A or B operand.
__device__ __forceinline__ void load_matrices(const void* row, std::uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same, each transposed.
__device__ __forceinline__ void load_matrices_transposed(const void* row, std::uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// x, which the compiler takes for something new: what follows from it is not computed ahead of a
// loop around, which would cost the loop registers, and x is not put off until after a wait.
__device__ __forceinline__ int afresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
template <typename T>
__device__ __forceinline__ T* afresh(T* x) {
  asm volatile("" : "+l"(x));
  return x;
}

// The warp of the block. The compiler then knows that it is the same in all lanes, and keeps what
// follows from it in uniform registers. REQUIRES: a converged warp.
__device__ __forceinline__ int warp_index() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }

// --- arithmetic ----------------------------------------------------------------------------------

// 1 / x to about 1 unit in the last place, of normal numbers.
__device__ __forceinline__ float reciprocal_approximately(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x to about 2 units in the last place; 0 where that is below the normal numbers.
__device__ __forceinline__ float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The greater; NaN where one is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// --- bits ----------------------------------------------------------------------------------------

// mask ? a : b, bit by bit
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t mask, std::uint32_t a,
                                                     std::uint32_t b) {
  std::uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(y) : "r"(mask), "r"(a), "r"(b));
  return y;
}

// --- barriers of some warps ----------------------------------------------------------------------

// Barrier `index` (1 to 15) of so many threads of the block, whole warps.
__device__ __forceinline__ void barrier_sync(int index, int threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

// --- shared memory, asynchronous copies ----------------------------------------------------------

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, beside L1; ignored source where !valid (zeros come).
__device__ __forceinline__ void copy_async16(void* to_shared, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
// The same of 16 valid bytes, to a shared_address().
__device__ __forceinline__ void copy_async16(std::uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// The same of bytes that are streamed: their whole line comes to L2.
// NOTE: no evict-first policy: with one, ptxas 13.0 makes an instruction that is illegal on 9.0.
__device__ __forceinline__ void copy_stream16(std::uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}
// By shared_address(); kOffset is part of the instruction.
template <int kOffset = 0>
__device__ __forceinline__ uint4 load_shared16(std::uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from), "n"(kOffset));
  return x;
}
template <int kOffset = 0>
__device__ __forceinline__ uint2 load_shared8(std::uint32_t from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2+%3];"
               : "=r"(x.x), "=r"(x.y)
               : "r"(from), "n"(kOffset));
  return x;
}
__device__ __forceinline__ std::uint32_t load_shared4(std::uint32_t from) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
  return x;
}
__device__ __forceinline__ std::uint32_t load_shared2(std::uint32_t from) {
  std::uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from));
  return x;
}
__device__ __forceinline__ void commit_async_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `Pending` of this thread's groups are under way.
template <int Pending>
__device__ __forceinline__ void wait_async_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// An mbarrier in shared memory, on which bulk copies complete.
__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// After barrier_init, before another thread or a bulk copy meets the barrier.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival, and so many more bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT%=: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra WAIT%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// True in one lane. REQUIRES: a converged warp.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}
// `bytes` a multiple of 16, both sides 16-byte aligned; to a shared_address(). What is copied is
// the first to leave the L2 cache again. By one lane, elect_one(), of operands that the compiler
// knows to be the same in all: from others they come to the instruction in a loop.
__device__ __forceinline__ void copy_bulk_once(std::uint32_t to_shared, const void* from,
                                               std::uint32_t bytes, std::uint64_t* barrier) {
  constexpr std::uint64_t kEvictFirst = 0x12f0000000000000;  // as createpolicy makes it
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(kEvictFirst)
      : "memory");
}
// The same of what others read, too.
__device__ __forceinline__ void copy_bulk(std::uint32_t to_shared, const void* from,
                                          std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to_shared),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
#endif
// What the warp's lanes have loaded from shared memory is there: before one of them starts a bulk
// copy that writes over it, or lets another warp start it. NOTE: nothing else waits for loads under
// way. An arrival at a barrier is ordered behind them, but such a copy is not (PTX: it is of the
// async proxy), and may write before they have read (docs/decisions/0026).
__device__ __forceinline__ void loads_before_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncwarp();
}

// --- words between blocks ------------------------------------------------------------------------

// Words that one block writes while another looks for them: each word is there or is not, nothing
// follows for others. 16-byte and 8-byte aligned, in global memory.
__device__ __forceinline__ float4 load_relaxed(const float4* from) {
  float4 x;
  asm volatile("ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ float2 load_relaxed(const float2* from) {
  float2 x;
  asm volatile("ld.relaxed.gpu.v2.f32 {%0,%1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "l"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_relaxed(float4* to, float4 x) {
  asm volatile("st.relaxed.gpu.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(float2* to, float2 x) {
  asm volatile("st.relaxed.gpu.v2.f32 [%0], {%1,%2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}
// The same between GPUs, and between a GPU and the host.
__device__ __forceinline__ float4 load_system(const float4* from) {
  float4 x;
  asm volatile("ld.relaxed.sys.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_system(float4* to, float4 x) {
  asm volatile("st.relaxed.sys.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
}
__device__ __forceinline__ int load_system(const int* from) {
  int x;
  asm volatile("ld.relaxed.sys.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store_system(int* to, int x) {
  asm volatile("st.relaxed.sys.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
// Where a word is zero until it comes: zeros as -0, so that none is, and whether it has come.
__device__ __forceinline__ float nonzero(float x) { return __fadd_rd(x, -0.0f); }
__device__ __forceinline__ float4 nonzero(float4 x) {
  return {nonzero(x.x), nonzero(x.y), nonzero(x.z), nonzero(x.w)};
}
__device__ __forceinline__ bool is_there(float2 x) {
  return min(__float_as_uint(x.x), __float_as_uint(x.y)) != 0;
}
__device__ __forceinline__ bool is_there(float4 x) {
  return is_there(make_float2(x.x, x.y)) && is_there(make_float2(x.z, x.w));
}

// Nanoseconds of a clock that runs on.
__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// --- kernels in a row, blocks in a cluster -------------------------------------------------------

// Both are of 9.0; before that nothing is there to wait for.

// Programmatic dependent launch: what follows may read what the kernels before this one wrote.
__device__ __forceinline__ void wait_for_previous_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's blocks may start where there is room.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// A barrier of all threads of a cluster in two halves, from 9.0 on: what was written to shared
// memory before `arrive` is there after `wait`; stores to global memory, which a plain release
// would wait for, need not be. REQUIRES: converged warps; what was loaded of other blocks has been
// used. PTX does not order such a load before the arrival; but an instruction that needs its value
// is issued when that is there, and the arrival after it.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned;" ::
          : "memory");
#endif
}
// The same where nothing was written that others read: it waits for no memory.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// A float that block `rank` of the cluster has in shared memory, by this block's shared_address().
__device__ __forceinline__ float load_cluster(std::uint32_t address, int rank) {
  float x;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(x)
      : "r"(address), "r"(rank));
#else
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
#endif
  return x;
}

}  // namespace quantspec::cuda
