// The format in which weights and KV are kept readable at two precisions, and its scalar codec: the
// byte-for-byte definition that every backend is tested against (sections 2 and 4 of
// docs/design.md). Pure functions; thread-safe.
//
// Code. An element is one unsigned byte b of its group, bit-sliced into two planes, u = b >> 4
// (upper) and l = b & 15 (lower), kept in separate arrays so that a draft never touches the lower:
//
//     scale = (max - min) / (255 - 2 m)    offset = min - m * scale    m = kCodeMargin
//     b     = clamp(round((x - offset) / scale), 0, 255)
//     target value = offset + scale * b            draft value = offset + scale * (16 u + 7.5)
//
// scale and offset are fp16, and codes are computed with the rounded values. NOTE: the margin keeps
// a group's extremes near the centre of their 4-bit cell; without it the draft is pulled inward at
// exactly the keys that win the softmax (50% more KL, measured on pg-24m).
//
// Edge cases, the same in every backend. A group whose scale rounds to 0 has scale 0, codes 0 and
// offset = fp16(min). A group with a NaN or an infinity has scale = offset = NaN and codes 0, so
// that it stays visible. An offset beyond fp16 is clamped to +-65504.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quantspec {

inline constexpr int kCodeMargin = 5;
inline constexpr int kValueGroup = 128;   // channels of one (scale, offset) of a value row
inline constexpr int kWeightGroup = 128;  // inputs of one (scale, offset) of a weight row, usually

// How weights are read: as the target does, whatever it keeps them in, or as drafts do: by the
// upper plane (4 bits) or by both.
enum class WeightRead : std::uint8_t { kUpper, kBoth, kTarget };
// At what precision pages are read. kUpper: 4 bits. kBoth: 8 bits. kFull: what the cache keeps in
// full precision.
enum class KvRead : std::uint8_t { kUpper, kBoth, kFull };

// --- one group -----------------------------------------------------------------------------------

struct GroupScale {
  std::uint16_t scale;   // fp16 bits
  std::uint16_t offset;  // fp16 bits
  bool operator==(const GroupScale&) const = default;
};

// The scale and offset of a group with these extremes. `finite`: no NaN or infinity in the group.
GroupScale group_scale(float min, float max, bool finite);

// The code of one element. REQUIRES: the group's scale is neither 0 nor NaN (else the code is 0).
std::uint8_t encode(float x, float scale, float offset);

// Quantizes x[0], x[stride], ... (count of them) to codes[0], codes[code_stride], ...
GroupScale quantize_group(const float* x, std::ptrdiff_t stride, int count, std::uint8_t* codes,
                          std::ptrdiff_t code_stride);

constexpr float target_value(std::uint8_t code, float scale, float offset) {
  return offset + scale * static_cast<float>(code);
}
constexpr float draft_value(std::uint8_t code, float scale, float offset) {
  return offset + scale * (static_cast<float>(16 * (code >> 4)) + 7.5f);
}

// --- KV pages ------------------------------------------------------------------------------------

// The shape of a KV cache. A page is page_size tokens of all layers and kv heads; a unit is the
// part of a page that belongs to one layer and one kv head. Keys are stored after RoPE.
struct KvShape {
  int num_layers;
  int num_kv_heads;
  int head_dim;   // D; a multiple of 16
  int page_size;  // G: tokens of a page = of a key group; a multiple of 16
  // Ranks that share contexts, and which of them this is: they have some units of a page each
  // (backend/params/context.h).
  int context_ranks = 1;
  int context_rank = 0;

  constexpr int value_groups() const { return (head_dim + kValueGroup - 1) / kValueGroup; }
  // Bytes of one plane of the keys (or values) of a unit: two codes to a byte.
  constexpr std::size_t plane_bytes() const {
    return static_cast<std::size_t>(page_size) * head_dim / 2;
  }
  // Bytes of a unit: what a draft reads, and what a target reads in addition.
  constexpr std::size_t upper_unit_bytes() const {
    return 2 * plane_bytes() + 4 * static_cast<std::size_t>(head_dim) +
           4 * static_cast<std::size_t>(page_size) * value_groups();
  }
  constexpr std::size_t lower_unit_bytes() const { return 2 * plane_bytes(); }
  constexpr std::size_t unit_bytes() const { return upper_unit_bytes() + lower_unit_bytes(); }
  // Of a page, that there is room for.
  constexpr std::size_t units() const {
    return (static_cast<std::size_t>(num_layers) * num_kv_heads + context_ranks - 1) /
           context_ranks;
  }
  constexpr std::size_t page_bytes() const { return units() * unit_bytes(); }
  // Offset of a unit in a page's upper / lower buffer, [num_layers, num_kv_heads] units.
  // REQUIRES: contexts are not shared.
  constexpr std::size_t upper_offset(int layer, int kv_head) const {
    return (static_cast<std::size_t>(layer) * num_kv_heads + kv_head) * upper_unit_bytes();
  }
  constexpr std::size_t lower_offset(int layer, int kv_head) const {
    return (static_cast<std::size_t>(layer) * num_kv_heads + kv_head) * lower_unit_bytes();
  }
  // Bytes that one token takes in a full-precision cache of 2-byte elements, all layers.
  constexpr std::size_t fp16_token_bytes() const { return units() * head_dim * 2 * 2; }
  bool operator==(const KvShape&) const = default;
};

// The first position that a query at `position` reads in full precision; positions below it are
// read from pages (section 3). It depends on the position alone: that is what makes decoding exact.
constexpr int first_full_position(int position, int page_size) {
  const int page = position / page_size;
  return page_size * (page > 1 ? page - 1 : 0);
}

// The parts of a unit. Their order inside each array is canonical here, and a backend's own in a
// backend's pages; their sizes and places are the same:
//   keys, values   [page_size, head_dim] codes, two to a byte, low nibble = even channel
//   key_scale, key_offset      [head_dim] fp16: per channel, over the page's tokens
//   value_scale, value_offset  [page_size, value_groups] fp16: per token, over the channels
struct UnitPlanes {
  std::byte* keys;
  std::byte* values;
};
struct UnitScales {
  std::uint16_t* key_scale;
  std::uint16_t* key_offset;
  std::uint16_t* value_scale;
  std::uint16_t* value_offset;
};
// `unit` is the start of an upper unit (planes and scales) or of a lower unit (planes only).
UnitPlanes unit_planes(const KvShape& shape, std::byte* unit);
UnitScales unit_scales(const KvShape& shape, std::byte* upper_unit);

// Quantizes one unit in canonical order. keys, values: [page_size, head_dim].
void encode_unit(const KvShape& shape, const float* keys, const float* values, std::byte* upper,
                 std::byte* lower);
// The values that a pass reads from a canonical unit. `lower` may be null when read == kUpper.
void decode_unit(const KvShape& shape, const std::byte* upper, const std::byte* lower, KvRead read,
                 float* keys, float* values);

}  // namespace quantspec
