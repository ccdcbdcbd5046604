// What attention takes of scratch memory is what the memory plan has for it, to the byte.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/ranks.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"

namespace quantspec::cuda {
namespace {

constexpr int kMostRows = 17, kSequences = 3, kCapacity = 64;
// Which kernel batches have follows from how long they are, too; a ring's tokens come again and
// again.
constexpr int kShort = kCapacity - kMostRows, kLong = 200000;

struct Case {
  int heads, kv_heads, head_dim, page_size;
  int mass_pages = 0;
  RankGroups groups = {};
};

// All passes that the plan is for, over what a ring has: scratch memory follows from shapes alone.
void attend(Device& device, const Case& c, const KvShape& shape) {
  const std::size_t values = full_kv_index(shape, kCapacity, shape.num_kv_heads, 0, 0);
  Buffer kv = device.allocate(values * sizeof(std::uint16_t));
  const int rows = kSequences * kMostRows, heads = c.heads;
  const std::size_t width = static_cast<std::size_t>(heads) * c.head_dim;
  Buffer q = device.allocate(rows * width * sizeof(float));
  Buffer out = device.allocate(rows * width * sizeof(float));
  Buffer mass = device.allocate(sizeof(float) * shape.num_kv_heads * (c.mass_pages + 1));
  const auto run = [&](KvRead read, int before, bool all_full = false) {
    for (int of_each = 1; of_each <= (read == KvRead::kUpper ? 1 : kMostRows); ++of_each) {
      KvView view{.full = {kv.data(), kCapacity}, .read = read};
      view.all_full = all_full;
      if (read == KvRead::kBoth && c.mass_pages > 0) {
        view.page_mass = {mass.as<float>(), c.mass_pages};
      }
      std::vector<SequenceRows> sequences;
      for (int i = 0; i < kSequences; ++i) {
        sequences.push_back({i * of_each, of_each, before, view});
      }
      attention(device, {q.as<float>(), out.as<float>(), heads, shape, 0.1f, sequences});
    }
  };
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) run(read, kShort);
  if (shape.context_ranks == 1) {
    for (const bool all_full : {false, true}) run(KvRead::kBoth, kLong, all_full);
  }
  device.synchronize();
}

void expect_planned(Device& device, const Case& c, const KvShape& shape,
                    const RankSharing& sharing) {
  const PassSizes sizes{.sequences = kSequences,
                        .rows = kMostRows,
                        .queries = c.heads * c.head_dim,
                        .ranks = sharing.shares(),
                        .shape = shape,
                        .mass_pages = c.mass_pages};
  const AttentionScratch planned = attention_scratch(device, sizes, sharing);
  EXPECT_EQ(device.scratch_bytes(Scratch::kAttention), planned.results);
  EXPECT_EQ(device.scratch_bytes(Scratch::kCounters), planned.counters);
}

class CudaAttentionScratch : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(0); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};

TEST_F(CudaAttentionScratch, IsWhatThePlanHas) {
  for (const Case& c :
       {Case{8, 2, 64, 64}, Case{32, 8, 128, 128, 7}, Case{32, 8, 128, 128}, Case{28, 4, 128, 128},
        Case{4, 1, 256, 32, 100}, Case{8, 8, 96, 256}, Case{8, 4, 80, 64}}) {
    Device device(0);
    const CurrentGpu current(device.gpu());
    const KvShape shape{1, c.kv_heads, c.head_dim, c.page_size};
    attend(device, c, shape);
    expect_planned(device, c, shape, {});
  }
}

// As ranks on one GPU, of which each has the queries of its share.
TEST_F(CudaAttentionScratch, OfRanksThatShareContextsToo) {
  constexpr int kRanks = 2;
  for (const Case& c : {Case{16, 8, 128, 128, 0, {2, 1}}, Case{14, 4, 128, 128, 0, {2, 1}},
                        Case{8, 2, 64, 64, 0, {2, 2}}}) {
    SharedRanks shared(kRanks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        EXPECT_NO_THROW(as_rank(shared, rank, [&](Communicator& all) {
          Device device(0);
          const CurrentGpu current(device.gpu());
          Ranks ranks(device, all, c.groups);
          device.set_ranks(&ranks);
          const KvShape shape{1, c.kv_heads, c.head_dim, c.page_size, kRanks, rank};
          attend(device, c, shape);
          expect_planned(device, c, shape, ranks.sharing());
          device.set_ranks(nullptr);
        }));
      });
    }
  }
}

// What a rank's mailbox takes, of whom it tells something: all; or these and those of a context,
// and of those one of each share.
TEST(CudaRankBytesOnHost, AreOfEachCircle) {
  EXPECT_EQ(Ranks::bytes({1, {}}), 0u);
  const auto of = [](std::initializer_list<int> circles) {
    std::size_t bytes = sizeof(RankCounts);
    for (const int size : circles) bytes += inbox_bytes(size);
    return bytes;
  };
  EXPECT_EQ(Ranks::bytes({2, {}}), of({2}));
  EXPECT_EQ(Ranks::bytes({4, {2, 1}}), of({4, 2}));
  EXPECT_EQ(Ranks::bytes({8, {4, 2}}), of({8, 4, 4, 2}));
  EXPECT_EQ(Ranks::bytes({8, {8, 8}}), of({8}));
}

}  // namespace
}  // namespace quantspec::cuda
