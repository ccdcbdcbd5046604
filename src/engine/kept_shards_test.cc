#include "engine/kept_shards.h"

#include <gtest/gtest.h>

#include <thread>

#include "backend/backend.h"
#include "backend/params/context.h"

namespace quantspec {
namespace {

constexpr KvShape kWhole{.num_layers = 3, .num_kv_heads = 2, .head_dim = 16, .page_size = 16};

// Of a file, as one rank would have it, of so many pages: no two units alike.
std::vector<std::byte> made(std::size_t bytes) {
  std::vector<std::byte> file(bytes);
  for (std::size_t i = 0; i < bytes; ++i) file[i] = static_cast<std::byte>(i * 7 + i / 251 * 13);
  return file;
}

struct Sharing {
  int ranks, context_ranks;
  const char* backend = "reference";
};

KvShape shape_of(const Sharing& sharing, int rank) {
  KvShape shape = kWhole;
  shape.num_kv_heads /= sharing.ranks / sharing.context_ranks;
  shape.context_ranks = sharing.context_ranks;
  shape.context_rank = rank % sharing.context_ranks;
  return shape;
}

class KeptShardsOf : public ::testing::TestWithParam<Sharing> {
 protected:
  void SetUp() override {
    if (on_gpu() && !cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
    ops = make_backend({.name = GetParam().backend});
  }
  static bool on_gpu() { return GetParam().backend == std::string("cuda"); }

  // Every rank gets its share of a file, which ops are to find in it, and gives it for another one.
  template <typename Own, typename See>
  void there_and_back(const std::vector<std::byte>& file, const Own& own, const See& see) {
    const auto sharing = GetParam();
    SharedRanks ranks(sharing.ranks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < sharing.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        as_rank(ranks, rank, [&](Communicator& all) {
          const KvShape shape = shape_of(sharing, rank);
          const KeptShards shards(Agreement(&all), *ops, shape);
          EXPECT_EQ(shards.file_bytes(own(shape)), file.size());
          std::vector<std::byte> share, again(rank == 0 ? file.size() : 0);
          shards.scatter(own(shape), rank == 0 ? file : std::vector<std::byte>(),
                         [&](auto from) { share.assign(from.begin(), from.end()); });
          see(shape, rank / sharing.context_ranks, share);
          shards.gather(
              own(shape), [&](auto to) { std::ranges::copy(share, to.begin()); }, again);
          EXPECT_TRUE(rank != 0 || again == file);
        });
      });
    }
  }

  std::unique_ptr<Backend> ops;
};

// The first page where turns begin anew, or, where they never do, the next one begins.
int border(const KvOps& ops, const KvShape& shape) {
  constexpr int kFar = 5000;
  int next = 0;
  for (int page = 1; page < kFar; ++page) {
    const int before = ops.context_turn(shape, page - 1), turn = ops.context_turn(shape, page);
    if (turn < before) return page;
    if (turn > before && next == 0) next = page;
  }
  return next;
}

TEST_P(KeptShardsOf, PagesOfSeveralRuns) {
  const std::size_t count = 5, upper = kWhole.upper_unit_bytes(), lower = kWhole.lower_unit_bytes();
  const std::size_t first = border(*ops, shape_of(GetParam(), 0)) - 2;
  const std::size_t page = kWhole.units() * (upper + lower);
  const std::vector<std::byte> file = made(count * page);
  const auto own = [&](const KvShape& shape) {
    return KeptShards::Pages{count * shape.units() * (upper + lower), first};
  };
  there_and_back(file, own, [&](const KvShape& shape, int group, const auto& share) {
    const std::size_t own_page = shape.units() * (upper + lower);
    for (std::size_t i = 0; i < count; ++i) {
      for (int layer = 0; layer < shape.num_layers; ++layer) {
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          // Where processors' ops write it; those of GPUs go by turns alone.
          const int at_page = static_cast<int>(first + i), turn = ops->context_turn(shape, at_page);
          const bool owns = on_gpu() ? rank_of_turn(shape, turn, layer, head) == shape.context_rank
                                     : has_unit(shape, at_page, layer, head);
          if (!owns) continue;
          const int whole_head = group * shape.num_kv_heads + head;
          const auto same = [&](std::size_t at, std::size_t in_file, std::size_t bytes) {
            return std::equal(share.begin() + i * own_page + at,
                              share.begin() + i * own_page + at + bytes,
                              file.begin() + i * page + in_file);
          };
          EXPECT_TRUE(same(own_upper_offset(shape, layer, head),
                           kWhole.upper_offset(layer, whole_head), upper));
          EXPECT_TRUE(same(shape.units() * upper + own_lower_offset(shape, layer, head),
                           kWhole.units() * upper + kWhole.lower_offset(layer, whole_head), lower));
        }
      }
    }
  });
}

// Ranks that share contexts have all of it, in the order of layers, strips and heads.
TEST_P(KeptShardsOf, FullKv) {
  const std::size_t layer = ops->full_kv_bytes(kWhole, 8);
  const std::vector<std::byte> file = made(kWhole.num_layers * layer);
  const auto own = [&](const KvShape& shape) {
    return KeptShards::AllFullKv{shape.num_layers * ops->full_kv_bytes(shape, 8)};
  };
  there_and_back(file, own, [&](const KvShape& shape, int group, const auto& share) {
    const std::size_t strips = shape.num_layers * ops->full_kv_strips();
    const std::size_t bytes = share.size() / strips;
    const std::size_t groups = kWhole.num_kv_heads / shape.num_kv_heads;
    for (std::size_t i = 0; i < strips; ++i) {
      EXPECT_TRUE(std::equal(share.begin() + i * bytes, share.begin() + (i + 1) * bytes,
                             file.begin() + (i * groups + group) * bytes));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, KeptShardsOf,
                         ::testing::Values(Sharing{2, 1}, Sharing{2, 2}, Sharing{4, 2},
                                           Sharing{4, 4}, Sharing{8, 4}, Sharing{8, 8},
                                           Sharing{2, 2, "cuda"}, Sharing{8, 4, "cuda"}));

}  // namespace
}  // namespace quantspec
