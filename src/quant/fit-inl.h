// The arithmetic of encode_row() for groups of 32, sixteen of them at a time, in GCC's vectors: one
// text, of which each instruction set that includes it makes the same bits. Like the kernels that
// include it, it stays in an anonymous namespace and uses no std template.
#pragma once

#include <cstdint>

namespace quantspec {
namespace {

constexpr int kFitGroups = 16;
constexpr int kFitInputs = 32;
typedef float FitLanes __attribute__((vector_size(4 * kFitGroups)));

// Shares of a group's range that the sixteen values of drafts span at first, and how often the line
// through them is fitted again. NOTE: on pg-24m, 8 shares, or a third fit, accept no more; 2 shares
// 0.16 points less.
constexpr float kFitShares[] = {0.8f, 13.0f / 15, 14.0f / 15, 1.0f};
constexpr int kFitRounds = 2;
// A range below this is no range: fp16 has no scale for it.
constexpr float kLeastRange = 1e-30f;

inline void load_lanes(const float* from, FitLanes& to) { __builtin_memcpy(&to, from, sizeof(to)); }

// A line: weights at the centres of the sixteen cells of codes, origin + step * (u - 7.5).
struct FitLine {
  FitLanes step, origin;
};

// The least-squares line of each lane's `count` weights, once each is at the centre that `line` has
// nearest to it. `gain`: by how much it errs less than their mean. Weights lie in [0, 1].
__attribute__((always_inline)) inline void refit(const float* x, int count, const FitLanes& mean,
                                                 FitLine& line, FitLanes& gain) {
  FitLanes sum = {}, squares = {}, products = {};
  const FitLanes kFirst = FitLanes{} - 7.5f, kLast = FitLanes{} + 7.5f;
  const FitLanes inverse = 1.0f / line.step;
  const FitLanes first = 7.5f - line.origin * inverse;
  for (int i = 0; i < count; ++i) {
    FitLanes v;
    load_lanes(x + kFitGroups * i, v);
    FitLanes u = v * inverse + first;
    // To the nearest integer, as in encode(), and into the sixteen.
    u = (u + 0x1.8p23f) - 0x1.8p23f - 7.5f;
    u = u > kFirst ? u : kFirst;
    u = u < kLast ? u : kLast;
    sum += u;
    squares += u * u;
    products += u * (v - mean);
  }
  const float n = static_cast<float>(count);
  const FitLanes variance = squares - sum * sum / n;
  // All at one centre: as it was.
  const FitLanes step = variance > 0.001f && products > 0.0f ? products / variance : line.step;
  line.origin = mean - step * sum / n;
  line.step = step;
  gain = step * products;
}

// fit_groups() where the compiler may know both numbers, which makes it three times as fast.
__attribute__((always_inline)) inline void fit_so_many(const float* weights, int groups, int count,
                                                       float* scales, float* offsets) {
  alignas(64) float x[kFitInputs * kFitGroups] = {};
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < count; ++i) x[kFitGroups * i + g] = weights[g * count + i];
  }
  FitLanes least, most, wrong = {}, v;
  load_lanes(x, least);
  most = least;
  for (int i = 0; i < count; ++i) {
    load_lanes(x + kFitGroups * i, v);
    least = v < least ? v : least;
    most = v > most ? v : most;
    wrong += v - v;  // 0, or NaN
  }
  // Weights as shares of their range, which is halved so that it is finite.
  const FitLanes half = most * 0.5f - least * 0.5f;
  const FitLanes inverse = half > kLeastRange ? 1.0f / half : FitLanes{};
  FitLanes mean = {};
  for (int i = 0; i < count; ++i) {
    load_lanes(x + kFitGroups * i, v);
    v = (v * 0.5f - least * 0.5f) * inverse;
    mean += v;
    __builtin_memcpy(x + kFitGroups * i, &v, sizeof(v));
  }
  mean /= static_cast<float>(count);
  FitLine best = {};
  FitLanes most_gain = FitLanes{} - 1.0f;
  for (const float share : kFitShares) {
    FitLine line = {FitLanes{} + share / 15, FitLanes{} + 0.5f};
    for (int round = 0; round < kFitRounds; ++round) {
      FitLanes gain;
      refit(x, count, mean, line, gain);
      best.step = gain > most_gain ? line.step : best.step;
      best.origin = gain > most_gain ? line.origin : best.origin;
      most_gain = gain > most_gain ? gain : most_gain;
    }
  }
  // The least and the greatest code, no further in than the weights.
  const FitLanes reach = best.step * (127.5f / 16);
  FitLanes low = best.origin - reach, high = best.origin + reach;
  low = low < 0.0f ? low : FitLanes{};
  high = high > 1.0f ? high : 1.0f - FitLanes{};
  const FitLanes scale = (half > kLeastRange ? (high - low) / 127.5f * half : FitLanes{}) + wrong;
  const FitLanes offset = (half > kLeastRange ? least + low * 2.0f * half : least) + wrong;
  for (int g = 0; g < groups; ++g) {
    scales[g] = scale[g];
    offsets[g] = offset[g];
  }
}

// Of `groups` groups of `count` weights, one after the other: scale and offset of codes of 8 bits
// whose upper plane errs least in the sum of squares, of those that were tried, among such codes as
// reach all of the group's weights. Constant groups have scale 0, those that are not finite NaN.
// groups <= kFitGroups, count <= kFitInputs.
void fit_groups(const float* weights, int groups, int count, float* scales, float* offsets) {
  if (groups == kFitGroups && count == kFitInputs) {
    return fit_so_many(weights, kFitGroups, kFitInputs, scales, offsets);
  }
  fit_so_many(weights, groups, count, scales, offsets);
}

// encode() of quant.h for a group. REQUIRES: scale > 0.
void encode_codes(const float* weights, int count, float scale, float offset, std::uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    float code = (weights[i] - offset) / scale;
    code = code > 0.0f ? code : 0.0f;
    code = code < 255.0f ? code : 255.0f;
    codes[i] = static_cast<std::uint8_t>(static_cast<int>((code + 0x1p23f) - 0x1p23f));
  }
}

}  // namespace
}  // namespace quantspec
