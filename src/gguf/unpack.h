// Codes and integers of one block of each type, in the order of inputs. `in` is a block; the
// layouts are those of ggml-common.h, the orders those of dequantize_row_* in ggml-quants.c. Loops
// have a fixed count and pointers that do not alias, so that the compiler makes them vector code.
#pragma once

#include <cstdint>
#include <cstring>

namespace quantspec::unpack {

using Bytes = const std::uint8_t* __restrict;
// Where what is unpacked goes: of one block.
struct Block {
  std::uint8_t* __restrict codes;
  std::int8_t* __restrict sub_scales;
  std::uint8_t* __restrict sub_offsets;
};

inline std::uint16_t load_u16(Bytes in) { return static_cast<std::uint16_t>(in[0] | in[1] << 8); }

// The lower nibbles of kCount bytes, then the upper ones.
template <int kCount>
inline void nibbles(Bytes in, std::uint8_t* __restrict out) {
  for (int i = 0; i < kCount; ++i) {
    out[i] = in[i] & 15;
    out[kCount + i] = in[i] >> 4;
  }
}

// Bit i of a byte becomes byte i: 16 where it was set.
inline std::uint64_t spread_as_fifth_bits(std::uint8_t bits) {
  const std::uint64_t each = bits * 0x0101010101010101u & 0x8040201008040201u;
  return (each + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
}

// --- blocks of 32 --------------------------------------------------------------------------------

inline void q8_0(Bytes in, Block out) {
  for (int i = 0; i < 32; ++i) out.codes[i] = in[2 + i] ^ 0x80;  // signed: 128 more
}

inline void q4_0(Bytes in, Block out) { nibbles<16>(in + 2, out.codes); }
inline void q4_1(Bytes in, Block out) { nibbles<16>(in + 4, out.codes); }
inline void iq4_nl(Bytes in, Block out) { nibbles<16>(in + 2, out.codes); }
inline void mxfp4(Bytes in, Block out) { nibbles<16>(in + 1, out.codes); }

// Four bytes of fifth bits, then nibbles.
inline void five_bits(Bytes in, std::uint8_t* __restrict out) {
  nibbles<16>(in + 4, out);
  for (int i = 0; i < 4; ++i) {
    std::uint64_t codes;
    std::memcpy(&codes, out + 8 * i, 8);
    codes |= spread_as_fifth_bits(in[i]);
    std::memcpy(out + 8 * i, &codes, 8);
  }
}
inline void q5_0(Bytes in, Block out) { five_bits(in + 2, out.codes); }
inline void q5_1(Bytes in, Block out) { five_bits(in + 4, out.codes); }

// --- blocks of 256 -------------------------------------------------------------------------------

// Sub-scales and sub-offsets of 6 bits, eight of each in 12 bytes (Q4_K, Q5_K).
inline void six_bit_pairs(Bytes in, Block out) {
  for (int i = 0; i < 4; ++i) {
    out.sub_scales[i] = static_cast<std::int8_t>(in[i] & 63);
    out.sub_offsets[i] = in[4 + i] & 63;
    out.sub_scales[4 + i] = static_cast<std::int8_t>((in[8 + i] & 15) | (in[i] >> 6) << 4);
    out.sub_offsets[4 + i] = static_cast<std::uint8_t>(in[8 + i] >> 4 | (in[4 + i] >> 6) << 4);
  }
}

// d, dmin, 12 bytes of pairs, 128 bytes of nibbles: of each 32, first the lower ones.
inline void q4_k(Bytes in, Block out) {
  six_bit_pairs(in + 4, out);
  for (int i = 0; i < 4; ++i) nibbles<32>(in + 16 + 32 * i, out.codes + 64 * i);
}

// The same with 32 bytes of fifth bits before the nibbles: bit g of byte i is of input i of group
// g.
inline void q5_k(Bytes in, Block out) {
  six_bit_pairs(in + 4, out);
  for (int i = 0; i < 4; ++i) nibbles<32>(in + 48 + 32 * i, out.codes + 64 * i);
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 32; ++i) out.codes[32 * g + i] |= (in[16 + i] >> g & 1) << 4;
  }
}

// 16 bytes of sub-scales and sub-offsets, 64 of codes, d, dmin. Of each 32 bytes of codes, the
// lowest two bits of all come first, then the next.
inline void q2_k(Bytes in, Block out) {
  for (int g = 0; g < 16; ++g) {
    out.sub_scales[g] = static_cast<std::int8_t>(in[g] & 15);
    out.sub_offsets[g] = in[g] >> 4;
  }
  for (int g = 0; g < 8; ++g) {
    Bytes bytes = in + 16 + 32 * (g / 4);
    for (int i = 0; i < 32; ++i) out.codes[32 * g + i] = bytes[i] >> 2 * (g % 4) & 3;
  }
}

// 32 bytes of third bits (bit g of byte i is of input i of the g-th 32), 64 of the other two, 12 of
// sub-scales of 6 bits, 32 too large, d.
inline void q3_k(Bytes in, Block out) {
  for (int g = 0; g < 8; ++g) {
    Bytes bytes = in + 32 + 32 * (g / 4);
    for (int i = 0; i < 32; ++i) {
      out.codes[32 * g + i] =
          static_cast<std::uint8_t>((bytes[i] >> 2 * (g % 4) & 3) | (in[i] >> g & 1) << 2);
    }
  }
  Bytes scales = in + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int high = scales[8 + g % 4] >> 2 * (g / 4) & 3;
    out.sub_scales[g] = static_cast<std::int8_t>((low | high << 4) - 32);
  }
}

// 128 bytes of nibbles, 64 of fifth and sixth bits, 16 sub-scales, d. Each half has 64 and 32
// bytes.
inline void q6_k(Bytes in, Block out) {
  for (int half = 0; half < 2; ++half) {
    Bytes low = in + 64 * half;
    Bytes high = in + 128 + 32 * half;
    std::uint8_t* __restrict codes = out.codes + 128 * half;
    nibbles<64>(low, codes);
    for (int g = 0; g < 4; ++g) {
      for (int i = 0; i < 32; ++i) codes[32 * g + i] |= (high[i] >> 2 * g & 3) << 4;
    }
  }
  std::memcpy(out.sub_scales, in + 192, 16);
}

// d, two upper bits of all sub-scales, four bytes of their lower four, nibbles; 32 too large.
inline void iq4_xs(Bytes in, Block out) {
  const int high = load_u16(in + 2);
  for (int g = 0; g < 8; ++g) {
    const int low = in[4 + g / 2] >> 4 * (g % 2) & 15;
    out.sub_scales[g] = static_cast<std::int8_t>((low | (high >> 2 * g & 3) << 4) - 32);
    nibbles<16>(in + 8 + 16 * g, out.codes + 32 * g);
  }
}

}  // namespace quantspec::unpack
