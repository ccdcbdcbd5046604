// Draws from a row of probabilities, the tokens that sampler/ draws: inverse CDF and the
// exponential race.
#pragma once

#include <cstdint>

#include "backend/cuda/sampling_row.cuh"
#include "base/exponential.h"
#include "base/random.h"
#include "base/token.h"

namespace quantspec::cuda {

inline constexpr int kBand = 256;  // tokens summed as the CPU sums them, before looking into them
inline constexpr int kBandLanes = 16;
inline constexpr int kMostBands = 1024;  // of a block

// A block's part of the vocabulary, in bands.
__host__ __device__ constexpr int bands_per_block(int vocab_size, int blocks) {
  return ((vocab_size + kBand - 1) / kBand + blocks - 1) / blocks;
}

// Inverse CDF over weight(i) >= 0, i < vocab_size, in two steps: the sums of bands, in the CPU's
// order of addition (16 sums side by side, then those), and a walk that halves its way down: over
// the blocks, over the bands of one, over the tokens of one.
class Draw {
 public:
  __device__ Draw(RowBlocks& blocks, double* bands, int vocab_size)
      : blocks_(blocks),
        bands_(bands),
        vocab_size_(vocab_size),
        per_block_(bands_per_block(vocab_size, blocks.count())) {}

  // The sum of all weights. Must come before token().
  template <typename Weight>
  __device__ double weigh(const Weight& weight) {
    const int lane = static_cast<int>(threadIdx.x) % kBandLanes;
    __syncthreads();  // an earlier use of bands_ has ended
    for (int band = static_cast<int>(threadIdx.x) / kBandLanes; band < per_block_;
         band += kRowThreads / kBandLanes) {
      const int begin = first_token() + band * kBand + lane;
      float values[kBand / kBandLanes];
#pragma unroll
      for (int k = 0; k < kBand / kBandLanes; ++k) {
        const int token = begin + k * kBandLanes;
        values[k] = token < vocab_size_ ? weight(token) : 0.0f;
      }
      double own = 0;
#pragma unroll
      for (int k = 0; k < kBand / kBandLanes; ++k) own += values[k];
      double sum = 0;
      const unsigned half = 0xFFFFu << (lane_id() & 16);
#pragma unroll
      for (int k = 0; k < kBandLanes; ++k) sum += __shfl_sync(half, own, k, kBandLanes);
      if (lane == 0) bands_[band] = sum;
    }
    __syncthreads();
    double part = 0;
    if (warp_id() == 0) {
      for (int band = lane_id(); band < per_block_; band += 32) part += bands_[band];
      part = RowBlocks::in_warp(part, Plus{});
    }
    parts_ = blocks_.gather(part);
    return sum_parts(parts_, blocks_.count());
  }

  // For warp 0 of the block in whose part the draw falls, the token; for all others -1.
  template <typename Weight>
  __device__ TokenId token(const Weight& weight, double left) const {
    const auto reaches = [](double left, double weight) { return left < weight; };
    const Walked block = walk_parts(parts_, blocks_.count(), left, reaches);
    if (warp_id() != 0 || block.index != blocks_.rank()) return -1;
    const auto band_weight = [&](int i) { return bands_[i]; };
    const Walked band = Walk(per_block_, band_weight).find(block.left, reaches);
    const int begin = first_token() + max(band.index, 0) * kBand;
    const auto token_weight = [&](int i) { return static_cast<double>(weight(begin + i)); };
    const Walked token =
        Walk(min(kBand, vocab_size_ - begin), token_weight).find(band.left, reaches);
    return begin + max(token.index, 0);
  }

 private:
  __device__ int first_token() const { return blocks_.rank() * per_block_ * kBand; }

  RowBlocks& blocks_;
  double* bands_;                  // shared, [per_block_]
  const double* parts_ = nullptr;  // shared, [blocks]
  int vocab_size_;
  int per_block_;
};

// Gumbel-max as in sample_coupled(): argmin of exponential(word of the token) / its probability,
// the lower id on ties. For all threads; -1 if no probability is positive. One sync().
__device__ inline TokenId race(RowBlocks& blocks, const float* probs, int vocab_size,
                               const CounterRng& rng, std::int64_t position) {
  constexpr std::uint64_t kNobody = ~std::uint64_t{0};
  constexpr int kWords = 4;  // of a block of random words
  const bool aligned =
      vocab_size % kWords == 0 && reinterpret_cast<std::uintptr_t>(probs) % 16 == 0;
  std::uint64_t best = kNobody;
  // The best time of the warp. A token's time is E / p, and E is never below the word's
  // fine_unit(): most words need no logarithm, and improbable tokens no word. It errs by rounding
  // on the safe side.
  float best_time = __int_as_float(0x7F7FFFFF);  // the largest
  const auto could_win = [&](float prob, std::uint32_t word) {
    return fine_unit(word) < best_time * (prob * 1.00001f);
  };
  const int groups = (vocab_size + kWords - 1) / kWords;
  for (int first = blocks.thread() - lane_id(); first < groups; first += blocks.threads()) {
    const int group = first + lane_id();
    float prob[kWords] = {};
    if (aligned && group < groups) {
      const float4 four = reinterpret_cast<const float4*>(probs)[group];
      prob[0] = four.x, prob[1] = four.y, prob[2] = four.z, prob[3] = four.w;
    } else {
      for (int j = 0; j < kWords; ++j) {
        if (group * kWords + j < vocab_size) prob[j] = probs[group * kWords + j];
      }
    }
    const float most = fmaxf(fmaxf(prob[0], prob[1]), fmaxf(prob[2], prob[3]));
    if (could_win(most, 0)) {
      const auto words = rng.block(position, RandomStream::kSample, group);
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        if (!could_win(prob[j], words[j])) continue;
        const float time = exponential(words[j]) / prob[j];
        if (time > best_time) continue;
        best_time = time;
        const auto token = static_cast<std::uint32_t>(group * kWords + j);
        best = min(best, std::uint64_t{__float_as_uint(time)} << 32 | token);
      }
    }
    best_time = __uint_as_float(__reduce_min_sync(~0u, __float_as_uint(best_time)));
  }
  best = blocks.least(best);
  return best == kNobody ? -1 : static_cast<TokenId>(best & 0xFFFFFFFFu);
}

}  // namespace quantspec::cuda
