// Element types of the tensors of GGUF files: ids, names and sizes, also of those that are not
// decoded here, since a reader must know how long every tensor is. Pure functions.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml-common.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace quantspec {

// The types that are decoded (gguf/blocks.h). Files may have other ids, as values of this type.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

// A row is a whole number of blocks, which follow one another without padding.
struct BlockSize {
  int weights;
  int bytes;
};

// Nothing for a type that nobody here has heard of.
std::optional<BlockSize> block_size(GgmlType type);
// "Q4_K"; "type 99" for one of unknown name.
std::string name_of(GgmlType type);
// For messages: "F32, F16, BF16, ...".
std::string supported_types();
bool is_supported(GgmlType type);

}  // namespace quantspec
