// What gpu_bench's parts share: the backend and the reference, random memory, and time.
//
// Calls take their operands in turn from copies that together are far larger than the L2 cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/gpu_results.h"
#include "backend/backend.h"
#include "base/clock.h"

namespace quantspec {

inline constexpr int kHeads = 32;  // of Llama-2-7B and Llama-3.1-8B
inline constexpr int kHeadDim = 128;
inline constexpr std::size_t kRowFloats = kHeads * kHeadDim;
inline constexpr float kScale = 0.088388348f;  // 1 / sqrt(kHeadDim)
inline constexpr int kPageSize = 128;
inline constexpr std::size_t kBeyondL2 = std::size_t{1} << 30;  // bytes through which calls rotate

struct AttentionShape {
  std::string name;
  int kv_heads;
};
inline const AttentionShape kAttentionShapes[] = {{"mha", 32}, {"gqa", 8}};

// How many things of so many bytes calls go through in turn.
inline int copies_beyond_l2(std::size_t bytes) {
  return bytes >= 2 * kBeyondL2 ? 1
                                : static_cast<int>(std::max<std::size_t>(2, kBeyondL2 / bytes + 1));
}

class GpuLab {
 public:
  explicit GpuLab(const BackendOptions& backend);

  Backend& backend() { return *backend_; }
  Backend& reference() { return *reference_; }
  double copy_bandwidth() const { return copy_bandwidth_; }

  // Normal values on the host, again and again the same million.
  std::vector<float> floats(std::size_t count, float deviation = 1) const;
  std::vector<std::uint16_t> bf16(std::size_t count, float deviation) const;

  // The backend's memory with: these values; normal fp16 values; normal fp32 values; NaN.
  Buffer upload(std::span<const float> values);
  Buffer random_fp16(std::size_t bytes);
  Buffer random_floats(std::size_t count);
  Buffer poisoned(std::size_t count);
  std::vector<float> download(const Buffer& buffer, std::size_t count);

  // call(i) is the call that takes the i-th of the operands that there are, round and round.
  template <typename F>
  Times time(const F& call) {
    int at = 0;
    double launch = 1;
    const auto series = [&](int calls) {
      const Stopwatch watch;
      for (int i = 0; i < calls; ++i) call(at++);
      launch = std::min(launch, watch.seconds() / calls);
      backend_->synchronize();
      return watch.seconds() / calls;
    };
    series(4);
    const int calls = std::clamp(static_cast<int>(kSeriesSeconds / series(8)), 4, kMaxCalls);
    std::vector<double> seconds(kSeries);
    for (double& each : seconds) each = series(calls);
    std::sort(seconds.begin(), seconds.end());
    return {seconds[kSeries / 2], seconds.front(), seconds.back(), launch};
  }

 private:
  static constexpr int kSeries = 9;
  static constexpr double kSeriesSeconds = 0.004;
  static constexpr int kMaxCalls = 250;  // fewer launches than wait for a GPU before the host does

  Buffer repeated(std::span<const std::byte> block, std::size_t bytes);
  double measure_copy();

  std::unique_ptr<Backend> backend_, reference_;
  std::vector<float> normal_;
  double copy_bandwidth_ = 0;
};

// ||a - b|| / ||b||; NaN if there is one in either.
double relative_error(std::span<const float> a, std::span<const float> b);
// 0 if both have the same bits, else infinity.
double bit_error(std::span<const float> a, std::span<const float> b);

inline constexpr int kMostRows = 160;  // of activations

struct GpuBenchOptions {
  std::vector<int> tokens;  // of attention: multiples of the page size
  std::vector<int> prefill_tokens;
  std::vector<std::string> weights;   // of measure_linear(); none: all
  std::vector<std::string> matrices;  // the same
  std::vector<int> rows;              // of activations, from 1 to kMostRows
  Baselines baselines;
};
std::vector<std::string> weight_readings(), matrix_names();
void measure_attention(GpuLab& lab, const GpuBenchOptions& options, Results& results);
void measure_batches(GpuLab& lab, Results& results);  // of attention
void measure_linear(GpuLab& lab, const GpuBenchOptions& options, Results& results);
void measure_prefill(GpuLab& lab, const GpuBenchOptions& options, Results& results);

}  // namespace quantspec
