// What quantizing a page of KV and reading it back does to the values, for quantizers that the
// cache's format does not have: the paper's own and those of its Table 5 (arXiv:2502.10424).
//
// The paper's quantizer (section 4.2 there; all extremes are of one group):
//
//     s = (max - min) / 15                                   s and min rounded to fp16
//     u = clamp(round((x - min) / s), 0, 15)                 upper plane, asymmetric
//     l = clamp(round((x - (u s + min)) / (s / 16)), -8, 7)  lower plane, symmetric
//     4 bits: u s + min        8 bits: u s + l s / 16 + min
//
// Rounding is half to even, as in the published code. Its constant group is 0 / 0; here it keeps
// its value. Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "quant/quant.h"

namespace quantspec {

// Along what a group of codes lies. kChannel: one channel of all the page's tokens; kToken: the
// channels of one token, kValueGroup at a time.
enum class GroupAxis : std::uint8_t { kChannel, kToken };

struct KvCodec {
  enum class Quantizer : std::uint8_t { kOurs, kPaper };

  Quantizer quantizer = Quantizer::kOurs;
  KvRead read = KvRead::kBoth;  // kUpper: 4 bits; kBoth: 8 bits; never kFull
  GroupAxis keys = GroupAxis::kChannel;
  GroupAxis values = GroupAxis::kToken;
  bool operator==(const KvCodec&) const = default;
};

// Replaces a unit's keys and values, [page_size, head_dim] each, by what a pass would read.
// REQUIRES: kOurs with its own axes, which are the defaults.
void quantize_and_read(const KvCodec& codec, const KvShape& shape, float* keys, float* values);

}  // namespace quantspec
