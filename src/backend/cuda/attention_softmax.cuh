// The running softmax of a warp, in powers of two. A column's sums are relative to 2^exponent, a
// whole number, so that raising it rescales them exactly and bits do not depend on when that is.
#pragma once

#include "backend/cuda/attention_team.cuh"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

// Probabilities meet tensor cores as fp16. A column's greatest starts at 2^kRoom and may grow to
// 2^kMostRoom before the exponent is raised; those 2^-22 times as great still have all their bits.
inline constexpr float kRoom = 10.0f;
inline constexpr float kMostRoom = 15.0f;

template <int N>
__device__ __forceinline__ void clear(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = 0.0f;
}

// What a lane holds of a warp's sums, of columns 2t, 2t + 1 of each tile (Team::column_tile). `out`
// is a C fragment (channels x columns) for each of its channel tiles; `sum` and `zero` are over
// this lane's tokens.
template <class S>
struct WarpSums {
  float out[S::kColumnTiles][S::kOutTiles][4];     // of p scale (code - centre) / kCodeUnit
  float zero[S::kValueGroups][S::kScoreTiles][2];  // of p (offset + kCentre scale)
  float sum[S::kScoreTiles][2];                    // of p
  float exponent[S::kScoreTiles][2];

  __device__ WarpSums() {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < S::kOutTiles; ++i) clear(out[n][i]);
    }
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) clear(zero[i][n]);
      clear(sum[n]);
      exponent[n][0] = exponent[n][1] = -1e30f;  // below every score, and finite
    }
  }

  // All but the output, where a team keeps it.
  __device__ __forceinline__ void put_away(const Team<S>& team, FragmentLane lane) const {
    team.put_away(0, sum, lane);
    team.put_away(1, exponent, lane);
#pragma unroll
    for (int i = 0; i < S::kValueGroups; ++i) team.put_away(2 + i, zero[i], lane);
  }
  __device__ __forceinline__ void take_back(const Team<S>& team, FragmentLane lane) {
    team.take_back(0, sum, lane);
    team.take_back(1, exponent, lane);
#pragma unroll
    for (int i = 0; i < S::kValueGroups; ++i) team.take_back(2 + i, zero[i], lane);
  }

  // From units of 1 / kCodeUnit to whole ones.
  __device__ __forceinline__ void end_codes() {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < S::kOutTiles; ++i) {
#pragma unroll
        for (float& x : out[n][i]) x *= S::kCodeUnit;
      }
    }
  }
  __device__ __forceinline__ void add(const float (&added)[S::kScoreTiles][2]) {
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) sum[n][c] += added[n][c];
    }
  }
  __device__ __forceinline__ void rescale(int n, int column, float factor) {
    sum[n][column] *= factor;
#pragma unroll
    for (int i = 0; i < S::kValueGroups; ++i) zero[i][n][column] *= factor;
  }
  __device__ __forceinline__ void rescale_output(int n, int column, float factor) {
#pragma unroll
    for (int i = 0; i < S::kOutTiles; ++i) {
      out[n][i][column] *= factor;
      out[n][i][2 + column] *= factor;
    }
  }
};

// score = fma(product, multiplier, bias), of columns 2t, 2t + 1 of each tile, in powers of two.
template <class S>
struct ScoreMap {
  float multiplier[S::kScoreTiles][2];
  float bias[S::kScoreTiles][2];
};

// Raises the exponents that the scores to come need. `value_exponent`: no value scale of this
// lane's tokens is above 2^value_exponent. Returns whether it did.
template <class S, int kTiles>
__device__ __forceinline__ bool make_room(const float (&products)[S::kScoreTiles][kTiles][4],
                                          const ScoreMap<S>& map, float value_exponent,
                                          const Team<S>& team, FragmentLane lane,
                                          WarpSums<S>& sums) {
  float greatest[S::kScoreTiles][2];
  bool enough = true;
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float most = products[n][0][c];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        most = fmaxf(most, fmaxf(products[n][i][c], products[n][i][2 + c]));
      }
      greatest[n][c] = fmaf(most, map.multiplier[n][c], map.bias[n][c]) + value_exponent;
      enough = enough && !(greatest[n][c] > sums.exponent[n][c] + kMostRoom);
    }
  }
  if (__all_sync(~0u, enough)) return false;
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float most = greatest[n][c];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
      }
      // By the column's own scores alone: a column in company is raised when it is alone, too.
      float factor = 1.0f;
      if (most > sums.exponent[n][c] + kMostRoom) {
        const float raised = ceilf(most) - kRoom;
        factor = exp2_approximately(sums.exponent[n][c] - raised);
        sums.rescale(n, c, factor);
        if constexpr (S::kTeam == 1) sums.rescale_output(n, c, factor);
        sums.exponent[n][c] = raised;
      }
      if constexpr (S::kTeam > 1) team.rescale(n, c, factor, lane);
    }
  }
  return true;
}

// Products become probabilities, relative to 2^exponent.
template <class S, int kTiles>
__device__ __forceinline__ void to_probabilities(float (&products)[S::kScoreTiles][kTiles][4],
                                                 const ScoreMap<S>& map, const WarpSums<S>& sums) {
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
    float bias[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) bias[c] = map.bias[n][c] - sums.exponent[n][c];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& p = products[n][i][e];
        p = exp2_approximately(fmaf(p, map.multiplier[n][e % 2], bias[e % 2]));
      }
    }
  }
}

// A B operand of fp16 numbers.
struct Operand {
  std::uint32_t word[2];
};
__device__ __forceinline__ void mma_f16(float (&c)[4], const std::uint32_t (&a)[4],
                                        const Operand& b) {
  mma_f16(c, a, b.word[0], b.word[1]);
}

// Of queries, [column tile * channel tiles + channel tile, lane]. NOTE: rounded ones are what all
// keys meet, codes, their offsets and those in full precision. What a query errs by, times what
// keys have in common, is then in all scores alike and cancels; keys may have much in common.
__device__ __forceinline__ Operand load_query(const std::byte* queries, int tile,
                                              FragmentLane lane) {
  const uint2 x = reinterpret_cast<const uint2*>(queries)[tile * 32 + lane.index];
  return {{x.x, x.y}};
}

// A C fragment (tokens x columns) as the B operand of the next product, in fp16. `c` becomes what
// the operand holds.
__device__ __forceinline__ void to_operand(float (&c)[4], std::uint32_t (&b)[2]) {
  const __half2 low = __floats2half2_rn(c[0], c[1]), high = __floats2half2_rn(c[2], c[3]);
  b[0] = transpose8x8(reinterpret_cast<const std::uint32_t&>(low));
  b[1] = transpose8x8(reinterpret_cast<const std::uint32_t&>(high));
  c[0] = __low2float(low), c[1] = __high2float(low);
  c[2] = __low2float(high), c[3] = __high2float(high);
}

}  // namespace quantspec::cuda
