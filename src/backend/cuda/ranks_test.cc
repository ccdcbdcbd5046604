#include "backend/cuda/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "backend/cuda/ranks_test_support.h"
#include "base/clock.h"
#include "base/expect_error.h"

namespace quantspec::cuda {
namespace {

// Before CUDA begins: as many ranks on a GPU as tests have.
const int kQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);

class CudaRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(0); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
  // Calls f as each of the ranks, in threads, of which what fails says why; on one GPU, or each on
  // one of its own.
  using AsRank = std::function<void(const Rank&)>;
  static void run(int size, const AsRank& f, bool on_one = true,
                  std::chrono::milliseconds patience = SharedRanks::kPatience) {
    SharedRanks shared(size);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        EXPECT_NO_THROW(as_rank(shared, rank, [&](Communicator& all) {
          Device device(on_one ? 0 : rank);
          const CurrentGpu current(device.gpu());
          Ranks ranks(device, all, {}, patience);
          device.set_ranks(&ranks);
          try {
            f({device, ranks, all});
          } catch (...) {
            device.set_ranks(nullptr);
            throw;
          }
          device.set_ranks(nullptr);
        }));
      });
    }
  }
  static void expect_sums(int size, bool on_one) { run(size, cuda::expect_sums, on_one); }
};

// As ranks are told of each other's.
TEST(CudaRanksOnHost, UnlikeGpusAreRefused) {
  const GpuKind h100{90, 132, 232448};
  const auto refused = [](const std::vector<GpuKind>& kinds, std::vector<std::string> mentions) {
    expect_error(ErrorKind::kDevice, mentions, [&] { require_alike(kinds); });
  };
  require_alike(std::vector(4, h100));
  refused({h100, h100, {80, 108, 166912}, h100}, {"ranks 0 and 2", "9.0 and 8.0", "132 and 108"});
  refused({h100, {90, 114, 232448}}, {"ranks 0 and 1", "132 and 114 multiprocessors", "one kind"});
  refused({h100, {90, 132, 101376}}, {"232448 and 101376 bytes"});
}

TEST_F(CudaRanks, SumsAreATree) {
  for (const int size : {2, 4, 8}) expect_sums(size, true);
}

TEST_F(CudaRanks, SumsAreATreeAcrossGpus) {
  const int gpus = static_cast<int>(gpu_names().size());
  if (gpus < 2) GTEST_SKIP() << "one GPU: nothing to reach";
  for (const int size : {2, 4, 8}) {
    if (size <= gpus) expect_sums(size, false);
  }
}

// More than a step has room for, too.
TEST_F(CudaRanks, LogitsAreSideBySide) {
  run(4, [](const Rank& rank) {
    for (const auto& [rows, outputs] : {std::pair{1, 24}, {3, 17}, {17, 16032}, {40, 32064}}) {
      const std::size_t count = static_cast<std::size_t>(rows) * outputs;
      std::vector<Floats> own;
      for (int i = 0; i < 4; ++i) own.push_back(random_floats(count, 10 + i));
      Buffer from = rank.upload(own[rank.index()]);
      Buffer to = rank.device.allocate(4 * sizeof(float) * count);
      Floats expected;
      for (int row = 0; row < rows; ++row) {
        for (const Floats& of_rank : own) {
          expected.insert(expected.end(), of_rank.begin() + row * outputs,
                          of_rank.begin() + (row + 1) * outputs);
        }
      }
      for (int step = 0; step < 3; ++step) {
        rank.ranks.gather(from.as<float>(), rows, outputs, to.as<float>());
        ASSERT_EQ(expected, rank.download(to, 4 * count)) << rows << " rows of " << outputs;
      }
    }
  });
}

TEST_F(CudaRanks, GraphsRepeatThem) { run(4, expect_repeated_sums); }

TEST_F(CudaRanks, WhoDoesNotComeIsAnErrorWithinThePatience) {
  std::latch done(2);
  run(
      2,
      [&](const Rank& rank) {
        Buffer own = rank.upload(random_floats(4096, 1)), x = rank.upload(random_floats(4096, 2));
        rank.ranks.meet();
        if (rank.index() == 0) {
          const Stopwatch watch;
          launch_alone(rank, own, x);
          for (int i = 0; i < 2; ++i) {  // and from then on
            expect_error(ErrorKind::kDevice,
                         {"the ranks of this model stopped: rank 1", "did not come within 300 ms"},
                         [&] { rank.device.synchronize(); });
            launch_alone(rank, own, x);
          }
          EXPECT_LT(watch.milliseconds(), 3000);
        }
        done.arrive_and_wait();
      },
      true, std::chrono::milliseconds(300));
}

TEST_F(CudaRanks, WhoLeavesIsWaitedForNoLonger) {
  run(2, [](const Rank& rank) {
    if (rank.index() == 1) {  // with no memory, as giving it back waits for the GPU
      rank.ranks.meet();
      return;
    }
    Buffer own = rank.upload(random_floats(4096, 1)), x = rank.upload(random_floats(4096, 2));
    rank.ranks.meet();
    const Stopwatch watch;
    launch_alone(rank, own, x);
    expect_error(ErrorKind::kDevice, {"the ranks of this model stopped: rank 1 has left"},
                 [&] { rank.device.synchronize(); });
    EXPECT_LT(watch.milliseconds(), 3000);
  });
}

// Only the host knows that a rank fails; its backend leaves, and who waits for it hears why.
TEST_F(CudaRanks, WhatFailsAtOneEndsAll) {
  SharedRanks shared(2);
  std::vector<std::jthread> threads;
  for (int index = 0; index < 2; ++index) {
    threads.emplace_back([&, index] {
      expect_error(index == 0 ? ErrorKind::kDevice : ErrorKind::kInvalidRequest,
                   {index == 0 ? "the ranks of this model stopped" : "out of luck"}, [&] {
                     as_rank(shared, index, [&](Communicator& all) {
                       const auto backend = make_cuda_backend(0, 1, &all);
                       all.barrier();
                       if (index == 1) fail(ErrorKind::kInvalidRequest, "out of luck");
                       all.barrier();
                     });
                   });
    });
  }
}

TEST_F(CudaRanks, NumbersThatCannotShareAreRefused) {
  SharedRanks shared(3);
  std::vector<std::jthread> threads;
  for (int index = 0; index < 3; ++index) {
    threads.emplace_back([&, index] {
      expect_error(ErrorKind::kInvalidRequest, {"3 ranks", "2, 4 or 8"}, [&] {
        const std::unique_ptr<Communicator> all = shared.join(index);
        make_cuda_backend(0, 1, all.get());
      });
    });
  }
}

}  // namespace
}  // namespace quantspec::cuda
