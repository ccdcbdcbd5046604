// What share of attention each page got. The sums over all pages come last, when what bands got
// has left the L2 cache; so this is a kernel of its own, of many blocks, behind attention's.
#include "backend/cuda/attention_launch.h"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kPages = 8;  // of a warp, loaded together

// Grid: [page_capacity / (kWarps * kPages), kv heads, sequences]. A lane has every 32nd column: the
// order of the sum does not depend on how attention divided them.
__global__ void __launch_bounds__(32 * kWarps)
    page_mass_kernel(const __grid_constant__ AttentionArgs args) {
  // Before the wait: attention lets what follows start after its own, so all that ran before it has
  // ended, and what follows reads early neither masses nor attention's output.
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, kv_head = blockIdx.y, sequence = blockIdx.z;
  wait_for_previous_kernels();
  const SequenceKv& kv = *args.sequences.of(sequence);
  const SequenceState state = state_of(args.sequences.states + sequence, kv);
  const int columns = state.num_rows * args.group;
  const int first = (blockIdx.x * kWarps + threadIdx.x / 32) * kPages;
  const int pages = min(kPages, state.num_pages - first), bands = 1 << args.band_shift;
  if (state.num_rows == 0 || kv.page_mass == nullptr || first >= kv.max_pages) return;
  const std::ptrdiff_t head = sequence * args.shape.num_kv_heads + kv_head;
  const float2* totals = args.totals + head * args.page_columns;
  const float2* sums =
      args.page_sums + (head * args.page_capacity + first) * bands * args.page_columns;
  float got[kPages] = {};
  for (int column = lane; column < columns; column += 32) {
    const float2 total = __ldcg(totals + column);
    for (int band = 0; band < bands; ++band) {
#pragma unroll
      for (int i = 0; i < kPages; ++i) {
        if (i >= pages) continue;
        const float2 sum = __ldcg(sums + (i * bands + band) * args.page_columns + column);
        got[i] = fmaf(sum.y, exp2_approximately(sum.x - total.x) * total.y, got[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) got[i] += __shfl_xor_sync(~0u, got[i], lanes);
    if (lane == i && first + i < kv.max_pages) {
      kv.page_mass[kv_head * kv.max_pages + first + i] = i < pages ? got[i] : NAN;
    }
  }
}

}  // namespace

void launch_page_mass(Device& device, const AttentionArgs& args) {
  constexpr int kBlockPages = kWarps * kPages;
  const dim3 grid((args.page_capacity + kBlockPages - 1) / kBlockPages, args.shape.num_kv_heads,
                  args.sequences.count);
  launch_kernel(device, OpOrder::kOverlaps, grid, 32 * kWarps, 0, page_mass_kernel, args);
}

}  // namespace quantspec::cuda
