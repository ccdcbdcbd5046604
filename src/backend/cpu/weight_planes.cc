#include "backend/cpu/weight_planes.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec::cpu {

namespace {

constexpr std::uint64_t kByteOnes = 0x0101010101010101u;

// What the codes of a table stand for, plus kTableZero.
struct TableValues {
  std::uint8_t bytes[16];

  constexpr explicit TableValues(const std::int8_t (&values)[16]) : bytes{} {
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(values[i] + kTableZero);
  }
};
constexpr TableValues kIq4Bytes(kIq4Values), kFp4Bytes(kFp4Values);

const std::uint8_t* table_values(CodeTable table) {
  if (table == CodeTable::kNone) return nullptr;
  return table == CodeTable::kIq4 ? kIq4Bytes.bytes : kFp4Bytes.bytes;
}

bool has_kernel(const WeightFormat& w) {
  const bool bits = w.bits == 4 || w.bits == 5 || w.bits == 6 || w.bits == 8;
  const bool group = w.group == 16 || w.group == 32 || w.group == 64 || w.group == 128;
  // A line of the lower plane is of one group.
  const bool line = w.bits != 5 || w.group >= 32;
  const bool block = w.block == w.group || w.block == 256;
  return bits && group && line && block && (w.table == CodeTable::kNone || w.bits == 4);
}

PlaneFormat plane_format(const WeightFormat& w) {
  PlaneFormat format{.lower_bits = w.lower_bits(),
                     .values = table_values(w.table),
                     .group = w.group,
                     .span_groups = w.block / w.group,
                     .header_bytes = 0,
                     .two_levels = w.two_levels(),
                     .has_offset = w.has_offset};
  if (!format.two_levels && !format.has_offset && w.group <= 32) format.span_groups = 2;
  constexpr int kHalves = kTileOutputs * sizeof(std::uint16_t);
  const int kinds = format.has_offset ? 2 : 1;
  const int bytes = format.two_levels ? kinds * (kHalves + format.span_groups * kTileOutputs)
                                      : kHalves * (format.span_groups + kinds - 1);
  format.header_bytes = (bytes + kTileBytes - 1) / kTileBytes * kTileBytes;
  return format;
}

constexpr int rounded_up(int count, int step) { return (count + step - 1) / step * step; }

// --- parameters and codes of one output in its block ---------------------------------------------

void store_scales(const PlaneFormat& format, RowBuffer& row, int group, int lane,
                  std::byte* header) {
  auto* halves = reinterpret_cast<std::uint16_t*>(header);
  const int index = group % format.span_groups;
  if (!format.two_levels) {
    halves[kTileOutputs * index + lane] = row.scales[group].scale;
    if (format.has_offset) halves[kTileOutputs + lane] = row.scales[group].offset;
    return;
  }
  const GroupScale block = row.scales[group / format.span_groups];
  halves[lane] = block.scale;
  if (format.has_offset) halves[kTileOutputs + lane] = block.offset;
  const int kinds = format.has_offset ? 2 : 1;
  std::byte* subs = header + kinds * (2 + index) * kTileOutputs;
  std::memcpy(subs + lane, &row.sub_scales[group], 1);
  if (format.has_offset) std::memcpy(subs + kTileOutputs + lane, &row.sub_offsets[group], 1);
}

// Distributes the codes of tiles [first, last) to the output's lane. `upper` is at the first of
// them, `lower`, which may be null, at the block.
void store_codes(const PlaneLayout& layout, const std::uint8_t* codes, int first, int last,
                 int lane, std::byte* upper, std::byte* lower) {
  const int bits = layout.format.lower_bits, line_tiles = layout.line_tiles();
  const std::uint64_t below = kByteOnes * ((1u << bits) - 1);
  for (int t = first; t < last; ++t, upper += kTileBytes) {
    std::uint64_t eight;
    std::memcpy(&eight, codes + kTileTerms * t, sizeof(eight));
    const std::uint64_t high = (eight >> bits) & (kByteOnes * 15);
    const auto u = static_cast<std::uint32_t>(high | high >> 28);
    std::memcpy(upper + 4 * lane, &u, sizeof(u));
    if (lower == nullptr) continue;
    std::byte* line = lower + t / line_tiles * kTileBytes + 4 * lane;
    std::uint32_t word;
    std::memcpy(&word, line, sizeof(word));
    const std::uint64_t low = eight & below;
    const auto pair = static_cast<std::uint32_t>(low | low >> (32 - bits));
    word |= pair << (2 * bits * (t % line_tiles));
    std::memcpy(line, &word, sizeof(word));
  }
}

void store_row(const PlaneLayout& layout, RowBuffer& row, int lane, std::byte* upper,
               std::byte* lower) {
  const PlaneFormat& format = layout.format;
  const int group_tiles = format.group / kTileTerms;
  std::byte* header = upper;
  for (int first = 0, group = 0; first < layout.tiles; first += group_tiles, ++group) {
    if (group % format.span_groups == 0) {
      header = upper;
      upper += format.header_bytes;
    }
    const int last = std::min(first + group_tiles, layout.tiles);
    store_scales(format, row, group, lane, header);
    store_codes(layout, row.codes.data(), first, last, lane, upper, lower);
    upper += kTileBytes * (last - first);
  }
}

// Fills every block of 16 outputs from read(row, buffer, thread), which may write beyond a row's
// codes up to the end of a group: by the memory nodes that will read the planes, as long as nobody
// has touched the memory. A node's share is large, so huge pages do not spoil it.
template <typename F>
void fill_planes(ThreadPool& pool, const WeightFormat& weights, int rows, int cols,
                 std::byte* upper, std::byte* lower, const F& read) {
  const PlaneLayout layout(weights, cols);
  if (layout.lower_bytes == 0) lower = nullptr;
  const int blocks = (rows + kTileOutputs - 1) / kTileOutputs;
  advise_huge_pages(upper, blocks * layout.upper_bytes);
  if (lower != nullptr) advise_huge_pages(lower, blocks * layout.lower_bytes);
  // Whole tiles and groups, so that what follows a row's last input is code 0.
  std::vector<RowBuffer> buffers(pool.num_threads(), {weights, rounded_up(cols, kWeightGroup)});
  pool.parallel_for(blocks, [&](std::int64_t block, int thread) {
    std::byte* to = upper + block * layout.upper_bytes;
    std::byte* below = lower == nullptr ? nullptr : lower + block * layout.lower_bytes;
    std::memset(to, 0, layout.upper_bytes);
    if (below != nullptr) std::memset(below, 0, layout.lower_bytes);
    const int first = kTileOutputs * static_cast<int>(block);
    for (int lane = 0; lane < std::min(kTileOutputs, rows - first); ++lane) {
      read(first + lane, buffers[thread], thread);
      store_row(layout, buffers[thread], lane, to, below);
    }
  });
}

}  // namespace

PlaneLayout::PlaneLayout(const WeightFormat& weights, int cols) : format{} {
  check(!weights.dense(), "elements have no planes");
  if (!has_kernel(weights)) {
    fail(ErrorKind::kUnsupportedModel,
         "weights of {} bits in groups of {} and blocks of {}: the CPU reads 4, 5, 6 and 8 bits in "
         "groups of 16 to 128 (5 bits: from 32 on), alone or in blocks of 256",
         weights.bits, weights.group, weights.block);
  }
  format = plane_format(weights);
  tiles = rounded_up((cols + kTileTerms - 1) / kTileTerms, line_tiles());
  const int span = format.group * format.span_groups;
  upper_bytes = static_cast<std::size_t>(tiles) * kTileBytes +
                static_cast<std::size_t>((cols + span - 1) / span) * format.header_bytes;
  lower_bytes =
      format.lower_bits == 0 ? 0 : static_cast<std::size_t>(tiles) / line_tiles() * kTileBytes;
}

PlaneBytes weight_plane_bytes(int rows, int cols, const WeightFormat& format) {
  const PlaneLayout layout(format, cols);
  const std::size_t blocks = (static_cast<std::size_t>(rows) + kTileOutputs - 1) / kTileOutputs;
  return {blocks * layout.upper_bytes, blocks * layout.lower_bytes};
}

void make_weight_planes(const Context& context, const Matrix& elements, const WeightFormat& format,
                        std::byte* upper, std::byte* lower) {
  const LinearKernels& kernels = context.kernels.linear;
  const DType dtype = elements.format.dtype;
  const std::size_t row_bytes = elements.cols * size_of(dtype);
  std::vector<std::vector<float>> rows(context.pool.num_threads());
  const auto encode = [&](int row, RowBuffer& to, int thread) {
    std::vector<float>& x = rows[thread];
    x.resize(static_cast<std::size_t>(elements.cols));
    const auto* data = static_cast<const std::byte*>(elements.data) + row * row_bytes;
    kernels.to_f32[static_cast<int>(dtype)](data, elements.cols, x.data());
    encode_row(format, elements.cols, x.data(), to.view(), kernels.encode);
  };
  fill_planes(context.pool, format, elements.rows, elements.cols, upper, lower, encode);
}

void import_weight_planes(const Context& context, const CodedMatrix& coded, std::byte* upper,
                          std::byte* lower) {
  fill_planes(context.pool, coded.format, coded.rows, coded.cols, upper, lower,
              [&](int row, RowBuffer& to, int) { coded.read(row, to.view()); });
}

namespace {

float unit_of(const WeightFormat& format) { return std::ldexp(1.0f, format.exponent); }
int zero_of(const WeightFormat& format) {
  return format.table == CodeTable::kNone ? format.zero : kTableZero;
}

}  // namespace

void read_weight_rows(const LinearKernels& kernels, const Matrix& matrix, int first, int count,
                      float* out) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  if (matrix.format.dense()) {
    const DType dtype = matrix.format.dtype;
    const std::size_t from = static_cast<std::size_t>(first) * matrix.cols * size_of(dtype);
    return kernels.to_f32[static_cast<int>(dtype)](data + from, count * matrix.cols, out);
  }
  const PlaneLayout layout(matrix.format, matrix.cols);
  const auto* lower = static_cast<const std::byte*>(matrix.lower);
  for (int row = first; row < first + count;) {
    const std::size_t block = static_cast<std::size_t>(row) / kTileOutputs;
    const int lane = row % kTileOutputs;
    const int outputs = std::min(kTileOutputs - lane, first + count - row);
    kernels.unpack_planes({.format = layout.format,
                           .upper = data + block * layout.upper_bytes,
                           .lower = lower == nullptr ? nullptr : lower + block * layout.lower_bytes,
                           .unit = unit_of(matrix.format),
                           .zero = zero_of(matrix.format),
                           .inputs = matrix.cols,
                           .first = lane,
                           .outputs = outputs,
                           .out = out + static_cast<std::size_t>(row - first) * matrix.cols,
                           .stride = matrix.cols});
    row += outputs;
  }
}

void read_weight_panel(const Bf16Kernels& kernels, const Matrix& matrix, int first,
                       std::uint16_t* out) {
  const PlaneLayout layout(matrix.format, matrix.cols);
  const std::size_t block = static_cast<std::size_t>(first) / kTileOutputs;
  const auto* lower = static_cast<const std::byte*>(matrix.lower);
  kernels.unpack_panel(
      {.format = layout.format,
       .upper = static_cast<const std::byte*>(matrix.data) + block * layout.upper_bytes,
       .lower = lower == nullptr ? nullptr : lower + block * layout.lower_bytes,
       .unit = unit_of(matrix.format),
       .zero = zero_of(matrix.format),
       .inputs = matrix.cols},
      out);
}

}  // namespace quantspec::cpu
