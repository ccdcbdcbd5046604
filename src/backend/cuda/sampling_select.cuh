// Which tokens top-k and top-p keep: a search for the least kept probability in its bits, ten at a
// time from the highest, by histograms in shared memory. Nothing is sorted, and sums within a
// histogram are of integers, so that no order of addition shows.
#pragma once

#include <cstdint>

#include "backend/cuda/sampling_row.cuh"

namespace quantspec::cuda {

inline constexpr int kDigitBits = 10;  // three digits: 1.0f is below 2^30
inline constexpr int kDigits = 1 << kDigitBits;

struct SelectMemory {
  std::uint32_t low[kDigits], high[kDigits];  // this block's histogram, 64-bit sums in two words
  double merged[kDigits];                     // the row's, of the digits that this block merges
  struct {
    int index;  // of the digit found, from the largest
    double left;
    double weight;
  } found;
  int equal[kRowWarps];
};

// A token's weight is `of(bits)` times unit(bits), where bits are those of its probability and the
// unit is that of all probabilities of the same exponent. Two tokens together are of kTwo at least.
struct CountWeight {
  static constexpr double kTwo = 2;
  static __device__ std::uint32_t of(std::uint32_t) { return 1; }
  static __device__ double unit(std::uint32_t) { return 1; }
};
struct MassWeight {
  static constexpr double kTwo = 0x1p24;
  static __device__ std::uint32_t of(std::uint32_t bits) {
    return (bits & 0x007FFFFFu) | 0x00800000u;
  }
  static __device__ double unit(std::uint32_t bits) {  // 2^(exponent - 23)
    return __hiloint2double(static_cast<int>((bits >> 23) + 1023 - 127 - 23) << 20, 0);
  }
};

// Keeps, of the tokens more probable than `floor`, the fewest most probable that weigh `share`
// together, all if they weigh less; makes the probabilities of all other tokens 0. Equal
// probabilities rank by id. REQUIRES: each probability is 0, or normal and at most 1.
template <typename Weight>
class Selection {
 public:
  __device__ Selection(RowBlocks& blocks, SelectMemory& memory, RowPart part)
      : blocks_(blocks), memory_(memory), part_(part) {}

  __device__ void keep(double share, float floor) {
    double left = share;
    clear_histogram();
    __syncthreads();
    for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
      count(shift, floor);
      if (!find_digit(shift, left)) {
        drop_below(__float_as_uint(floor) + 1);
        return;
      }
      if (memory_.found.weight < Weight::kTwo * Weight::unit(least_)) {  // a single token is there
        drop_below(least_);
        return;
      }
      left = memory_.found.left;
    }
    keep_above_and_equals(left);
  }

 private:
  __device__ void clear_histogram() {
    for (int i = threadIdx.x; i < kDigits; i += kRowThreads) memory_.low[i] = memory_.high[i] = 0;
  }

  // Of the tokens whose bits above the digit are those found so far.
  __device__ void count(int shift, float floor) {
    const std::uint32_t found = least_ >> (shift + kDigitBits);
    part_.read([&](float prob, int) {
      const std::uint32_t bits = __float_as_uint(prob);
      if (!(prob > floor) || bits >> (shift + kDigitBits) != found) return;
      const int digit = bits >> shift & (kDigits - 1);
      const std::uint32_t weight = Weight::of(bits);
      const std::uint32_t before = atomicAdd(&memory_.low[digit], weight);
      if (before > ~weight) atomicAdd(&memory_.high[digit], 1);
    });
    blocks_.sync();
  }

  // The digit at which the weight of all tokens with it or a larger one reaches `left`, into
  // `least_` and `found`; false if not even all tokens do.
  __device__ bool find_digit(int shift, double left) {
    const int own = kDigits / blocks_.count();  // digits are merged from the largest on
    for (int i = threadIdx.x; i < own; i += kRowThreads) merge(shift, own, i);
    __syncthreads();
    const auto weight = [&](int i) { return memory_.merged[i]; };
    const Walk walk(warp_id() == 0 ? own : 0, weight);
    const double* parts = blocks_.gather(walk.total());
    if (!(sum_parts(parts, blocks_.count()) >= left) && shift == 2 * kDigitBits) return false;

    clear_histogram();  // everybody has merged
    const auto reaches = [](double left, double weight) { return left <= weight; };
    const Walked block = walk_parts(parts, blocks_.count(), left, reaches);
    if (warp_id() == 0 && block.index == blocks_.rank()) {
      const Walked digit = walk.find(block.left, reaches);
      if (lane_id() < blocks_.count()) {
        blocks_.of_block(memory_, lane_id()).found = {blocks_.rank() * own + digit.index,
                                                      digit.left, memory_.merged[digit.index]};
      }
    }
    blocks_.sync();
    least_ |= static_cast<std::uint32_t>(kDigits - 1 - memory_.found.index) << shift;
    return true;
  }

  // Adds up digit i of the `own` that this block merges.
  __device__ void merge(int shift, int own, int i) {
    const int digit = kDigits - 1 - (blocks_.rank() * own + i);
    std::uint32_t low[kMostRowBlocks], high[kMostRowBlocks];
#pragma unroll
    for (int block = 0; block < kMostRowBlocks; ++block) {  // all on their way at once
      const SelectMemory& other = blocks_.of_block(memory_, min(block, blocks_.count() - 1));
      low[block] = other.low[digit];
      high[block] = other.high[digit];
    }
    std::uint64_t sum = 0;
#pragma unroll
    for (int block = 0; block < kMostRowBlocks; ++block) {
      if (block < blocks_.count()) sum += (std::uint64_t{high[block]} << 32) + low[block];
    }
    const std::uint32_t bits = least_ | static_cast<std::uint32_t>(digit) << shift;
    memory_.merged[i] = static_cast<double>(sum) * Weight::unit(bits);
  }

  // All above the least kept probability, and of those equal to it as many as it takes.
  __device__ void keep_above_and_equals(double left) {
    const double each = Weight::of(least_) * Weight::unit(least_);
    const double equals = memory_.found.weight / each;
    const double kept = fmin(fmax(ceil(left / each), 1.0), equals);
    drop_below(least_);
    if (kept < equals) drop_equals_from(static_cast<int>(kept));
  }

  __device__ void drop_below(std::uint32_t least) {
    part_.update([&](float& prob, int) {
      if (__float_as_uint(prob) < least) prob = 0;
    });
  }

  // Of those equal to the least, keeps the first `kept` of the row.
  __device__ void drop_equals_from(int kept) {
    double here = 0;
    part_.read([&](float prob, int) { here += __float_as_uint(prob) == least_; });
    const double* parts = blocks_.gather(blocks_.in_block(here, Plus{}));
    int before = static_cast<int>(sum_parts(parts, blocks_.rank()));
    for (int begin = 0; begin < part_.count; begin += kRowThreads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      const bool equal = i < part_.count && __float_as_uint(part_.values[i]) == least_;
      const unsigned warp = __ballot_sync(~0u, equal);
      if (lane_id() == 0) memory_.equal[warp_id()] = __popc(warp);
      __syncthreads();
      int rank = before + __popc(warp & ((1u << lane_id()) - 1));
      for (int other = 0; other < kRowWarps; ++other) {
        before += memory_.equal[other];
        if (other < warp_id()) rank += memory_.equal[other];
      }
      if (equal && rank >= kept) part_.values[i] = 0;
      __syncthreads();
    }
  }

  RowBlocks& blocks_;
  SelectMemory& memory_;
  RowPart part_;
  std::uint32_t least_ = 0;  // bits of the least kept probability, as far as they are found
};

}  // namespace quantspec::cuda
