// What a pass begins with: where its sequences stand, the tokens' rows of the embedding, and the
// rotation angles of their positions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

struct RoundRows {
  const Round* round;
  int first_row;
  int num_rows;
  bool verifies;
};
struct RoundBatch {
  int count;
  RoundRows rows[kMaxSequences];
};

// states: [kNumViews, count], `stride` from view to view, of which kPages is the first.
__global__ void place_rounds(RoundBatch batch, int page_size, SequenceState* states,
                             std::size_t stride) {
  const int s = threadIdx.x;
  if (s >= batch.count) return;
  const RoundRows& rows = batch.rows[s];
  const int position = rows.round->length - 1 + (rows.verifies ? 0 : rows.round->drafted);
  const int first_full = first_full_position(position, page_size);
  const auto put = [&](View view, int full, int pages) {
    states[static_cast<int>(view) * stride + s] = {rows.first_row, rows.num_rows, position, full,
                                                   pages};
  };
  put(View::kPages, first_full, first_full / page_size);
  put(View::kNoPages, first_full, 0);
  put(View::kAllFull, 0, 0);
}

__device__ float as_float(float x) { return x; }
__device__ float as_float(__half x) { return __half2float(x); }
__device__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

struct TokenRows {
  const TokenId* tokens;
  int first_token;
};
struct TokenBatch {
  int count;
  int first_row;
  const SequenceState* states;
  TokenRows rows[kMaxSequences];
};

// One block for each row of the launch.
template <typename T>
__global__ void embed_rows(TokenBatch batch, const T* table, int hidden, int stride, float* out,
                           const float* cos_table, const float* sin_table, int half, float* cos,
                           float* sin) {
  const int row = batch.first_row + blockIdx.x;
  int s = 0;
  while (s + 1 < batch.count && batch.states[s + 1].first_row <= row) ++s;
  const int position = batch.states[s].first_position + row - batch.states[s].first_row;
  const TokenId token = batch.rows[s].tokens[position - batch.rows[s].first_token];
  const T* from = table + static_cast<std::size_t>(token) * stride;
  float* to = out + static_cast<std::size_t>(row) * hidden;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = as_float(from[i]);
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
  if (cudaFuncGetAttributes(&attributes, place_rounds) == cudaSuccess) return attributes.ptxVersion;
  cudaGetLastError();  // it is not the next call's
  return 0;
}

void Device::begin_pass(std::span<const SequenceRows> sequences, int page_size) {
  reserve_states(sequences.size());
  for_launches(sequences, [&](int first, int count) {
    RoundBatch batch{count, {}};
    for (int i = 0; i < count; ++i) {
      const SequenceRows& rows = sequences[first + i];
      batch.rows[i] = {rows.round, rows.first_row, rows.num_rows, rows.verifies};
    }
    place_rounds<<<1, kMaxSequences, 0, stream_>>>(batch, page_size,
                                                   round_states(View::kPages) + first, room_);
    require_launch("place_rounds");
  });
}

void embed(Device& device, const EmbedParams& params) {
  if (params.sequences.empty()) return;
  if (params.sequences[0].round != nullptr) device.begin_pass(params.sequences, params.page_size);
  const SequenceState* states = device.states(params.sequences);
  const TensorView& table = params.table;
  const auto launch = [&]<typename T>(const T* data) {
    for_launches(params.sequences, [&](int first, int count) {
      TokenBatch batch{count, params.sequences[first].first_row, states + first, {}};
      int num_rows = 0;
      for (int i = 0; i < count; ++i) {
        const SequenceRows& rows = params.sequences[first + i];
        batch.rows[i] = {rows.tokens, rows.first_token};
        num_rows += rows.num_rows;
      }
      embed_rows<<<num_rows, 256, 0, device.stream()>>>(
          batch, data, table.cols, padded_cols(table.cols), params.out, params.cos_table,
          params.sin_table, params.half, params.cos, params.sin);
      require_launch("embed_rows");
    });
  };
  switch (table.dtype) {
    case DType::kF32:
      return launch(static_cast<const float*>(table.data));
    case DType::kF16:
      return launch(static_cast<const __half*>(table.data));
    case DType::kBF16:
      return launch(static_cast<const __nv_bfloat16*>(table.data));
  }
}

}  // namespace quantspec::cuda
