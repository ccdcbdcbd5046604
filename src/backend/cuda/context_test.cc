// Which parts of a context a rank has, without a GPU.
#include "backend/cuda/context.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "backend/cuda/ops.h"
#include "base/expect_error.h"

namespace quantspec::cuda {
namespace {

TEST(CudaContextOnHost, RanksShareWholePages) {
  require_supported({1, 8, 128, 128, /*context_ranks=*/2});
  expect_error(ErrorKind::kInvalidRequest, {"2", "32, 64 or 128 tokens", "256"}, [] {
    require_supported({1, 8, 128, 256, /*context_ranks=*/2});
  });
}

// One GPU's numbers of splits: 16 of 8 KV heads, 33 of 4, 5 of 26, where it has 132
// multiprocessors; and fewer than there are ranks.
constexpr int kSplits[] = {16, 33, 5, 132, 3, 1};

// Every split is of one rank, and ranks have as many of a unit but for one.
TEST(CudaContextOnHost, RanksShareAnyNumberOfSplits) {
  for (const int targets : kSplits) {
    for (const int ranks : {2, 4, 8}) {
      for (const int each : {1, 2}) {  // a target's, a draft's
        const RankSplits splits{targets, each, ranks};
        for (int unit = 0; unit < 2 * ranks; ++unit) {
          SCOPED_TRACE(testing::Message() << targets << " for " << ranks << ", unit " << unit);
          std::vector<int> owners(splits.all());
          for (int rank = 0; rank < ranks; ++rank) {
            int own = 0;
            for (int place = 0; place < splits.places(); ++place) {
              const int split = splits.in_place(place, first_split(rank, unit, ranks));
              if (split == splits.all()) continue;
              ++owners.at(split);
              ++own;
            }
            EXPECT_GE(own, targets / ranks * each);
            EXPECT_LE(own, (targets + ranks - 1) / ranks * each);
          }
          EXPECT_EQ(owners, std::vector<int>(splits.all(), 1));
        }
      }
    }
  }
}

// Ranks take turns at what splits take turns at: pairs of bands. And each has as many units of a
// page as another, if not one more or less.
TEST(CudaContextOnHost, SplitsAreOfTheirRanksPages) {
  constexpr int kRanks = 4, kUnits = 6;
  for (const int page_size : {32, 64, 128}) {
    for (const int targets : kSplits) {
      KvShape shape{3, 2, 128, page_size, kRanks};
      const int band = page_size == 32 ? 32 : 64;
      for (int page = 0; page < 600; ++page) {
        std::map<int, int> units;  // by rank
        for (int unit = 0; unit < kUnits; ++unit) {
          for (shape.context_rank = 0; shape.context_rank < kRanks; ++shape.context_rank) {
            const bool has = has_unit_of_page(shape, targets, page, unit / 2, unit % 2);
            units[shape.context_rank] += has;
            for (const int each : {1, 2}) {
              const RankSplits splits{targets, each, kRanks};
              const int reads = page * page_size / band / 2 % splits.all();
              bool own = false;
              for (int place = 0; place < splits.places(); ++place) {
                own |=
                    splits.in_place(place, first_split(shape.context_rank, unit, kRanks)) == reads;
              }
              ASSERT_EQ(has, own) << page << " of " << targets << " splits";
            }
          }
        }
        int all = 0;
        for (const auto& [rank, count] : units) {
          EXPECT_LE(count, static_cast<int>(shape.units()));
          EXPECT_GE(count, kUnits / kRanks);
          all += count;
        }
        EXPECT_EQ(all, kUnits);
      }
    }
  }
}

}  // namespace
}  // namespace quantspec::cuda
