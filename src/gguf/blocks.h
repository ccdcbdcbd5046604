// The blocks in which GGUF files keep weights, as the codes and parameters of
// quant/weight_format.h. Nothing is rounded: decode_row() of what is read gives the weights that
// ggml's own decoder gives, to the bit. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "gguf/types.h"
#include "quant/weight_format.h"

namespace quantspec {

// How weights of a type are kept here. F32, F16 and BF16 are dense: their rows are plain elements.
// Throws kUnsupportedModel for other types than those of GgmlType; `where` (file and tensor) is for
// messages.
WeightFormat format_of(GgmlType type, std::string_view where);

// The format of the blocks of a matrix, or of some of its rows, after a look at every scale. Throws
// kCorruptFile for a scale that is NaN or infinite. MXFP4 gets the exponent at which all of its
// scales are fp16 numbers; one whose scales are 2^40 or more apart is kUnsupportedModel.
WeightFormat checked_format(GgmlType type, std::span<const std::byte> blocks,
                            std::string_view where);

// Of a row of so many weights. REQUIRES: a known type, and whole blocks.
std::size_t row_bytes(GgmlType type, int cols);

// Codes and parameters of one row. Codes have the order of inputs, whatever that of the block is.
// Any bytes are read: what checked_format() refuses gives weights that mean nothing.
// REQUIRES: row.size() == row_bytes(type, cols); format is of that type, and not dense.
void read_row(GgmlType type, std::span<const std::byte> row, int cols, const WeightFormat& format,
              const RowCodes& out);

}  // namespace quantspec
