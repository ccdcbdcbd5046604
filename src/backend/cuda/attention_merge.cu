// The merge of splits as a kernel of its own, where columns are many: a CTA for each, instead of
// one for all of them; and attention's kernel has its registers for its loop.
#include "backend/cuda/attention_launch.h"
#include "backend/cuda/attention_merge.cuh"
#include "backend/cuda/ranks.h"

namespace quantspec::cuda {

namespace {

constexpr int kMostHeadDim = 256;
constexpr int kBatch = few_splits(2) / 2;  // splits that a lane has under way

// The greatest exponent and the sum of few splits, of which this lane and its neighbour have every
// other one, in both. In the order of merge_few.
__device__ float2 total_of_few(const float2 (&sums)[kBatch]) {
  float exponent = sums[0].x, sum = 0.0f;
#pragma unroll
  for (const float2 part : sums) exponent = fmaxf(exponent, part.x);
  exponent = fmaxf(exponent, __shfl_xor_sync(~0u, exponent, 1));
#pragma unroll
  for (const float2 part : sums) {
    sum = fmaf(part.y, exp2_approximately(part.x - exponent), sum);
  }
  return {exponent, sum + __shfl_xor_sync(~0u, sum, 1)};
}

// The greatest exponent and the sum of many splits, in every lane; in the order of merge_sums.
// NOTE: that finds the greatest exponent 64 splits at a time. The bits are the same, as exponents
// are whole and what it multiplies sums with are powers of two.
__device__ float2 total_of_many(const float2* sums, int splits, int stride) {
  float exponent = -1e30f, sum = 0.0f;
  for (int split = threadIdx.x % 32; split < splits; split += 32) {
    exponent = fmaxf(exponent, __ldcg(sums + split * stride).x);
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    exponent = fmaxf(exponent, __shfl_xor_sync(~0u, exponent, lanes));
  }
  for (int split = threadIdx.x % 32; split < splits; split += 32) {
    const float2 part = __ldcg(sums + split * stride);
    sum = fmaf(part.y, exp2_approximately(part.x - exponent), sum);
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  return {exponent, sum};
}

// Grid: [columns, kv heads, sequences]. In the order of merge_few and merge_many: neighbouring
// lanes merge four channels, each every other split. Few splits are one batch, from which their
// greatest exponent is known.
__global__ void __launch_bounds__(kMostHeadDim / 2)
    merge_kernel(const __grid_constant__ AttentionArgs args, int block_columns) {
  let_next_kernel_start();  // as page_mass_kernel does
  const int column = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  const int quads = args.shape.head_dim / 4, quad = threadIdx.x / 2, lane = threadIdx.x % 2;
  const int row = args.row_of(column), splits = args.splits;
  const std::ptrdiff_t head = sequence * args.shape.num_kv_heads + kv_head;
  const std::ptrdiff_t first =
      (head * args.column_blocks + column / block_columns) * splits * block_columns +
      column % block_columns;
  const float2* sums = args.partial_sums + first;
  const float4* rows = reinterpret_cast<const float4*>(args.partials) + first * quads + quad;
  const SequenceState* state = args.sequences.states + sequence;
  const int first_row = __ldcg(&state->first_row), num_rows = __ldcg(&state->num_rows);
  wait_for_previous_kernels();
  if (row >= num_rows) return;
  const bool few = splits <= 2 * kBatch;
  float2 total;
  if (!few) total = total_of_many(sums, splits, block_columns);
  float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int batch = lane; batch < splits + lane; batch += 2 * kBatch) {
    float2 s[kBatch];
    float4 x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = batch + 2 * i;
      s[i] = {-1e30f, 0.0f};
      x[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (split >= splits) continue;
      s[i] = __ldcg(sums + split * block_columns);
      if (quad < quads) x[i] = __ldcg(rows + split * block_columns * quads);
    }
    if (few) total = total_of_few(s);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      add_product(out, x[i], exp2_approximately(s[i].x - total.x));
    }
  }
  out = add_neighbour(out);
  if (lane != 0 || quad >= quads) return;
  const float inverse = __fdividef(1.0f, total.y);
  const std::ptrdiff_t query_head = static_cast<std::ptrdiff_t>(first_row + row) * args.num_heads +
                                    kv_head * args.group + args.head_of(column);
  reinterpret_cast<float4*>(args.out)[query_head * quads + quad] = {
      out.x * inverse, out.y * inverse, out.z * inverse, out.w * inverse};
  if (quad == 0 && args.page_columns > 0) {
    args.totals[head * args.page_columns + column] = make_float2(total.x, inverse);
  }
}

}  // namespace

void launch_merge(Device& device, const AttentionArgs& args, int columns, int block_columns) {
  launch_kernel(device, OpOrder::kOverlaps,
                dim3(columns, args.shape.num_kv_heads, args.sequences.count),
                (args.shape.head_dim / 2 + 31) / 32 * 32, 0, merge_kernel, args, block_columns);
}

void merge_of_ranks(Device& device, const AttentionLaunch& launch, const RankPartials& partials) {
  device.ranks()->give_partials(partials);
  AttentionArgs own = launch.args;
  own.num_heads /= launch.heads_shares;
  own.shape.num_kv_heads /= launch.heads_shares;
  own.column_blocks = 1;
  own.partial_sums = partials.all_sums;
  own.partials = partials.all_rows;
  launch_merge(device, own, launch.columns, launch.columns);
}

}  // namespace quantspec::cuda
