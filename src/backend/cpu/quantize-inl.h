// Integers for what planes are multiplied by. Included by kernels_*.cc after one simd_*.h.
#pragma once

#include "backend/cpu/elementwise-inl.h"

namespace quantspec::cpu {
namespace {

// One step of inputs as codes, its inputs times 1 / step, rounded; their sums by `part` inputs go
// to `sums`. Returns the step. NOTE: inputs without a normal number among them have codes 0; those
// with a NaN or an infinity have step NaN, which reaches every output, as it does in exact
// arithmetic.
float quantize_step(const float* x, int count, bool split, int part, std::int8_t* high,
                    std::int8_t* low, float* sums) {
  const float most = split ? 127.0f * 128.0f : 127.0f;
  F32 magnitude = zero_f32();
  for_lanes(count, [&](int i, int n) { magnitude = max_magnitude(magnitude, load_run(x + i, n)); });
  const float greatest = reduce_max_magnitude(magnitude);
  const bool finite = greatest <= 3.4028234663852886e38f;
  const F32 inverse = set1(finite && greatest > 1e-30f ? most / greatest : 0.0f);
  for (int first = 0; first < count; first += part) {
    F32 sum = zero_f32();
    for_lanes(count - first < part ? count - first : part, [&](int i, int n) {
      const F32 v = finite ? load_run(x + first + i, n) * inverse : zero_f32();
      const I32 code = round_i32(v);
      const I32 h = split ? shift_right<7>(code + set1(std::int32_t{64})) : code;
      store_s8(high + first + i, h);
      store_s8(low + first + i, code - (split ? shift_left<7>(h) : code));
      sum = sum + to_f32(code);
    });
    sums[first / part] = reduce_add(sum);
  }
  return finite ? greatest / most : __builtin_nanf("");
}

// Quantizes row `row` of activations. Sums of codes are integers below 2^24: exact in any order, so
// that it is not seen how many parts were asked for.
void quantize_row(const float* x, int inputs, bool split, const QuantizedRows& out, int row) {
  std::int8_t* high = out.codes + static_cast<std::ptrdiff_t>(row) * 2 * out.padded;
  std::int8_t* low = high + out.padded;
  const int written = (inputs + kLanes - 1) / kLanes * kLanes;
  __builtin_memset(high + written, 0, static_cast<std::size_t>(out.padded - written));
  __builtin_memset(low + written, 0, static_cast<std::size_t>(out.padded - written));
  float* record = out.records + static_cast<std::ptrdiff_t>(row) * out.steps * 2 * out.parts;
  for (int first = 0; first < inputs; first += out.step, record += 2 * out.parts) {
    const int count = inputs - first < out.step ? inputs - first : out.step;
    for (int i = 0; i < out.parts; ++i) record[out.parts + i] = 0.0f;
    record[0] = quantize_step(x + first, count, split, out.step / out.parts, high + first,
                              low + first, record + out.parts);
    for (int i = out.parts - 1; i > 0; --i) record[i] = record[2 * i] + record[2 * i + 1];
    for (int i = 1; i < 2 * out.parts; ++i) record[i] = record[0] * record[i];
  }
}

}  // namespace
}  // namespace quantspec::cpu
