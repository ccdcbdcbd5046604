// The warps that share the parts of a team: of two, each has the scores of half of the columns,
// tells the other its probabilities, and adds up half of the channels for all columns. So each has
// half of the sums in its registers, and a multiprocessor twice the warps.
#pragma once

#include "backend/cuda/attention_shape.cuh"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

template <class S>
class Team {
 public:
  // `shared`: kTeamBytes of every team.
  __device__ explicit Team(std::byte* shared) : Team(shared, warp_index() / S::kTeam) {}
  // The one of this index.
  __device__ Team(std::byte* shared, int of)
      : index(of),
        member(S::kTeam == 1 ? 0 : warp_index() % S::kTeam),
        operands_(shared + index * S::kTeamBytes),
        kept_(operands_ + S::kTeam * S::kOperandBytes),
        factors_(reinterpret_cast<float*>(kept_ + S::kTeam * S::kKeptBytes)),
        rescaled_(reinterpret_cast<int*>(factors_ + S::kColumns)) {}

  const int index;   // of the CTA's teams
  const int member;  // this warp

  // A warp counts column tiles from the first of its own scores on.
  __device__ __forceinline__ int column_tile(int n) const {
    return (n + member * S::kScoreTiles) % S::kColumnTiles;
  }
  // Its first channel tile.
  __device__ __forceinline__ int channel_tile() const { return member * S::kOutTiles; }

  __device__ __forceinline__ void sync() const { barrier_sync(1 + index, 32 * S::kTeam); }

  // As often as for a part: a team that has one less than another meets as often.
  // NOTE: it need not, but compute-sanitizer's racecheck (2025.3) takes what such teams do before
  // and after a barrier of all threads for races.
  __device__ __forceinline__ void meet_for_no_part() const {
#pragma unroll 1
    for (int i = 0; i < 3; ++i) sync();
  }

  // Sums wait where operands will be, while scores need the registers.
  __device__ __forceinline__ void put_away(const float (&x)[S::kOutTiles][4],
                                           FragmentLane lane) const {
    if constexpr (S::kTeam > 1) {
      float4* to = reinterpret_cast<float4*>(operands_ + member * S::kOperandBytes) + lane.index;
#pragma unroll
      for (int i = 0; i < S::kOutTiles; ++i) to[32 * i] = {x[i][0], x[i][1], x[i][2], x[i][3]};
    }
  }
  __device__ __forceinline__ void take_back(float (&x)[S::kOutTiles][4], FragmentLane lane) const {
    if constexpr (S::kTeam > 1) {
      const float4* from =
          reinterpret_cast<const float4*>(operands_ + member * S::kOperandBytes) + lane.index;
#pragma unroll
      for (int i = 0; i < S::kOutTiles; ++i) {
        const float4 y = from[32 * i];
        x[i][0] = y.x, x[i][1] = y.y, x[i][2] = y.z, x[i][3] = y.w;
      }
    }
  }

  // What belongs to this warp's columns waits, while the output needs the registers.
  __device__ __forceinline__ void put_away(int place, const float (&x)[S::kScoreTiles][2],
                                           FragmentLane lane) const {
    if constexpr (S::kTeam > 1) *kept(place, lane) = {x[0][0], x[0][1], x[1][0], x[1][1]};
  }
  __device__ __forceinline__ void take_back(int place, float (&x)[S::kScoreTiles][2],
                                            FragmentLane lane) const {
    if constexpr (S::kTeam > 1) {
      const float4 y = *kept(place, lane);
      x[0][0] = y.x, x[0][1] = y.y, x[1][0] = y.z, x[1][1] = y.w;
    }
  }

  // This warp multiplied a column's sums with `factor`: so must be the output's. Called for all of
  // its columns or none.
  __device__ __forceinline__ void rescale(int n, int column, float factor,
                                          FragmentLane lane) const {
    if (lane.g == 0) factors_[8 * column_tile(n) + 2 * lane.t + column] = factor;
  }

  // Operands of all columns (b[n]: of column_tile(n)) from those of this warp's. `rescaled`: it
  // called rescale() since the last time; rescale_output(n, column, factor) is what that asks for.
  template <int kTiles, typename F>
  __device__ __forceinline__ void share(std::uint32_t (&b)[S::kColumnTiles][kTiles][2],
                                        bool rescaled, FragmentLane lane,
                                        const F& rescale_output) const {
    if constexpr (S::kTeam > 1) {
      exchange(b, rescaled, lane, rescale_output);
    }
  }

 private:
  template <int kTiles, typename F>
  __device__ __forceinline__ void exchange(std::uint32_t (&b)[S::kColumnTiles][kTiles][2],
                                           bool rescaled, FragmentLane lane,
                                           const F& rescale_output) const {
    static_assert(S::kTeam == 2 && kTiles % 2 == 0 && kTiles <= S::kTokenTiles);
    uint4* mine = reinterpret_cast<uint4*>(operands_ + member * S::kOperandBytes) + lane.index;
    const uint4* others =
        reinterpret_cast<const uint4*>(operands_ + (1 - member) * S::kOperandBytes) + lane.index;
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kTiles; i += 2) {
        mine[(n * kTiles + i) * 16] = {b[n][i][0], b[n][i][1], b[n][i + 1][0], b[n][i + 1][1]};
      }
    }
    // NOTE: what is read after a meeting is written anew after the next.
    if (lane.index == 0) rescaled_[member] = rescaled;
    sync();
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kTiles; i += 2) {
        const uint4 x = others[(n * kTiles + i) * 16];
        std::uint32_t(&to)[kTiles][2] = b[S::kScoreTiles + n];
        to[i][0] = x.x, to[i][1] = x.y, to[i + 1][0] = x.z, to[i + 1][1] = x.w;
      }
    }
    const bool other_rescaled = rescaled_[1 - member] != 0;
    if (!rescaled && !other_rescaled) return;
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
      const bool due = n < S::kScoreTiles ? rescaled : other_rescaled;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        rescale_output(n, c, due ? factors_[8 * column_tile(n) + 2 * lane.t + c] : 1.0f);
      }
    }
  }

  __device__ __forceinline__ float4* kept(int place, FragmentLane lane) const {
    static_assert(S::kScoreTiles == 2);
    return reinterpret_cast<float4*>(kept_ + member * S::kKeptBytes) + 32 * place + lane.index;
  }

  std::byte* operands_;  // [member]: kOperandBytes
  std::byte* kept_;      // [member]: kKeptBytes
  float* factors_;       // [columns]: what sums were multiplied with, where some were
  int* rescaled_;        // [member]: whether it multiplied some
};

}  // namespace quantspec::cuda
