// What every op of the CPU backend computes with. One op runs at a time (backend.h), so scratch is
// shared by all of them and grows to the largest need seen: no allocation in steady state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

namespace quantspec::cpu {

class Scratch {
 public:
  enum Name {
    kNormed,
    kKeys,
    kValues,
    kUp,
    kShared,  // what ranks sum or gather
    kRounded,
    kCodes,                    // and the next, for both steps of quantized rows
    kRecords = kCodes + 2,     // likewise
    kArranged = kRecords + 2,  // by DType
    kNumNames = kArranged + 3
  };

  explicit Scratch(int num_threads) : threads_(num_threads) {}

  // `count` uninitialized elements, valid until the next request for the same name.
  template <typename T>
  T* get(Name name, std::size_t count) {
    return grow(shared_[name], count * sizeof(T))->as<T>();
  }
  // The same for one thread of the pool; each thread may ask for its own inside a region.
  template <typename T>
  T* get_for_thread(int thread, std::size_t count) {
    return grow(threads_[thread], count * sizeof(T))->as<T>();
  }

 private:
  static Buffer* grow(Buffer& buffer, std::size_t bytes) {
    if (buffer.size() < bytes) {
      buffer = Buffer();  // never both
      buffer = Buffer(bytes);
    }
    return &buffer;
  }

  std::array<Buffer, kNumNames> shared_;
  std::vector<Buffer> threads_;
};

struct Context {
  ThreadPool& pool;
  const Kernels& kernels;
  Scratch& scratch;
};

// Calls f(row) for every row; few rows are not worth a parallel region.
template <typename F>
void for_rows(ThreadPool& pool, int num_rows, const F& f) {
  constexpr int kFewRows = 4;
  constexpr int kUnitsPerThread = 8;
  const int balanced = num_rows / (kUnitsPerThread * pool.num_threads());
  const int size = num_rows <= kFewRows ? kFewRows : std::clamp(balanced, 1, kFewRows);
  pool.parallel_for((num_rows + size - 1) / size, [&](std::int64_t unit, int) {
    const int first = static_cast<int>(unit) * size;
    for (int row = first; row < std::min(num_rows, first + size); ++row) f(row);
  });
}

}  // namespace quantspec::cpu
