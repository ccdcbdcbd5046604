#include "gguf/blocks.h"

#include <algorithm>
#include <climits>

#include "base/error.h"
#include "gguf/unpack.h"

namespace quantspec {

namespace {

struct Layout;
using ReadRow = void (*)(const Layout&, const WeightFormat&, const std::uint8_t* in, int blocks,
                         const RowCodes& out);

// How the blocks of a type are read.
struct Layout {
  GgmlType type;
  WeightFormat format;
  int scale_at;  // the fp16 scale of a block; its offset follows
  ReadRow read;
};

template <void (*kUnpack)(unpack::Bytes, unpack::Block), int kWeights, int kBytes>
void read_blocks(const Layout& layout, const WeightFormat& format, const std::uint8_t* in,
                 int blocks, const RowCodes& out) {
  const int groups = format.two_levels() ? kWeights / format.group : 0;
  for (int i = 0; i < blocks; ++i, in += kBytes) {
    const std::uint8_t* scale = in + layout.scale_at;
    out.scales[i] = {unpack::load_u16(scale), {}};
    if (format.has_offset) out.scales[i].offset = unpack::load_u16(scale + 2);
    kUnpack(in, {out.codes + i * kWeights, out.sub_scales + i * groups,
                 out.sub_offsets + (format.has_offset ? i * groups : 0)});
  }
}

// --- MXFP4: a scale is a byte e, for 2^(e - 128) -------------------------------------------------

constexpr int kE8m0Bias = 128;
constexpr int kLeastF16 = -24, kMostF16 = 15;  // powers of two that are fp16 numbers
constexpr int kMostSpan = kMostF16 - kLeastF16;

std::uint16_t power_of_two_f16(int power) {
  if (power >= -14) return static_cast<std::uint16_t>((power + 15) << 10);
  return static_cast<std::uint16_t>(1 << (power - kLeastF16));
}

void read_mxfp4(const Layout&, const WeightFormat& format, const std::uint8_t* in, int blocks,
                const RowCodes& out) {
  for (int i = 0; i < blocks; ++i, in += 17) {
    // A block beyond the range has only zeros (scan_mxfp4), for which any scale will do.
    const int power = std::clamp(in[0] - kE8m0Bias - format.exponent, kLeastF16, kMostF16);
    out.scales[i] = {power_of_two_f16(power), 0};
    unpack::mxfp4(in, {out.codes + i * 32, nullptr, nullptr});
  }
}

bool has_only_zeros(const std::uint8_t* codes) {
  std::uint64_t first, second;
  std::memcpy(&first, codes, 8);
  std::memcpy(&second, codes + 8, 8);
  return ((first | second) & 0x7777777777777777u) == 0;  // 8 is zero, too
}

// The exponent at which the largest scale is 1, or larger where the least one would be none.
// Quantizers give blocks of zeros the scale 2^-128, which must not count.
int mxfp4_exponent(std::span<const std::uint8_t> blocks, std::string_view where) {
  int least = INT_MAX, most = INT_MIN;
  for (std::size_t i = 0; i < blocks.size(); i += 17) {
    const int e = blocks[i];
    if (e == 255) {
      fail(ErrorKind::kCorruptFile, "{}: block {} of MXFP4 has the scale NaN; convert it again",
           where, i / 17);
    }
    if (has_only_zeros(&blocks[i + 1])) continue;
    least = std::min(least, e);
    most = std::max(most, e);
  }
  if (most < least) return 0;
  if (most - least > kMostSpan) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: scales of MXFP4 are 2^{} apart; supported are matrices whose scales are at most "
         "2^{} apart",
         where, most - least, kMostSpan);
  }
  return most - kE8m0Bias - std::max(0, most - least + kLeastF16);
}

// --- all types -----------------------------------------------------------------------------------

constexpr WeightFormat one_level(int bits, int zero) {
  return {.bits = bits, .group = 32, .block = 32, .zero = zero};
}
constexpr WeightFormat one_level_with_offset(int bits) {
  return {.bits = bits, .group = 32, .block = 32, .has_offset = true};
}
constexpr WeightFormat two_levels(int bits, int group, int zero) {
  return {.bits = bits, .group = group, .block = 256, .zero = zero};
}
constexpr WeightFormat two_levels_with_offset(int bits, int group) {
  return {.bits = bits, .group = group, .block = 256, .has_offset = true};
}
constexpr WeightFormat by_table(CodeTable table, int block) {
  return {.bits = 4, .group = 32, .block = block, .table = table};
}

constexpr Layout kLayouts[] = {
    {GgmlType::kQ8_0, one_level(8, 128), 0, read_blocks<unpack::q8_0, 32, 34>},
    {GgmlType::kQ4_0, one_level(4, 8), 0, read_blocks<unpack::q4_0, 32, 18>},
    {GgmlType::kQ5_0, one_level(5, 16), 0, read_blocks<unpack::q5_0, 32, 22>},
    {GgmlType::kQ4_1, one_level_with_offset(4), 0, read_blocks<unpack::q4_1, 32, 20>},
    {GgmlType::kQ5_1, one_level_with_offset(5), 0, read_blocks<unpack::q5_1, 32, 24>},
    {GgmlType::kQ2_K, two_levels_with_offset(4, 16), 80, read_blocks<unpack::q2_k, 256, 84>},
    {GgmlType::kQ3_K, two_levels(4, 16, 4), 108, read_blocks<unpack::q3_k, 256, 110>},
    {GgmlType::kQ4_K, two_levels_with_offset(4, 32), 0, read_blocks<unpack::q4_k, 256, 144>},
    {GgmlType::kQ5_K, two_levels_with_offset(5, 32), 0, read_blocks<unpack::q5_k, 256, 176>},
    {GgmlType::kQ6_K, two_levels(6, 16, 32), 208, read_blocks<unpack::q6_k, 256, 210>},
    {GgmlType::kIQ4_NL, by_table(CodeTable::kIq4, 32), 0, read_blocks<unpack::iq4_nl, 32, 18>},
    {GgmlType::kIQ4_XS, by_table(CodeTable::kIq4, 256), 0, read_blocks<unpack::iq4_xs, 256, 136>},
    {GgmlType::kMXFP4, by_table(CodeTable::kFp4, 32), 0, read_mxfp4},
};

const Layout* layout_of(GgmlType type) {
  for (const Layout& layout : kLayouts) {
    if (layout.type == type) return &layout;
  }
  return nullptr;
}

bool is_finite_f16(const std::uint8_t* bits) { return (unpack::load_u16(bits) & 0x7c00) != 0x7c00; }

void require_finite_scales(const Layout& layout, std::span<const std::uint8_t> blocks,
                           std::string_view where) {
  const auto size = static_cast<std::size_t>(block_size(layout.type)->bytes);
  for (std::size_t i = 0; i < blocks.size(); i += size) {
    const std::uint8_t* scale = &blocks[i + layout.scale_at];
    if (is_finite_f16(scale) && (!layout.format.has_offset || is_finite_f16(scale + 2))) continue;
    fail(ErrorKind::kCorruptFile,
         "{}: block {} of {} has a scale that is NaN or infinite; convert it again", where,
         i / size, name_of(layout.type));
  }
}

}  // namespace

WeightFormat format_of(GgmlType type, std::string_view where) {
  if (type == GgmlType::kF32) return dense_format(DType::kF32);
  if (type == GgmlType::kF16) return dense_format(DType::kF16);
  if (type == GgmlType::kBF16) return dense_format(DType::kBF16);
  if (const Layout* layout = layout_of(type)) return layout->format;
  fail(ErrorKind::kUnsupportedModel, "{}: {} is not supported; supported: {}", where, name_of(type),
       supported_types());
}

WeightFormat checked_format(GgmlType type, std::span<const std::byte> blocks,
                            std::string_view where) {
  WeightFormat format = format_of(type, where);
  if (format.dense()) return format;
  check(blocks.size() % block_size(type)->bytes == 0, "whole blocks");
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(blocks.data()), blocks.size());
  if (type == GgmlType::kMXFP4) {
    format.exponent = mxfp4_exponent(bytes, where);
  } else {
    require_finite_scales(*layout_of(type), bytes, where);
  }
  return format;
}

std::size_t row_bytes(GgmlType type, int cols) {
  const auto size = block_size(type);
  check(size && cols % size->weights == 0, "a row of whole blocks of a known type");
  return static_cast<std::size_t>(cols / size->weights) * static_cast<std::size_t>(size->bytes);
}

void read_row(GgmlType type, std::span<const std::byte> row, int cols, const WeightFormat& format,
              const RowCodes& out) {
  const Layout* layout = layout_of(type);
  check(layout != nullptr && row.size() == row_bytes(type, cols), "a row of blocks");
  layout->read(*layout, format, reinterpret_cast<const std::uint8_t*>(row.data()),
               cols / format.block, out);
}

}  // namespace quantspec
