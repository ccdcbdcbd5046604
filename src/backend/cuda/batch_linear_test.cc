#include "backend/cuda/batch_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

namespace quantspec::cuda {

void PrintTo(const BatchSharing& s, std::ostream* out) {
  *out << "{" << s.run << ", " << s.items << ", " << s.blocks << "}";
}

namespace {

constexpr int kSms = 132;  // of an H100

// Of Llama 2 7B and Llama 3.1 8B.
TEST(CudaBatchSharingOnHost, IsThatOfMeasurements) {
  const auto share = [](int outputs) { return share_out_batch(kSms, row_tiles(outputs)); };
  EXPECT_EQ(share(4096), (BatchSharing{.run = 2, .items = 128, .blocks = 128}));     // o, down
  EXPECT_EQ(share(6144), (BatchSharing{.run = 4, .items = 96, .blocks = 96}));       // 8B qkv
  EXPECT_EQ(share(12288), (BatchSharing{.run = 8, .items = 96, .blocks = 96}));      // 7B qkv
  EXPECT_EQ(share(28672), (BatchSharing{.run = 8, .items = 224, .blocks = 112}));    // 8B gate, up
  EXPECT_EQ(share(22016), (BatchSharing{.run = 8, .items = 172, .blocks = 86}));     // 7B gate, up
  EXPECT_EQ(share(128256), (BatchSharing{.run = 8, .items = 1002, .blocks = 126}));  // 8B head
}

TEST(CudaBatchSharingOnHost, CoversEveryMatrixOnEveryGpu) {
  for (const int sms : {1, 20, 114, 132, 144}) {
    for (int tiles = 1; tiles < 3000; tiles += 7) {
      const BatchSharing sharing = share_out_batch(sms, tiles);
      ASSERT_EQ(sharing.run * sharing.nodes(), kSegments) << tiles << " tiles";
      ASSERT_EQ(sharing.items, divide_up(tiles, kBatchTiles) * sharing.nodes()) << tiles;
      ASSERT_GE(sharing.blocks, 1) << tiles;
      ASSERT_LE(sharing.blocks, std::min(sms, sharing.items)) << tiles;
    }
  }
}

TEST(CudaBatchRowsOnHost, AreFewerWhereRowsAreLong) {
  const auto least = [](bool both, int inputs) {
    return least_batch_rows(both, divide_up(inputs, kBandInputs));
  };
  EXPECT_EQ(least(false, 4096), kLeastBatchRows);
  EXPECT_EQ(least(true, 8192), kLeastBatchRows);
  EXPECT_EQ(least(false, 11008), 13);
  EXPECT_EQ(least(true, 14336), 9);
}

TEST(CudaBatchRowsOnHost, OfCodesAreAllButThoseOfTheOtherKernel) {
  const auto batched = [](int rows, int inputs) {
    return batches_codes(rows, divide_up(inputs, kBandInputs));
  };
  for (const int rows : {0, 1, 8}) EXPECT_FALSE(batched(rows, 14336)) << rows;
  for (const int rows : {9, 16, 18, 32}) EXPECT_TRUE(batched(rows, 4096)) << rows;
  EXPECT_FALSE(batched(17, 4096));
  EXPECT_TRUE(batched(17, 11008));
}

}  // namespace
}  // namespace quantspec::cuda
