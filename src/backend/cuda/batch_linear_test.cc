#include "backend/cuda/batch_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <utility>

namespace quantspec::cuda {

void PrintTo(const BatchSharing& s, std::ostream* out) {
  *out << "{" << s.run << ", " << s.items << ", " << s.blocks << "}";
}

namespace {

constexpr int kSms = 132;  // of an H100

// Of Llama 2 7B and Llama 3.1 8B: o and down, qkv, gate and up, head.
TEST(CudaBatchSharingOnHost, IsThatOfMeasurements) {
  struct {
    int block_tiles, product_time, outputs;
    BatchSharing expected;
  } const cases[] = {
      {8, 5, 4096, {.run = 2, .items = 128, .blocks = 128}},
      {8, 5, 6144, {.run = 4, .items = 96, .blocks = 96}},
      {8, 5, 12288, {.run = 8, .items = 96, .blocks = 96}},
      {8, 5, 28672, {.run = 8, .items = 224, .blocks = 112}},
      {8, 5, 22016, {.run = 8, .items = 172, .blocks = 86}},
      {8, 5, 128256, {.run = 8, .items = 1002, .blocks = 126}},
      // Two tiles of a warp.
      {16, 5, 4096, {.run = 1, .items = 128, .blocks = 128}},
      {16, 5, 6144, {.run = 2, .items = 96, .blocks = 96}},
      {16, 5, 28672, {.run = 8, .items = 112, .blocks = 112}},
      {16, 5, 128256, {.run = 8, .items = 501, .blocks = 126}},
      // bf16, 64 rows and more.
      {8, 7, 28672, {.run = 8, .items = 224, .blocks = 112}},
      {8, 7, 22016, {.run = 4, .items = 344, .blocks = 115}},
      {8, 8, 4096, {.run = 2, .items = 128, .blocks = 128}},
      {8, 8, 6144, {.run = 1, .items = 384, .blocks = 128}},
      {8, 8, 12288, {.run = 2, .items = 384, .blocks = 128}},
      {8, 8, 28672, {.run = 8, .items = 224, .blocks = 112}},
      {8, 8, 22016, {.run = 4, .items = 344, .blocks = 115}},
      {8, 8, 128256, {.run = 8, .items = 1002, .blocks = 126}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(share_out_batch(kSms, row_tiles(c.outputs), c.block_tiles, c.product_time),
              c.expected)
        << c.outputs << " outputs, blocks of " << c.block_tiles << ", " << c.product_time;
  }
}

TEST(CudaBatchSharingOnHost, CoversEveryMatrixOnEveryGpu) {
  for (const auto& [block_tiles, product_time] : {std::pair{8, 5}, {8, 7}, {8, 8}, {16, 5}}) {
    for (const int sms : {1, 20, 114, 132, 144}) {
      for (int tiles = 1; tiles < 3000; tiles += 7) {
        SCOPED_TRACE(testing::Message() << tiles << " tiles by " << block_tiles << ", " << sms);
        const BatchSharing sharing = share_out_batch(sms, tiles, block_tiles, product_time);
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
    return least_batch_rows_of_planes(timed_tuning(90), row_tiles(outputs),
                                      divide_up(inputs, kBandInputs));
  };
  EXPECT_EQ(least(4096, 4096), 9);    // o
  EXPECT_EQ(least(6144, 4096), 9);    // 8B qkv
  EXPECT_EQ(least(4096, 14336), 5);   // 8B down
  EXPECT_EQ(least(28672, 4096), 5);   // 8B gate, up
  EXPECT_EQ(least(128256, 4096), 5);  // 8B head
}

TEST(CudaBatchRowsOnHost, OfBf16AreFewerWhereMatricesAreLarge) {
  const auto least = [](int outputs, int inputs) {
    return least_batch_rows(timed_tuning(90), row_tiles(outputs), divide_up(inputs, kBandInputs));
  };
  EXPECT_EQ(least(4096, 4096), 17);    // o
  EXPECT_EQ(least(4096, 14336), 17);   // 8B down
  EXPECT_EQ(least(28672, 4096), 12);   // 8B gate, up
  EXPECT_EQ(least(128256, 4096), 12);  // 8B head
}

TEST(CudaBatchRowsOnHost, OfCodesAreAllButThoseOfTheOtherKernel) {
  const auto batched = [](int rows, int inputs) {
    return batches_codes(timed_tuning(90), rows, divide_up(inputs, kBandInputs));
  };
  for (const int rows : {0, 1, 8}) EXPECT_FALSE(batched(rows, 14336)) << rows;
  for (const int rows : {9, 16, 18, 32}) EXPECT_TRUE(batched(rows, 4096)) << rows;
  EXPECT_FALSE(batched(17, 4096));
  EXPECT_TRUE(batched(17, 11008));
}

}  // namespace
}  // namespace quantspec::cuda
