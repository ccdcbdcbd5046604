#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/ops.h"
#include "backend/cuda/pages_codec.cuh"
#include "backend/cuda/pages_select.cuh"
#include "backend/params/attention.h"
#include "base/error.h"
#include "base/fields.h"

namespace quantspec::cuda {

namespace {

// --- page_bounds ---------------------------------------------------------------------------------

constexpr int kBoundLanes = 16;  // of a unit; a lane reads 8 channels at a time
constexpr int kBoundThreads = 128;
constexpr int kBoundHeads = 4;  // of a group, summed side by side
constexpr int kBoundUnits = kBoundThreads / kBoundLanes;

struct Halves {  // 8 channels
  uint4 words;
  __device__ float2 pair(int i) const {
    return __half22float2(reinterpret_cast<const __half2*>(&words)[i]);
  }
};
__device__ __forceinline__ Halves load_halves(const __half* from) {
  return {*reinterpret_cast<const uint4*>(from)};
}

// sum + the greatest that q . k can be over 8 channels.
__device__ __forceinline__ float add_bound(float sum, const float* q, const Halves& scale,
                                           const Halves& offset) {
  const float4 q0 = *reinterpret_cast<const float4*>(q);
  const float4 q1 = *reinterpret_cast<const float4*>(q + 4);
  const float qs[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
  const auto add = [&](float x, float s, float o) {
    sum += fmaxf(x * (o + s * (255 - kCodeMargin)), x * (o + s * kCodeMargin));
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 s = scale.pair(i), o = offset.pair(i);
    add(qs[2 * i], s.x, o.x);
    add(qs[2 * i + 1], s.y, o.y);
  }
  return sum;
}

// Grid: [max_pages / kBoundUnits, num_kv_heads, sequences].
__global__ void __launch_bounds__(kBoundThreads)
    bound_pages(SequenceTables sequences, const float* q, KvShape shape, int group, int layer) {
  const SequenceKv& kv = *sequences.of(blockIdx.z);
  const SequenceState& state = sequences.states[blockIdx.z];
  if (state.num_rows == 0 || kv.page_lists == nullptr) return;
  const PagePlanes* pages = kv.pages;
  const int num_pages = state.num_pages, first_page = blockIdx.x * kBoundUnits;
  if (first_page >= num_pages) return;
  const int page = first_page + threadIdx.x / kBoundLanes;
  const int kv_head = blockIdx.y, lane = threadIdx.x % kBoundLanes, dim = shape.head_dim;
  // Groups of lanes without a page take the last one, for the shuffles.
  const std::byte* unit =
      pages[min(page, num_pages - 1)].upper + shape.upper_offset(layer, kv_head);
  const auto* scales = reinterpret_cast<const __half*>(unit + 2 * shape.plane_bytes());
  q += (static_cast<std::size_t>(state.first_row) * gridDim.y + kv_head) * group * dim;
  float bound = -INFINITY;
  for (int first = 0; first < group; first += kBoundHeads) {
    float sums[kBoundHeads] = {};
    for (int channel = 8 * lane; channel < dim; channel += 8 * kBoundLanes) {
      const Halves scale = load_halves(scales + channel);
      const Halves offset = load_halves(scales + dim + channel);
#pragma unroll
      for (int i = 0; i < kBoundHeads; ++i) {
        if (first + i >= group) break;
        sums[i] = add_bound(sums[i], q + (first + i) * dim + channel, scale, offset);
      }
    }
#pragma unroll
    for (int i = 0; i < kBoundHeads; ++i) {
      for (int lanes = kBoundLanes / 2; lanes > 0; lanes /= 2) {
        sums[i] += __shfl_xor_sync(0xffffffff, sums[i], lanes);
      }
      if (first + i < group && !(sums[i] < bound)) bound = sums[i];  // NaN is kept
    }
  }
  if (lane == 0 && page < num_pages) {
    kv.page_scores[static_cast<std::size_t>(kv_head) * kv.max_pages + page] = bound;
  }
}

// --- launches ------------------------------------------------------------------------------------

void require_shape(const KvShape& shape) {
  const int size = shape.page_size;
  if (shape.head_dim % 16 != 0 || size % 16 != 0 || size > kMaxPageSize ||
      (size > 64 && size % 64 != 0)) {
    fail(ErrorKind::kInvalidRequest,
         "the cuda backend has pages of 16, 32, 48, 64, 128, 192 or {} tokens and heads of a "
         "multiple of 16 channels, not {} and {}",
         kMaxPageSize, size, shape.head_dim);
  }
}

// The most pages that a sequence which lists some may come to have; 0: none does.
int room_of_lists(std::span<const SequenceRows> sequences) {
  int most = 0;
  for (const SequenceRows& rows : sequences) {
    if (!rows.kv.page_lists.empty()) most = std::max(most, rows.kv.page_scores.max_pages);
  }
  return most;
}

// Calls launch(task, grid) for the full precision of layers from first_layer on and for pages, in
// numbers that a task and a grid can have.
template <typename Launch>
void for_panels(const Device& device, const KvShape& shape, const KvHeads& heads, int first_layer,
                std::span<const FullKv> layers, int first_position,
                std::span<const PagePlanes> pages, const Launch& launch) {
  require_shape(shape);
  constexpr std::size_t kMaxGrid = 65535;
  for (std::size_t layer = 0; layer < layers.size(); layer += kPanelLayers) {
    PanelTask task{.shape = shape,
                   .splits = target_splits(device, shape),
                   .first_layer = first_layer + static_cast<int>(layer),
                   .first_kv_head = heads.first,
                   .kv_heads = heads.count};
    for (const FullKv& full : layers.subspan(layer)) {
      check(full.capacity >= shape.page_size, "a page's positions lie in different slots");
      task.full[task.layers++] = full;
      if (task.layers == kPanelLayers) break;
    }
    for (std::size_t page = 0; page < pages.size(); page += kMaxGrid) {
      task.pages = pages.data() + page;
      task.first_position = first_position + static_cast<int>(page) * shape.page_size;
      const auto count = static_cast<unsigned>(std::min(kMaxGrid, pages.size() - page));
      launch(task, dim3(num_panels(shape), task.layers * heads.count, count));
    }
  }
}

}  // namespace

void quantize_pages(Device& device, const KvShape& shape, int first_layer,
                    std::span<const FullKv> sources, int first_position,
                    std::span<const PagePlanes> pages) {
  const auto launch = [&](const PanelTask& task, dim3 grid) {
    quantize_panels<<<grid, kPanelThreads, panel_bytes(shape), device.stream()>>>(task);
    require_launch("quantize_pages");
  };
  for_panels(device, shape, {0, shape.num_kv_heads}, first_layer, sources, first_position, pages,
             launch);
}

void load_pages(Device& device, const KvShape& shape, const KvHeads& heads, int layer,
                std::span<const PagePlanes> pages, FullKv target) {
  const auto launch = [&](const PanelTask& task, dim3 grid) {
    load_panels<<<grid, kPanelThreads, panel_bytes(shape), device.stream()>>>(task);
    require_launch("load_pages");
  };
  for_panels(device, shape, heads, layer, {&target, 1}, 0, pages, launch);
}

void page_bounds(Device& device, const PageBoundsParams& params) {
  require_shape(params.shape);
  const int max_pages = room_of_lists(params.sequences);
  if (max_pages == 0) return;
  const dim3 grid((max_pages + kBoundUnits - 1) / kBoundUnits, params.shape.num_kv_heads,
                  params.sequences.size());
  bound_pages<<<grid, kBoundThreads, 0, device.stream()>>>(
      device.tables(params.sequences, 0, params.shape.num_kv_heads), params.q, params.shape,
      params.num_heads / params.shape.num_kv_heads, params.sequences.front().kv.layer);
  require_launch("page_bounds");
}

void select_pages(Device& device, const SelectPagesParams& params) {
  const int max_pages = room_of_lists(params.sequences);
  if (max_pages == 0) return;
  const dim3 grid(params.shape.num_kv_heads, params.sequences.size());
  const auto launch = [&](auto kernel, int threads) {
    kernel<<<grid, threads, 0, device.stream()>>>(
        device.tables(params.sequences, 0, params.shape.num_kv_heads));
    require_launch("select_pages");
  };
  if (max_pages <= kSelectThreads) {
    launch(select_pages_of_head<1>, std::max(round_up(max_pages, 32), 256));
  } else if (max_pages <= 4 * kSelectThreads) {
    launch(select_pages_of_head<4>, kSelectThreads);
  } else if (max_pages <= 16 * kSelectThreads) {
    launch(select_pages_of_head<16>, kSelectThreads);
  } else {
    fail(ErrorKind::kInvalidRequest,
         "the cuda backend selects among {} pages at most, and the context has room for {}: a "
         "smaller {} works, or a plan that reads all pages",
         16 * kSelectThreads, max_pages, field::kContext);
  }
}

}  // namespace quantspec::cuda
