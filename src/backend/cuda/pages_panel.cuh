// What a block does of a page: a panel of a unit's keys or values, by way of shared memory. Keys
// and values are one task. Groups (quant.h) are the columns of a strip of 16 columns, one warp's:
//
//   keys     a panel is all tokens x up to 64 channels     columns: channels   rows: tokens
//   values   a panel is up to 64 tokens x 128 channels     columns: tokens     rows: channels
//
// Tiles of 16 x 16 are those of layout.h. In registers, lane 4 g + t holds of rows g (registers 0
// and 2) and g + 8 (1 and 3) the columns 2 t, 2 t + 1 (0 and 1) and 2 t + 8, 2 t + 9 (2 and 3).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/layout.h"
#include "backend/cuda/ptx.cuh"
#include "backend/params/kv.h"

namespace quantspec::cuda {

inline constexpr int kPanelWarps = 4;
inline constexpr int kPanelThreads = 32 * kPanelWarps;
inline constexpr int kKeyChannels = 16 * kPanelWarps;  // of a panel, at most
inline constexpr int kMaxPageSize = 256;               // a panel lies in 48 KB

inline constexpr int kPanelLayers = 64;  // of a launch, at most

// Pages and their full precision, of `layers` layers from first_layer on, of kv_heads KV heads from
// first_kv_head on. Page i holds positions first_position + i * page_size and on. Of ranks that
// share contexts: the units of shape.context_rank.
struct PanelTask {
  KvShape shape;
  int splits;  // target_splits()
  int first_layer;
  int layers;
  int first_kv_head;
  int kv_heads;
  const PagePlanes* pages;
  int first_position;
  FullKv full[kPanelLayers];
};

// What a block works on. Grid: [num_panels, layers * kv_heads, pages].
struct PanelPlace {
  int layer;  // of the task's
  int kv_head;
  int page;
  __device__ explicit PanelPlace(const PanelTask& task)
      : layer(blockIdx.y / task.kv_heads), kv_head(blockIdx.y % task.kv_heads), page(blockIdx.z) {}
  __device__ bool has_unit(const PanelTask& task) const {
    return has_unit_of_page(task.shape, task.splits,
                            task.first_position / task.shape.page_size + page,
                            task.first_layer + layer, task.first_kv_head + kv_head);
  }
};

// Tokens of which a lane's words lie side by side (layout.h).
constexpr int slab_tokens(const KvShape& shape) { return 16 * tile_slabs(shape.page_size); }
constexpr int slab_groups(const KvShape& shape) {
  return shape.page_size >= 64 ? shape.page_size / 64 : 1;
}
constexpr int key_panels(const KvShape& shape) {
  return (shape.head_dim + kKeyChannels - 1) / kKeyChannels;
}
constexpr int num_panels(const KvShape& shape) {
  return key_panels(shape) + slab_groups(shape) * shape.value_groups();
}
constexpr int least(int a, int b) { return a < b ? a : b; }

// In shared memory a panel is [num_tokens, num_channels] fp16, rows an odd number of 16-byte pieces
// apart, so that 8 of them lie in different banks.
constexpr int panel_stride(int num_channels) { return num_channels + 8; }
constexpr std::size_t panel_bytes(const KvShape& shape) {
  const int keys = shape.page_size * panel_stride(least(kKeyChannels, shape.head_dim));
  const int values = slab_tokens(shape) * panel_stride(least(kValueGroup, shape.head_dim));
  return sizeof(__half) * (keys > values ? keys : values);
}

template <bool kValues>
struct Panel {
  int first_slab_group;  // of the page
  int num_tokens;
  int first_channel;
  int num_channels;
  __half* staged;

  __device__ Panel(const KvShape& shape, int index, void* shared) {
    int group = 0;  // of columns: of panels
    if constexpr (kValues) {
      for (; index >= slab_groups(shape); index -= slab_groups(shape)) ++group;
    }
    first_slab_group = kValues ? index : 0;
    num_tokens = kValues ? slab_tokens(shape) : shape.page_size;
    first_channel = kValues ? group * kValueGroup : index * kKeyChannels;
    num_channels = least(kValues ? kValueGroup : kKeyChannels, shape.head_dim - first_channel);
    staged = static_cast<__half*>(shared);
  }
  __device__ __half* at(int token, int channel) const {
    return staged + token * panel_stride(num_channels) + channel;
  }
  // The tile of a strip that begins with row `row`.
  __device__ __half* tile(int strip, int row) const {
    return kValues ? at(16 * strip, row) : at(row, 16 * strip);
  }
  __device__ int num_rows() const { return kValues ? num_channels : num_tokens; }
  __device__ int num_strips() const { return (kValues ? num_tokens : num_channels) / 16; }
};

// --- full precision ------------------------------------------------------------------------------

// Calls f(staged, full) for every 16 bytes of the panel and where they lie in the FullKv.
template <bool kValues, typename F>
__device__ __forceinline__ void for_each_piece(const PanelTask& task, const Panel<kValues>& panel,
                                               const PanelPlace& place, const F& f) {
  constexpr int kPieces = (kValues ? kValueGroup : kKeyChannels) / 8;  // of a row
  constexpr int kRows = kPanelThreads / kPieces;                       // at a time
  const int channel = threadIdx.x % kPieces * 8;
  if (channel >= panel.num_channels) return;
  const KvShape& shape = task.shape;
  const FullKv& kv = task.full[place.layer];
  const unsigned capacity = kv.capacity;
  const unsigned position = task.first_position + place.page * shape.page_size +
                            panel.first_slab_group * slab_tokens(shape) + threadIdx.x / kPieces;
  unsigned slot = position % capacity;
  __half* full =
      reinterpret_cast<__half*>(kv.data) +
      full_kv_index(shape, kv.capacity, place.kv_head, kValues ? 1 : 0, static_cast<int>(slot)) +
      panel.first_channel + channel;
#pragma unroll 4
  for (int token = threadIdx.x / kPieces; token < panel.num_tokens; token += kRows) {
    f(panel.at(token, channel), full);
    slot += kRows;
    full += kRows * shape.head_dim;
    if (slot >= capacity) {
      slot -= capacity;
      full -= static_cast<std::size_t>(capacity) * shape.head_dim;
    }
  }
}

// --- pages ---------------------------------------------------------------------------------------

// Where a panel's codes and scales lie.
struct PanelUnit {
  std::uint32_t* upper;  // planes of the unit's keys or values
  std::uint32_t* lower;
  __half* scale;  // of the panel's column c at [c * stride]
  __half* offset;
  int stride;
};

template <bool kValues>
__device__ __forceinline__ PanelUnit panel_unit(const PanelTask& task, const Panel<kValues>& panel,
                                                const PanelPlace& place) {
  const KvShape& shape = task.shape;
  const PagePlanes planes = task.pages[place.page];
  const int layer = task.first_layer + place.layer, kv_head = task.first_kv_head + place.kv_head;
  std::byte* upper = planes.upper + own_upper_offset(shape, layer, kv_head);
  std::byte* lower = planes.lower + own_lower_offset(shape, layer, kv_head);
  __half* scales = reinterpret_cast<__half*>(upper + 2 * shape.plane_bytes());
  const std::size_t plane = kValues ? shape.plane_bytes() : 0;
  auto* upper_plane = reinterpret_cast<std::uint32_t*>(upper + plane);
  auto* lower_plane = reinterpret_cast<std::uint32_t*>(lower + plane);
  if constexpr (kValues) {
    const int groups = shape.value_groups();
    __half* scale = scales + 2 * shape.head_dim +
                    panel.first_slab_group * slab_tokens(shape) * groups +
                    panel.first_channel / kValueGroup;
    return {upper_plane, lower_plane, scale, scale + shape.page_size * groups, groups};
  } else {
    __half* scale = scales + panel.first_channel;
    return {upper_plane, lower_plane, scale, scale + shape.head_dim, 1};
  }
}

// Codes of a tile lie in the place of its elements: a lane's words of the upper (x) and lower (y)
// plane, 16 rows of 16 bytes.
template <bool kValues>
__device__ __forceinline__ uint2* tile_words(const Panel<kValues>& panel, __half* tile) {
  const int lane = threadIdx.x % 32;
  return reinterpret_cast<uint2*>(tile + lane / 2 * panel_stride(panel.num_channels)) + lane % 2;
}

// Calls f(words, count, word): count words of this lane lie at [word] of the planes; words(i) is
// where they are staged.
template <bool kValues, typename F>
__device__ __forceinline__ void for_each_words(const KvShape& shape, const Panel<kValues>& panel,
                                               const F& f) {
  const int slabs = tile_slabs(shape.page_size);
  const int groups = kValues ? 1 : slab_groups(shape);
  for (int group = 0; group < groups; ++group) {
    for (int tile = threadIdx.x / 32; tile < panel.num_channels / 16; tile += kPanelWarps) {
      const auto words = [&](int slab) {
        return tile_words(panel, panel.at(16 * (group * slabs + slab), 16 * tile));
      };
      const int place = (panel.first_slab_group + group) * (shape.head_dim / 16) +
                        panel.first_channel / 16 + tile;
      f(words, slabs, (place * 32 + threadIdx.x % 32) * slabs);
    }
  }
}

template <bool kValues>
__device__ __forceinline__ void store_words(const KvShape& shape, const Panel<kValues>& panel,
                                            const PanelUnit& unit) {
  for_each_words(shape, panel, [&](const auto& words, int count, int word) {
    if (count == 4) {
      const uint2 a = *words(0), b = *words(1), c = *words(2), d = *words(3);
      *reinterpret_cast<uint4*>(unit.upper + word) = {a.x, b.x, c.x, d.x};
      *reinterpret_cast<uint4*>(unit.lower + word) = {a.y, b.y, c.y, d.y};
    } else {
      for (int i = 0; i < count; ++i) {
        const uint2 at = *words(i);
        unit.upper[word + i] = at.x;
        unit.lower[word + i] = at.y;
      }
    }
  });
}

template <bool kValues>
__device__ __forceinline__ void load_words(const KvShape& shape, const Panel<kValues>& panel,
                                           const PanelUnit& unit) {
  for_each_words(shape, panel, [&](const auto& words, int count, int word) {
    if (count == 4) {
      const uint4 x = *reinterpret_cast<const uint4*>(unit.upper + word);
      const uint4 y = *reinterpret_cast<const uint4*>(unit.lower + word);
      *words(0) = make_uint2(x.x, y.x);
      *words(1) = make_uint2(x.y, y.y);
      *words(2) = make_uint2(x.z, y.z);
      *words(3) = make_uint2(x.w, y.w);
    } else {
      for (int i = 0; i < count; ++i) {
        *words(i) = {unit.upper[word + i], unit.lower[word + i]};
      }
    }
  });
}

}  // namespace quantspec::cuda
