#include "backend/cpu/pages.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/packing.h"
#include "backend/params/context.h"
#include "base/dtype.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

constexpr int kMaxBlocks = kMaxPageSize / 16;
// Of one kv head, to one unit of work.
constexpr int kBoundPages = 8;
constexpr int kCopyTokens = 128;
constexpr int kBoundsAhead = 4;  // pages of prefetching

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Calls f(piece, kv head) for every kv head of every piece, of the same heads in the same memory
// node as decode attention.
template <typename F>
void for_heads(ThreadPool& pool, const KvShape& shape, int num_pieces, const F& f) {
  const IndexRange range{shape.num_kv_heads, num_pieces};
  pool.parallel_for({&range, 1}, [&](std::int64_t index, int) {
    f(static_cast<int>(index / range.count), static_cast<int>(index % range.count));
  });
}

PageShape page_shape(const KvShape& shape) {
  return {shape.head_dim, shape.page_size, shape.value_groups()};
}

std::uint16_t* elements(FullKv kv) { return reinterpret_cast<std::uint16_t*>(kv.data); }
std::uint8_t* bytes(std::byte* p) { return reinterpret_cast<std::uint8_t*>(p); }

// The 16-slot blocks that hold the positions of one page.
struct PageBlocks {
  std::uint16_t* keys[kMaxBlocks];
  std::uint16_t* values[kMaxBlocks];
};
PageBlocks page_blocks(const KvShape& shape, FullKv kv, int kv_head, int first_position) {
  PageBlocks blocks;
  for (int b = 0; b < shape.page_size / 16; ++b) {
    const int slot = (first_position + 16 * b) % kv.capacity;
    blocks.keys[b] = elements(kv) + full_key_block(shape, kv.capacity, kv_head, slot);
    blocks.values[b] = elements(kv) + full_value_row(shape, kv.capacity, kv_head, slot);
  }
  return blocks;
}

void check_full_kv(FullKv kv, int tokens) {
  check(kv.capacity % 16 == 0, "the capacity is a multiple of 16");
  check(tokens <= kv.capacity, "the positions fit in full precision");
}

void copy_slot(const KvShape& shape, FullKv source, int from, FullKv target, int to, int kv_head) {
  for (int c = 0; c < shape.head_dim; ++c) {
    elements(target)[full_key_index(shape, target.capacity, kv_head, to, c)] =
        elements(source)[full_key_index(shape, source.capacity, kv_head, from, c)];
  }
  std::memcpy(elements(target) + full_value_row(shape, target.capacity, kv_head, to),
              elements(source) + full_value_row(shape, source.capacity, kv_head, from),
              2 * static_cast<std::size_t>(shape.head_dim));
}

// Sixteen slots from multiples of 16 on.
void copy_block(const KvShape& shape, FullKv source, int from, FullKv target, int to, int kv_head) {
  const std::size_t block_bytes = 2 * 16 * static_cast<std::size_t>(shape.head_dim);
  std::memcpy(elements(target) + full_key_block(shape, target.capacity, kv_head, to),
              elements(source) + full_key_block(shape, source.capacity, kv_head, from),
              block_bytes);
  std::memcpy(elements(target) + full_value_row(shape, target.capacity, kv_head, to),
              elements(source) + full_value_row(shape, source.capacity, kv_head, from),
              block_bytes);
}

// --- canonical order -----------------------------------------------------------------------------

int nibble(const std::byte* plane, std::size_t index) {
  return std::to_integer<int>(plane[index / 2]) >> (4 * (index % 2)) & 15;
}
void add_nibble(std::byte* plane, std::size_t index, int value) {
  plane[index / 2] |= std::byte(value << (4 * (index % 2)));
}

// Calls f(canonical nibble, nibble in tiles) for every code of the keys / of the values.
template <typename F>
void for_each_key(const KvShape& shape, const F& f) {
  for (int t = 0; t < shape.page_size; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) {
      f(static_cast<std::size_t>(t) * shape.head_dim + c, tile_nibble(t, c, shape.head_dim));
    }
  }
}
template <typename F>
void for_each_value(const KvShape& shape, const F& f) {
  for (int t = 0; t < shape.page_size; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) {
      f(static_cast<std::size_t>(t) * shape.head_dim + c, tile_nibble(c, t, shape.page_size));
    }
  }
}

void planes_to_canonical(const KvShape& shape, UnitPlanes tiles, UnitPlanes canonical) {
  std::memset(canonical.keys, 0, shape.plane_bytes());
  std::memset(canonical.values, 0, shape.plane_bytes());
  for_each_key(shape, [&](std::size_t plain, std::size_t tile) {
    add_nibble(canonical.keys, plain, nibble(tiles.keys, tile));
  });
  for_each_value(shape, [&](std::size_t plain, std::size_t tile) {
    add_nibble(canonical.values, plain, nibble(tiles.values, tile));
  });
}

void planes_from_canonical(const KvShape& shape, UnitPlanes canonical, UnitPlanes tiles) {
  std::memset(tiles.keys, 0, shape.plane_bytes());
  std::memset(tiles.values, 0, shape.plane_bytes());
  for_each_key(shape, [&](std::size_t plain, std::size_t tile) {
    add_nibble(tiles.keys, tile, nibble(canonical.keys, plain));
  });
  for_each_value(shape, [&](std::size_t plain, std::size_t tile) {
    add_nibble(tiles.values, tile, nibble(canonical.values, plain));
  });
}

void copy_scales(const KvShape& shape, const std::byte* from, std::byte* to) {
  const std::size_t planes = 2 * shape.plane_bytes();
  std::memcpy(to + planes, from + planes, shape.upper_unit_bytes() - planes);
}

}  // namespace

void check_shape(const KvShape& shape) {
  const auto handled = [](int n, int most) { return n > 0 && n <= most && n % 16 == 0; };
  if (!handled(shape.head_dim, kMaxHeadDim)) {
    fail(ErrorKind::kInvalidRequest,
         "head_dim {}: the cpu backend handles multiples of 16 up to {}", shape.head_dim,
         kMaxHeadDim);
  }
  if (!handled(shape.page_size, kMaxPageSize)) {
    fail(ErrorKind::kInvalidRequest,
         "page size {}: the cpu backend handles multiples of 16 up to {}", shape.page_size,
         kMaxPageSize);
  }
}

std::size_t full_kv_bytes(const KvShape& shape, int capacity) {
  return 2 * full_kv_elements(shape, capacity) * sizeof(std::uint16_t);
}

void quantize_pages(const AttentionKernels& kernels, ThreadPool& pool, const KvShape& shape,
                    int first_layer, std::span<const FullKv> sources, int first_position,
                    std::span<const PagePlanes> pages) {
  check_shape(shape);
  const int num_pages = static_cast<int>(pages.size());
  for (const FullKv& source : sources) check_full_kv(source, num_pages * shape.page_size);
  check(first_position % 16 == 0, "pages start at a multiple of 16");
  for_heads(pool, shape, static_cast<int>(sources.size()) * num_pages, [&](int piece, int head) {
    const int index = piece / num_pages, page = piece % num_pages, layer = first_layer + index;
    if (!has_unit(shape, first_position / shape.page_size + page, layer, head)) return;
    const PageBlocks blocks =
        page_blocks(shape, sources[index], head, first_position + page * shape.page_size);
    kernels.quantize_unit({blocks.keys, blocks.values, page_shape(shape),
                           bytes(pages[page].upper + own_upper_offset(shape, layer, head)),
                           bytes(pages[page].lower + own_lower_offset(shape, layer, head))});
  });
}

void copy_full_kv(ThreadPool& pool, const KvShape& shape, FullKv source, FullKv target, int first,
                  int count) {
  check_full_kv(source, count);
  check_full_kv(target, count);
  // Pieces meet at multiples of kCopyTokens.
  const int before = first / kCopyTokens, pieces = ceil_div(first + count, kCopyTokens) - before;
  for_heads(pool, shape, count > 0 ? pieces : 0, [&](int piece, int head) {
    const int begin = (before + piece) * kCopyTokens;
    const int end = std::min(begin + kCopyTokens, first + count);
    for (int position = std::max(begin, first); position < end;) {
      const bool whole = position % 16 == 0 && position + 16 <= end;
      (whole ? copy_block : copy_slot)(shape, source, position % source.capacity, target,
                                       position % target.capacity, head);
      position += whole ? 16 : 1;
    }
  });
}

void gather_full_kv(ThreadPool& pool, const KvShape& shape, FullKv source, FullKv target,
                    std::span<const int> positions, int first_slot) {
  const int count = static_cast<int>(positions.size()) / shape.num_kv_heads;
  check(positions.size() == static_cast<std::size_t>(count) * shape.num_kv_heads,
        "kv heads gather as many positions");
  check(source.capacity % 16 == 0, "the capacity is a multiple of 16");
  check(first_slot >= 0, "slots count from 0");
  check_full_kv(target, first_slot + count);
  for_heads(pool, shape, ceil_div(count, kCopyTokens), [&](int piece, int head) {
    const int end = std::min((piece + 1) * kCopyTokens, count);
    for (int i = piece * kCopyTokens; i < end; ++i) {
      copy_slot(shape, source, positions[head * count + i] % source.capacity, target,
                first_slot + i, head);
    }
  });
}

void page_bounds(const AttentionKernels& kernels, ThreadPool& pool, const PageBoundsParams& p) {
  check_shape(p.shape);
  check(p.shape.context_ranks == 1, "of a shared context all pages are read");
  check(p.num_heads % p.shape.num_kv_heads == 0, "heads form groups");
  const int group = p.num_heads / p.shape.num_kv_heads;
  for (const SequenceRows& rows : p.sequences) {
    const KvView& kv = rows.kv;
    if (rows.num_rows == 0 || kv.page_lists.empty()) continue;
    check(rows.num_rows == 1, "bounds are of one row");
    const float* q = p.q + std::int64_t{rows.first_row} * p.num_heads * p.shape.head_dim;
    const int count = static_cast<int>(kv.pages.size());
    for_heads(pool, p.shape, ceil_div(count, kBoundPages), [&](int piece, int head) {
      const int begin = piece * kBoundPages;
      const int end = std::min(begin + kBoundPages, count);
      const auto unit = [&](int page) {
        return bytes(kv.pages[std::min(page, end - 1)].upper +
                     p.shape.upper_offset(kv.layer, head));
      };
      for (int page = begin; page < end; ++page) {
        kv.page_scores.data[std::int64_t{head} * kv.page_scores.max_pages + page] =
            kernels.page_bound({unit(page), unit(page + kBoundsAhead), page_shape(p.shape),
                                q + std::int64_t{head} * group * p.shape.head_dim, group});
      }
    });
  }
}

void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                  float* keys, float* values) {
  const std::uint16_t* kv = elements(source);
  for (int i = 0; i < count; ++i) {
    const int slot = (first + i) % source.capacity;
    const std::ptrdiff_t row = std::ptrdiff_t{i} * shape.head_dim;
    for (int c = 0; c < shape.head_dim; ++c) {
      keys[row + c] = f16_to_f32(kv[full_key_index(shape, source.capacity, kv_head, slot, c)]);
      if (values == nullptr) continue;
      values[row + c] = f16_to_f32(kv[full_value_row(shape, source.capacity, kv_head, slot) + c]);
    }
  }
}

void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                   const float* keys, const float* values) {
  std::uint16_t* kv = elements(target);
  for (int i = 0; i < count; ++i) {
    const int slot = (first + i) % target.capacity;
    const std::ptrdiff_t row = std::ptrdiff_t{i} * shape.head_dim;
    for (int c = 0; c < shape.head_dim; ++c) {
      kv[full_key_index(shape, target.capacity, kv_head, slot, c)] = f32_to_f16(keys[row + c]);
      kv[full_value_row(shape, target.capacity, kv_head, slot) + c] = f32_to_f16(values[row + c]);
    }
  }
}

void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page, std::byte* upper,
                 std::byte* lower) {
  std::byte* from_upper = page.upper + shape.upper_offset(layer, kv_head);
  std::byte* from_lower = page.lower + shape.lower_offset(layer, kv_head);
  planes_to_canonical(shape, unit_planes(shape, from_upper), unit_planes(shape, upper));
  planes_to_canonical(shape, unit_planes(shape, from_lower), unit_planes(shape, lower));
  copy_scales(shape, from_upper, upper);
}

void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                 const std::byte* lower, PagePlanes page) {
  std::byte* to_upper = page.upper + shape.upper_offset(layer, kv_head);
  std::byte* to_lower = page.lower + shape.lower_offset(layer, kv_head);
  // unit_planes() serves writers too; nothing is written through these.
  planes_from_canonical(shape, unit_planes(shape, const_cast<std::byte*>(upper)),
                        unit_planes(shape, to_upper));
  planes_from_canonical(shape, unit_planes(shape, const_cast<std::byte*>(lower)),
                        unit_planes(shape, to_lower));
  copy_scales(shape, upper, to_upper);
}

}  // namespace quantspec::cpu
