// How weight matrices are kept: as elements of a dtype, or as codes in planes. A format is a value;
// decode_row() is the definition that every backend is tested against. Plain data; thread-safe.
//
// Codes. A code has 4, 5, 6 or 8 bits. Its upper four lie in one plane, the others in a second one,
// so that a draft reads the upper plane alone. The weight of a code c is
//
//     scale * value(c) + offset        value(c) = c - zero, or table[c]
//
// without the addition where the format has no offset. Read by its upper bits alone, a code stands
// for the centre of those that share them: c becomes c - c mod 2^r + (2^r - 1) / 2, with r = bits
// - 4.
//
// Parameters. Each block of inputs of a row has a GroupScale (fp16), with offset 0 where the format
// has none. In formats of one level a block is a group, and the two are scale and offset. In
// formats of two levels each group of a block has integers of its own beside them:
//
//     scale = block.scale * sub_scale      offset = -(block.offset * sub_offset)
//
// These are all integer formats of GGUF. Products up to sub-scales are exact in fp32, so a weight
// is what ggml's own decoder gives, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "quant/quant.h"

namespace quantspec {

// Values of 4-bit codes that do not step evenly: of IQ4_NL and IQ4_XS, and of MXFP4 (doubled).
enum class CodeTable : std::uint8_t { kNone, kIq4, kFp4 };
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t kFp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};

struct WeightFormat {
  int bits = 0;               // of a code; 0: no codes but elements of `dtype`
  DType dtype = DType::kF32;  // of elements
  int group = 0;              // inputs of one scale: 16, 32, 64 or 128
  int block = 0;  // inputs of one GroupScale: the group, or 256 in formats of two levels
  bool has_offset = false;
  int zero = 0;
  CodeTable table = CodeTable::kNone;
  // Where blocks have scales beyond fp16's range: they are kept over 2^exponent (MXFP4).
  int exponent = 0;

  constexpr bool dense() const { return bits == 0; }
  constexpr int lower_bits() const { return bits > 4 ? bits - 4 : 0; }
  constexpr bool two_levels() const { return block > group; }
  constexpr int blocks(int cols) const { return (cols + block - 1) / block; }
  constexpr int groups(int cols) const { return (cols + group - 1) / group; }
  bool operator==(const WeightFormat&) const = default;
};

inline constexpr int kFineGroup = 32;  // inputs of one scale of a weight row, in two levels

constexpr WeightFormat dense_format(DType dtype) { return {.dtype = dtype}; }
// In what elements are kept for drafts (encode_row.h): codes of 8 bits with a scale and an offset
// for each group of 64 or 128 inputs, or of kFineGroup, which have them in two levels.
constexpr WeightFormat sliced_format(int group = kWeightGroup) {
  return {
      .bits = 8, .group = group, .block = group == kFineGroup ? 256 : group, .has_offset = true};
}
constexpr bool is_sliced(const WeightFormat& format) {
  return !format.dense() && format == sliced_format(format.group);
}

// Bytes of one weight with its share of scales and offsets, padding not counted, by what a pass
// reads of it. Of a matrix, or the mean of several.
struct WeightBytes {
  double upper = 0;
  double both = 0;
  double target = 0;
  double kept_for_drafts = 0;  // beside what targets read

  double of(WeightRead read) const;
};
// Of a target's format. Drafts read planes of the same codes, or, of elements, of codes in groups
// of so many inputs.
WeightBytes weight_bytes(const WeightFormat& target, int draft_group = kWeightGroup);

// Codes and parameters of one row, in memory of the caller.
struct RowCodes {
  std::uint8_t* codes;        // [cols]
  GroupScale* scales;         // [format.blocks(cols)]
  std::int8_t* sub_scales;    // [format.groups(cols)], in formats of two levels
  std::uint8_t* sub_offsets;  // the same, where they have offsets
};

// A matrix whose rows can be had as codes. `read` is thread-safe: several threads may read at a
// time, rows in any order, each into memory of its own. It throws Error for a row that is corrupt.
struct CodedMatrix {
  WeightFormat format;
  int rows;
  int cols;
  std::function<void(int row, const RowCodes& out)> read;
  // The columns [first, first + count), of whole blocks, as a matrix that reads nothing else.
  // Thread-safe as well. Null where nobody asks for some: what a WeightSource gives whole has it.
  std::function<CodedMatrix(int first, int count)> columns = nullptr;
};

// Memory for RowCodes of one row.
struct RowBuffer {
  std::vector<std::uint8_t> codes;
  std::vector<GroupScale> scales;
  std::vector<std::int8_t> sub_scales;
  std::vector<std::uint8_t> sub_offsets;

  RowBuffer(const WeightFormat& format, int cols);
  RowCodes view() { return {codes.data(), scales.data(), sub_scales.data(), sub_offsets.data()}; }
};

// Scale and offset of one group of a row.
struct GroupValues {
  float scale;
  float offset;
};
GroupValues group_values(const WeightFormat& format, const RowCodes& row, int group);

// The weights of a row as a pass reads them: by all planes, or by the upper one.
void decode_row(const WeightFormat& format, int cols, const RowCodes& row, bool upper_only,
                float* out);

}  // namespace quantspec
