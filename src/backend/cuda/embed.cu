// What a pass begins with: where its sequences stand, the tokens' rows of the embedding, and the
// rotation angles of their positions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>

#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/plane_codes.cuh"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kPlaceThreads = 256;

// Where the lanes' rounds stand. One block.
__global__ void __launch_bounds__(kPlaceThreads)
    place_lanes(LaneTable table, bool verifies, int drafted, int page_size, int num_rows,
                SequenceState* states, RowPlace* rows) {
  int end = table.count;
  if (verifies) {
    const RoundLane& last = table.lanes[table.count - 1];
    end = last.first_row - table.first_row + last.draft_len + 1;
  }
  for (int row = end + threadIdx.x; row < num_rows; row += kPlaceThreads) rows[row] = {-1, 0};
  for (int s = threadIdx.x; s < table.count; s += kPlaceThreads) {
    const RoundLane& lane = table.lanes[s];
    const int count = verifies ? lane.draft_len + 1 : lane.drafts() > drafted;
    const int first = verifies ? lane.first_row - table.first_row : s;
    if (count == 0) {
      states[s] = {};
      if (!verifies && s < num_rows) rows[s] = {-1, 0};
      continue;
    }
    const int position = lane.at.round->length - 1 + (verifies ? 0 : lane.at.round->drafted);
    const int first_full = first_full_position(position, page_size);
    states[s] = {first, count, position, first_full, first_full / page_size, 0, lane.at.tokens};
    for (int i = 0; i < count; ++i) rows[first + i] = {s, position + i};
  }
}

__device__ float as_float(float x) { return x; }
__device__ float as_float(__half x) { return __half2float(x); }
__device__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Tables, of which a block reads a row.
template <typename T>
struct ElementTable {
  const T* data;
  int cols;

  __device__ void read(TokenId row, float* out) const {
    const T* from = data + static_cast<std::size_t>(row) * padded_cols(cols);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) out[i] = as_float(from[i]);
  }
};
template <int kLowerBits>
struct CodedTable {
  CodedPlanes planes;

  // A thread reads what a lane has of a span.
  __device__ void read(TokenId row, float* out) const {
    __shared__ float values[16];
    share_values(planes, values);
    for (int task = threadIdx.x; task / 4 * kSpanInputs < planes.cols; task += blockDim.x) {
      const int span = task / 4, t = task % 4;
      const LaneCodes<kLowerBits> codes(planes, row / kTileRows, span, row % 8 * 4 + t);
#pragma unroll
      for (int i = 0; i < kLaneInputs; ++i) {
        const int col = span * kSpanInputs + lane_input(planes.layout.group, t, i);
        if (col < planes.cols) out[col] = codes.weight(values, row / 8 % 2, i);
      }
    }
  }
};

// One block for each row.
template <typename Table>
__global__ void embed_rows(const SequenceState* states, const RowPlace* rows,
                           const __grid_constant__ Table table, int hidden, float* out,
                           const float* cos_table, const float* sin_table, int half, float* cos,
                           float* sin) {
  const int row = blockIdx.x;
  const auto [sequence, position] = rows[row];
  float* to = out + static_cast<std::size_t>(row) * hidden;
  if (sequence < 0) {  // nobody's; what is computed of it stays within bounds
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = 0.0f;
    return;
  }
  const TokenId token = states[sequence].tokens[position];
  table.read(token, to);
  if (cos == nullptr) return;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const std::size_t angle = static_cast<std::size_t>(position) * half + i;
    cos[static_cast<std::size_t>(row) * half + i] = cos_table[angle];
    sin[static_cast<std::size_t>(row) * half + i] = sin_table[angle];
  }
}

}  // namespace

int kernels_capability() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, place_lanes) == cudaSuccess) return attributes.ptxVersion;
  cudaGetLastError();  // it is not the next call's
  return 0;
}

void Device::begin_pass(const EmbedParams& params) {
  const SequenceRows& first = params.sequences.front();
  const LaneTable lanes = lane_table(first.lane, static_cast<int>(params.sequences.size()));
  grow(lane_rows_, lane_rows_bytes(params.num_rows));
  place_lanes<<<1, kPlaceThreads, 0, stream_>>>(
      lanes, first.verifies, first.drafted, params.page_size, params.num_rows,
      lane_states_.as<SequenceState>(), lane_rows_.as<RowPlace>());
  require_launch("place_lanes");
}

void embed(Device& device, const EmbedParams& params) {
  if (params.sequences.empty()) return;
  int num_rows = params.num_rows;
  if (params.sequences[0].lane >= 0) {
    device.begin_pass(params);
  } else {
    num_rows = params.sequences.back().first_row + params.sequences.back().num_rows;
  }
  const SequenceTables sequences = device.tables(params.sequences, num_rows, 0);
  const Matrix& table = params.table;
  const auto launch = [&]<typename Table>(const Table& rows) {
    embed_rows<<<num_rows, 256, 0, device.stream()>>>(
        sequences.states, sequences.rows, rows, table.cols, params.out, params.cos_table,
        params.sin_table, params.half, params.cos, params.sin);
    require_launch("embed_rows");
  };
  const auto launch_elements = [&]<typename T>(const T* data) {
    launch(ElementTable<T>{data, table.cols});
  };
  if (!table.format.dense()) {
    return with_lower_bits(
        table, [&]<int kLowerBits>() { launch(CodedTable<kLowerBits>{CodedPlanes(table)}); });
  }
  switch (table.format.dtype) {
    case DType::kF32:
      return launch_elements(static_cast<const float*>(table.data));
    case DType::kF16:
      return launch_elements(static_cast<const __half*>(table.data));
    case DType::kBF16:
      return launch_elements(static_cast<const __nv_bfloat16*>(table.data));
  }
}

}  // namespace quantspec::cuda
