// For tests: what ranks on GPUs do to see that they have each other's sums, whether they are
// threads or processes.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/ranks.h"
#include "base/buffer.h"

namespace quantspec::cuda {

using Floats = std::vector<float>;

// What a rank has.
struct Rank {
  Device& device;
  Ranks& ranks;
  Communicator& all;

  int index() const { return ranks.rank(); }
  Buffer upload(const Floats& values) const {
    Buffer buffer = device.allocate(sizeof(float) * (values.size() + 3));
    device.upload(buffer.data(), values.data(), sizeof(float) * values.size());
    return buffer;
  }
  Floats download(const Buffer& buffer, std::size_t count) const {
    Floats values(count);
    device.download(values.data(), buffer.data(), sizeof(float) * count);
    return values;
  }
};

// Normal values, some of them zeros of either sign.
inline Floats random_floats(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) {
    const unsigned kind = rng() % 64;
    value = kind == 0 ? 0.0f : kind == 1 ? -0.0f : normal(rng);
  }
  return values;
}

// x + bias + the ranks' sums, as documented.
inline Floats expected_sums(const std::vector<Floats>& sums, const Floats& bias, const Floats& x) {
  Floats result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::vector<float> parts;
    for (const Floats& of_rank : sums) parts.push_back(of_rank[i] + 0.0f);
    for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
      for (std::size_t k = 0; k < parts.size() / 2; ++k) {
        parts[k] = parts[2 * k] + parts[2 * k + 1];
      }
    }
    result[i] = parts[0] + ((bias.empty() ? 0.0f : bias[i % bias.size()]) + x[i]);
  }
  return result;
}

// Many steps of all numbers of rows, with and without a bias.
inline void expect_sums(const Rank& rank) {
  const int size = rank.ranks.size();
  for (const int outputs : {4096, 48, 51}) {
    for (int rows = 1; rows <= 17; ++rows) {
      const std::size_t count = static_cast<std::size_t>(rows) * outputs;
      std::vector<Floats> sums;
      for (int i = 0; i < size; ++i) sums.push_back(random_floats(count, 100 * rows + i));
      Floats x = random_floats(count, 7);
      const Floats bias = random_floats(outputs, 8);
      Buffer own = rank.upload(sums[rank.index()]), there = rank.upload(x);
      const Buffer biases = rank.upload(bias);
      for (int step = 0; step < 3; ++step) {
        const bool biased = step % 2 == 0;
        rank.ranks.add_sums(own.as<float>(), biased ? biases.as<float>() : nullptr, rows, outputs,
                            there.as<float>());
        x = expected_sums(sums, biased ? bias : Floats(), x);
      }
      ASSERT_EQ(x, rank.download(there, count)) << rows << " rows of " << outputs;
    }
  }
}

// A graph of some ops, for which f issues them.
template <typename F>
cudaGraphExec_t captured(const Rank& rank, const F& f) {
  QUANTSPEC_CUDA(cudaStreamBeginCapture(rank.device.stream(), cudaStreamCaptureModeThreadLocal));
  f();
  cudaGraph_t graph = nullptr;
  QUANTSPEC_CUDA(cudaStreamEndCapture(rank.device.stream(), &graph));
  cudaGraphExec_t executable = nullptr;
  QUANTSPEC_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  QUANTSPEC_CUDA(cudaGraphDestroy(graph));
  return executable;
}

// An odd number of steps, so that replays take their places by turns.
inline void expect_repeated_sums(const Rank& rank) {
  constexpr int kRows = 5, kOutputs = 4096, kReplays = 50;
  const int size = rank.ranks.size();
  constexpr std::size_t kCount = std::size_t{kRows} * kOutputs;
  const int steps = 3;
  std::vector<std::vector<Floats>> sums(steps);  // of a step, by rank
  std::vector<Buffer> own;
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < size; ++i)
      sums[step].push_back(random_floats(kCount, 20 + size * step + i));
    own.push_back(rank.upload(sums[step][rank.index()]));
  }
  Floats x = random_floats(kCount, 3);
  Buffer there = rank.upload(x);
  const auto add = [&](int step) {
    rank.ranks.add_sums(own[step].as<float>(), nullptr, kRows, kOutputs, there.as<float>());
  };
  rank.ranks.meet();  // nobody takes memory while others capture
  const cudaGraphExec_t graph = captured(rank, [&] {
    for (int step = 0; step < steps; ++step) add(step);
  });
  rank.ranks.meet();
  for (int replay = 0; replay < kReplays; ++replay) {
    ASSERT_TRUE(rank.ranks.at_all(true));
    QUANTSPEC_CUDA(cudaGraphLaunch(graph, rank.device.stream()));
    rank.ranks.meet();
    for (const std::vector<Floats>& of_step : sums) x = expected_sums(of_step, {}, x);
    if (replay % 7 != 0) continue;
    add(0);  // by itself, in between
    x = expected_sums(sums[0], {}, x);
  }
  EXPECT_EQ(x, rank.download(there, kCount));
  QUANTSPEC_CUDA(cudaGraphExecDestroy(graph));
}

// Rank 0 launches a graph, in which no host waits for another.
inline void launch_alone(const Rank& rank, Buffer& own, Buffer& x) {
  const cudaGraphExec_t graph = captured(
      rank, [&] { rank.ranks.add_sums(own.as<float>(), nullptr, 1, 4096, x.as<float>()); });
  QUANTSPEC_CUDA(cudaGraphLaunch(graph, rank.device.stream()));
  QUANTSPEC_CUDA(cudaGraphExecDestroy(graph));
}

}  // namespace quantspec::cuda
