// What was found by timing: where one form of an op begins to be faster than another, and how much
// of something there is best. There is a row of it for each architecture that was timed
// (tuning.cc), as tools/gpu_tune.py prints it.
//
// Both forms have the same bits, but for drafts. What is not a choice at run time is not here:
// with how many rows and stages kernels are compiled (batch_half.cuh, batch_planes.cuh, ..), and
// what shapes leave room for (linear_config.h).
#pragma once

#include <string_view>

namespace quantspec::cuda {

struct Tuning {
  // From how many rows on products are a batch's (batch_linear.h): with weights of 16 bits, with
  // planes in groups of 128, with codes. Of the first two matrices with so many tiles times bands
  // or more are large, and have a number of their own.
  int half_rows, half_large_rows, half_large;
  int plane_rows, plane_large_rows, plane_large;
  int code_rows;
  // The most stages of a warp's ring where activations are streamed (linear_config.cc).
  int streamed_stages;
  // Tokens of a split below which a target's batch has CTAs that stay (attention_turns.cuh),
  // unless it has them at any length. A power of two: rounds are known by such lengths
  // (BatchLengths::key()).
  int short_split;
  // How often the CTAs of a batch's drafts fill the GPU (attention_slots.cuh), or twice as often.
  int draft_rounds;
  // 1: kernels may begin before the one ahead has ended (ptx.cuh); 0: none does.
  int overlaps;

  bool operator==(const Tuning&) const = default;
};

// Of Device::capability(), as timed; of others those of 9.0, which is all that is known of them.
Tuning timed_tuning(int capability);

// With changes, as "half_rows=9,short_split=512". Throws kInvalidRequest naming the constants that
// there are, or the numbers that one may have.
Tuning changed(Tuning tuning, std::string_view changes);

// The environment variable QUANTSPEC_TUNING has such changes, for tools/gpu_tune.py and tests;
// empty: none. They are of every Device that is made.
std::string_view tuning_changes();

}  // namespace quantspec::cuda
