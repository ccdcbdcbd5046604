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
  const auto share = [](int outputs) { return share_out_batch(kSms, row_tiles(outputs), 8); };
  EXPECT_EQ(share(4096), (BatchSharing{.run = 2, .items = 128, .blocks = 128}));     // o, down
  EXPECT_EQ(share(6144), (BatchSharing{.run = 4, .items = 96, .blocks = 96}));       // 8B qkv
  EXPECT_EQ(share(12288), (BatchSharing{.run = 8, .items = 96, .blocks = 96}));      // 7B qkv
  EXPECT_EQ(share(28672), (BatchSharing{.run = 8, .items = 224, .blocks = 112}));    // 8B gate, up
  EXPECT_EQ(share(22016), (BatchSharing{.run = 8, .items = 172, .blocks = 86}));     // 7B gate, up
  EXPECT_EQ(share(128256), (BatchSharing{.run = 8, .items = 1002, .blocks = 126}));  // 8B head
  const auto share_wide = [](int outputs) { return share_out_batch(kSms, row_tiles(outputs), 16); };
  EXPECT_EQ(share_wide(4096), (BatchSharing{.run = 1, .items = 128, .blocks = 128}));
  EXPECT_EQ(share_wide(6144), (BatchSharing{.run = 2, .items = 96, .blocks = 96}));
  EXPECT_EQ(share_wide(28672), (BatchSharing{.run = 8, .items = 112, .blocks = 112}));
  EXPECT_EQ(share_wide(128256), (BatchSharing{.run = 8, .items = 501, .blocks = 126}));
}

TEST(CudaBatchSharingOnHost, CoversEveryMatrixOnEveryGpu) {
  for (const int block_tiles : {8, 16}) {
    for (const int sms : {1, 20, 114, 132, 144}) {
      for (int tiles = 1; tiles < 3000; tiles += 7) {
        SCOPED_TRACE(testing::Message() << tiles << " tiles by " << block_tiles << ", " << sms);
        const BatchSharing sharing = share_out_batch(sms, tiles, block_tiles);
        ASSERT_EQ(sharing.run * sharing.nodes(), kSegments);
        ASSERT_EQ(sharing.items, divide_up(tiles, block_tiles) * sharing.nodes());
        ASSERT_GE(sharing.blocks, 1);
        ASSERT_LE(sharing.blocks, std::min(sms, sharing.items));
      }
    }
  }
}

TEST(CudaBatchRowsOnHost, AreFewerWhereMatricesAreLarge) {
  const auto least = [](int outputs, int inputs) {
    return least_batch_rows(row_tiles(outputs), divide_up(inputs, kBandInputs));
  };
  EXPECT_EQ(least(4096, 4096), 9);    // o
  EXPECT_EQ(least(6144, 4096), 9);    // 8B qkv
  EXPECT_EQ(least(4096, 14336), 5);   // 8B down
  EXPECT_EQ(least(28672, 4096), 5);   // 8B gate, up
  EXPECT_EQ(least(128256, 4096), 5);  // 8B head
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
