// What passes that decode take of a GPU's memory beside what they are given: the sum of what the
// functions say that take it.
#include <algorithm>

#include "backend/cuda/ops.h"
#include "backend/cuda/ranks.h"
#include "backend/params/pass.h"

namespace quantspec::cuda {

std::size_t pass_scratch_bytes(const Device& device, const PassSizes& sizes,
                               const RankSharing& sharing) {
  const DecodeScratch decode = decode_scratch(device, sizes, sharing);
  const AttentionScratch attention = attention_scratch(device, sizes, sharing);
  // What is beyond prefill's, which has it in turn.
  const std::size_t row_floats =
      static_cast<std::size_t>(sizes.hidden) + sizes.intermediate + 2 * std::size_t(sizes.keys);
  const PrefillScratch prefill =
      prefill_scratch({.inputs = std::max({sizes.hidden, sizes.queries, sizes.intermediate}),
                       .row_floats = kPrefillRows * row_floats,
                       .ranks = sizes.ranks});
  const auto beyond = [](std::size_t bytes, std::size_t there) {
    return bytes - std::min(bytes, there);
  };
  const int lanes = padded(sizes.sequences);
  return decode.batch + beyond(decode.activations, prefill.activations) +
         beyond(decode.of_rank, prefill.of_rank) + attention.results + attention.counters +
         rounds_scratch_bytes(sizes.sequences) +
         Device::table_bytes(lanes, padded_rows_of(lanes, sizes.sequences * sizes.rows),
                             sizes.shape.num_layers) +
         Ranks::bytes(sharing);
}

}  // namespace quantspec::cuda
