// What the tests of this room share: every instruction set of this machine, random numbers, and
// matrices with their values as a double-precision oracle sees them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/context.h"
#include "backend/cpu/isa.h"
#include "backend/params/linear.h"
#include "base/dtype.h"

namespace quantspec::cpu {

inline std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

// A random [rows, cols] matrix as a checkpoint may hold it: at an odd address.
class TestMatrix {
 public:
  TestMatrix(DType dtype, int rows, int cols, unsigned seed)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        values_(random_floats(static_cast<std::size_t>(rows) * cols, seed)),
        bytes_(values_.size() * size_of(dtype) + 1) {
    for (std::size_t i = 0; i < values_.size(); ++i) set(i, values_[i]);
  }

  void set(std::size_t index, float value) {
    std::byte* target = bytes_.data() + 1 + index * size_of(dtype_);
    if (dtype_ == DType::kF32) {
      std::memcpy(target, &value, sizeof(value));
    } else {
      const std::uint16_t half =
          dtype_ == DType::kF16
              ? f32_to_f16(value)
              : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
      std::memcpy(target, &half, sizeof(half));
    }
    values_[index] = load_f32(bytes_.data() + 1, dtype_, index);
  }

  TensorView view() const { return {bytes_.data() + 1, dtype_, rows_, cols_}; }
  float at(int row, int col) const { return values_[static_cast<std::size_t>(row) * cols_ + col]; }
  const float* row(int row) const { return &values_[static_cast<std::size_t>(row) * cols_]; }

 private:
  DType dtype_;
  int rows_;
  int cols_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

// Floats between two guards that nothing may write.
class Guarded {
 public:
  explicit Guarded(std::size_t count, float value = kGuard) : values_(count + 2 * kPad, kGuard) {
    std::fill_n(data(), count, value);
  }
  float* data() { return values_.data() + kPad; }
  float operator[](std::size_t i) const { return values_[kPad + i]; }
  std::vector<float> values() const { return {values_.begin() + kPad, values_.end() - kPad}; }
  bool intact() const {
    return std::all_of(values_.begin(), values_.begin() + kPad, is_guard) &&
           std::all_of(values_.end() - kPad, values_.end(), is_guard);
  }

 private:
  static constexpr int kPad = 64;
  static constexpr float kGuard = -12345.5f;
  static bool is_guard(float x) { return x == kGuard; }
  std::vector<float> values_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A test that runs on every instruction set of this machine.
class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  Context context() { return on(pool_, scratch_); }
  Context on(ThreadPool& pool, Scratch& scratch) { return {pool, kernels(GetParam()), scratch}; }

 private:
  ThreadPool pool_{2};
  Scratch scratch_{2};
};

// What prefill multiplies in place of x.
inline std::vector<float> as_multiplied(const Context& context, std::vector<float> x) {
  if (context.kernels.bf16 == nullptr) return x;
  std::vector<std::uint16_t> rounded(x.size());
  context.kernels.bf16->round(x.data(), static_cast<int>(x.size()), rounded.data());
  std::transform(rounded.begin(), rounded.end(), x.begin(), bf16_to_f32);
  return x;
}

inline std::string isa_test_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(name_of(info.param));
}

}  // namespace quantspec::cpu
