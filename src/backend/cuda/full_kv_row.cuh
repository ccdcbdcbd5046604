// Where the K and V that an op makes go.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"

namespace quantspec::cuda {

// Where K and V of an activation row go.
struct FullKvRow {
  FullKv full;
  int position;  // negative: nowhere

  // NOTE: of a sequence alone the two loads do not wait for each other.
  __device__ static FullKvRow of(const SequenceTables& sequences, int row) {
    if (sequences.count == 0) return {{}, -1};
    const int2 place = __ldcg(reinterpret_cast<const int2*>(sequences.rows + row));
    const int sequence = sequences.count == 1 ? 0 : max(place.x, 0);
    return {sequences.of(sequence)->full, place.x < 0 ? -1 : place.y};
  }
  // Of keys or values, of a kv head.
  __device__ __half* at(const KvShape& shape, int kv_head, int which) const {
    return reinterpret_cast<__half*>(full.data) +
           full_kv_index(shape, full.capacity, kv_head, which, position % full.capacity);
  }
};

}  // namespace quantspec::cuda
