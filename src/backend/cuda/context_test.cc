// Which parts of a context a rank has, without a GPU.
#include "backend/cuda/context.h"

#include <gtest/gtest.h>

#include "backend/cuda/ops.h"
#include "base/expect_error.h"

namespace quantspec::cuda {
namespace {

// One GPU attends to 8 KV heads in 16 parts each, to 4 in 33.
TEST(CudaContextOnHost, RanksShareWholePartsOfAContext) {
  require_supported({1, 8, 128, 128, /*context_ranks=*/2});
  expect_error(ErrorKind::kInvalidRequest, {"2", "32, 64 or 128 tokens", "256"}, [] {
    require_supported({1, 8, 128, 256, /*context_ranks=*/2});
  });
  require_shared({1, 8, 128, 128, /*context_ranks=*/8}, 1, 132);
  require_shared({1, 4, 128, 128, /*context_ranks=*/4}, 2, 132);
  expect_error(ErrorKind::kInvalidRequest, {"4 KV heads in 33 parts", "context 1 works"}, [] {
    require_shared({1, 4, 128, 128, /*context_ranks=*/2}, 1, 132);
  });
  expect_error(ErrorKind::kInvalidRequest, {"2 KV heads in 66 parts", "context 2 works"}, [] {
    require_shared({1, 1, 128, 128, /*context_ranks=*/4}, 2, 132);
  });
}

// Ranks take turns at what a split takes turns at: pairs of bands.
TEST(CudaContextOnHost, SplitsAreOfTheirRanksPages) {
  for (const int page_size : {32, 64, 128}) {
    KvShape shape{3, 2, 128, page_size, /*context_ranks=*/4};
    const int splits = 16, band = page_size == 32 ? 32 : 64;
    for (int page = 0; page < 200; ++page) {
      for (int unit = 0; unit < 6; ++unit) {
        const int split = page * page_size / band / 2 % splits;
        int owners = 0;
        for (shape.context_rank = 0; shape.context_rank < 4; ++shape.context_rank) {
          const bool has = has_unit_of_page(shape, page, unit / 2, unit % 2);
          EXPECT_EQ(has, split % 4 == first_split(shape.context_rank, unit, 4)) << page;
          owners += has;
        }
        EXPECT_EQ(owners, 1);
      }
    }
  }
}

}  // namespace
}  // namespace quantspec::cuda
