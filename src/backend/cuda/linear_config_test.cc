#include "backend/cuda/linear_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>

namespace quantspec::cuda {
namespace {

const LinearMachine kH200{90, 132, 232448, timed_tuning(90)};
const LinearMachine kA100{80, 108, 166912, timed_tuning(90)};

constexpr LinearSizes kDraft = plane_sizes(false, 128, 2, 2);
constexpr LinearSizes kBoth = plane_sizes(true, 128, 2, 1);
constexpr LinearSizes kBothMany = plane_sizes(true, 128, 1, 1);
// Of GGUF's types: Q4_K's, and Q8_0's, of one row; and of more.
constexpr CodedKind kQ4K{0, 32, true, true, false}, kQ80{4, 32, false, false, false};
constexpr LinearSizes kCodes4 = coded_sizes(kQ4K, 2), kCodes4Many = coded_sizes(kQ4K, 1);
constexpr LinearSizes kCodes8 = coded_sizes(kQ80, 2), kCodes8Many = coded_sizes(kQ80, 1);
constexpr LinearSizes kHalf = kHalfSizes;
constexpr LinearSizes kFp32 = kFp32Sizes;

constexpr LinearShape shape(LinearOp op, int inputs, std::array<int, kMaxSources> outputs) {
  for (int& rows : outputs) rows = row_tiles(rows);
  return {.op = op,
          .num_rows = 1,
          .bands = divide_up(inputs, kBandInputs),
          .tiles = outputs,
          .normed = op != LinearOp::kAdd,
          .heads_normed = false,
          .head_dim = op == LinearOp::kQkv ? 128 : 0};
}
// Llama 2 7B and Llama 3.1 8B, which have kOut in common.
constexpr LinearShape kQkv7B = shape(LinearOp::kQkv, 4096, {4096, 4096, 4096});
constexpr LinearShape kQkv8B = shape(LinearOp::kQkv, 4096, {4096, 1024, 1024});
constexpr LinearShape kOut = shape(LinearOp::kAdd, 4096, {4096});
constexpr LinearShape kGateUp7B = shape(LinearOp::kGateUp, 4096, {11008, 11008});
constexpr LinearShape kGateUp8B = shape(LinearOp::kGateUp, 4096, {14336, 14336});
constexpr LinearShape kDown7B = shape(LinearOp::kAdd, 11008, {4096});
constexpr LinearShape kDown8B = shape(LinearOp::kAdd, 14336, {4096});
constexpr LinearShape kHead7B = shape(LinearOp::kStore, 4096, {32000});
constexpr LinearShape kHead8B = shape(LinearOp::kStore, 4096, {128256});

struct Decision {
  int num_rows, row_warps, depth, buffers, row_blocks, shared_bytes;
  int early;  // stages; 0: activations are streamed
  bool operator==(const Decision&) const = default;
};
void PrintTo(const Decision& d, std::ostream* out) {
  *out << "{" << d.num_rows << ", " << d.row_warps << ", " << d.depth << ", " << d.buffers << ", "
       << d.row_blocks << ", " << d.shared_bytes << ", " << d.early << "}";
}
struct Case {
  LinearSizes format;
  LinearShape shape;
  int num_rows;
  Decision decision;
};
// What follows on an H200 from rules that were tuned there (the notes in linear_config.{h,cc}). Who
// changes a rule sees here which products it moves, and measures those.
constexpr Case kCases[] = {
    // clang-format off
    {kDraft, kQkv7B, 1, {1, 1, 3, 2, 384, 115568, 1}},
    {kDraft, kQkv7B, 4, {4, 1, 2, 2, 384, 113472, 1}},
    {kBoth, kQkv7B, 1, {1, 1, 3, 2, 384, 112496, 3}},
    {kBoth, kQkv7B, 5, {5, 1, 5, 2, 384, 223920, 3}},
    {kBothMany, kQkv7B, 17, {17, 8, 3, 2, 48, 106720, 3}},
    {kHalf, kQkv7B, 1, {1, 1, 5, 2, 384, 186400, 0}},
    {kHalf, kQkv7B, 17, {17, 1, 3, 1, 384, 226848, 0}},
    {kFp32, kQkv7B, 5, {5, 2, 5, 2, 192, 215760, 2}},
    {kDraft, kQkv8B, 1, {1, 1, 3, 2, 192, 115568, 1}},
    {kDraft, kQkv8B, 4, {4, 1, 2, 2, 192, 113472, 1}},
    {kBoth, kQkv8B, 1, {1, 1, 3, 2, 192, 112496, 3}},
    {kBoth, kQkv8B, 5, {5, 1, 5, 2, 192, 223920, 3}},
    {kBothMany, kQkv8B, 17, {17, 8, 3, 2, 24, 106720, 3}},
    {kHalf, kQkv8B, 1, {1, 1, 5, 2, 192, 186400, 0}},
    {kHalf, kQkv8B, 17, {17, 1, 3, 1, 192, 226848, 0}},
    {kFp32, kQkv8B, 5, {5, 2, 5, 2, 96, 215760, 2}},
    {kDraft, kOut, 1, {1, 1, 3, 2, 128, 115568, 1}},
    {kDraft, kOut, 4, {4, 2, 2, 2, 64, 96000, 1}},
    {kBoth, kOut, 1, {1, 1, 3, 2, 128, 112496, 3}},
    {kBoth, kOut, 5, {5, 2, 5, 2, 64, 202080, 3}},
    {kBothMany, kOut, 17, {17, 8, 3, 2, 16, 106720, 3}},
    {kHalf, kOut, 1, {1, 1, 5, 2, 128, 176160, 0}},
    {kHalf, kOut, 17, {17, 1, 3, 1, 128, 220704, 0}},
    {kFp32, kOut, 5, {5, 2, 5, 2, 64, 215760, 2}},
    {kDraft, kGateUp7B, 1, {1, 1, 3, 2, 688, 115568, 2}},
    {kDraft, kGateUp7B, 4, {4, 1, 2, 2, 688, 113472, 2}},
    {kBoth, kGateUp7B, 1, {1, 1, 3, 2, 688, 112496, 3}},
    {kBoth, kGateUp7B, 5, {5, 1, 5, 2, 688, 223920, 3}},
    {kBothMany, kGateUp7B, 17, {17, 8, 3, 2, 86, 106720, 3}},
    {kHalf, kGateUp7B, 1, {1, 1, 5, 2, 688, 186400, 0}},
    {kHalf, kGateUp7B, 17, {17, 1, 3, 1, 688, 226848, 0}},
    {kFp32, kGateUp7B, 5, {5, 8, 6, 2, 86, 217760, 3}},
    {kDraft, kGateUp8B, 1, {1, 1, 3, 2, 896, 115568, 2}},
    {kDraft, kGateUp8B, 4, {4, 1, 2, 2, 896, 113472, 2}},
    {kBoth, kGateUp8B, 1, {1, 1, 3, 2, 896, 112496, 3}},
    {kBoth, kGateUp8B, 5, {5, 1, 5, 2, 896, 223920, 3}},
    {kBothMany, kGateUp8B, 17, {17, 8, 3, 2, 112, 106720, 3}},
    {kHalf, kGateUp8B, 1, {1, 1, 5, 2, 896, 186400, 0}},
    {kHalf, kGateUp8B, 17, {17, 1, 3, 1, 896, 226848, 0}},
    {kFp32, kGateUp8B, 5, {5, 8, 6, 2, 112, 217760, 3}},
    {kDraft, kDown7B, 1, {1, 1, 5, 2, 128, 200016, 2}},
    {kDraft, kDown7B, 4, {4, 2, 5, 2, 64, 229952, 2}},
    {kBoth, kDown7B, 1, {1, 1, 6, 2, 128, 228752, 3}},
    {kBoth, kDown7B, 5, {5, 2, 4, 2, 64, 204864, 3}},
    {kBothMany, kDown7B, 17, {17, 8, 8, 2, 16, 223616, 3}},
    {kHalf, kDown7B, 1, {1, 1, 5, 2, 128, 176160, 0}},
    {kHalf, kDown7B, 17, {17, 1, 3, 1, 128, 220704, 0}},
    {kFp32, kDown7B, 5, {5, 2, 3, 2, 64, 219344, 1}},
    {kDraft, kDown8B, 1, {1, 1, 5, 2, 128, 207088, 4}},
    {kDraft, kDown8B, 4, {4, 2, 4, 2, 64, 209280, 2}},
    {kBoth, kDown8B, 1, {1, 1, 5, 2, 128, 201968, 3}},
    {kBoth, kDown8B, 5, {5, 2, 4, 2, 64, 222624, 3}},
    {kBothMany, kDown8B, 17, {17, 8, 6, 2, 16, 203840, 3}},
    {kHalf, kDown8B, 1, {1, 1, 5, 2, 128, 176160, 0}},
    {kHalf, kDown8B, 17, {17, 1, 3, 1, 128, 220704, 0}},
    {kFp32, kDown8B, 5, {5, 8, 5, 2, 16, 210592, 2}},
    {kDraft, kHead7B, 1, {1, 1, 3, 2, 1000, 115568, 2}},
    {kDraft, kHead7B, 4, {4, 1, 2, 2, 1000, 113472, 2}},
    {kBoth, kHead7B, 1, {1, 1, 3, 2, 1000, 112496, 3}},
    {kBoth, kHead7B, 5, {5, 1, 5, 2, 1000, 223920, 3}},
    {kBothMany, kHead7B, 17, {17, 8, 3, 2, 125, 106720, 3}},
    {kHalf, kHead7B, 1, {1, 1, 5, 2, 1000, 186400, 0}},
    {kHalf, kHead7B, 17, {17, 1, 3, 1, 1000, 226848, 0}},
    {kFp32, kHead7B, 5, {5, 8, 6, 2, 125, 217760, 3}},
    {kDraft, kHead8B, 1, {1, 1, 3, 2, 4008, 115568, 2}},
    {kDraft, kHead8B, 4, {4, 1, 2, 2, 4008, 113472, 2}},
    {kBoth, kHead8B, 1, {1, 1, 3, 2, 4008, 112496, 3}},
    {kBoth, kHead8B, 5, {5, 1, 5, 2, 4008, 223920, 3}},
    {kBothMany, kHead8B, 17, {17, 8, 3, 2, 501, 106720, 3}},
    {kHalf, kHead8B, 1, {1, 1, 5, 2, 4008, 186400, 0}},
    {kHalf, kHead8B, 17, {17, 1, 3, 1, 4008, 226848, 0}},
    {kFp32, kHead8B, 5, {5, 8, 6, 2, 501, 217760, 3}},
    {kCodes4, kQkv8B, 1, {1, 1, 2, 2, 192, 87344, 1}},
    {kCodes4Many, kQkv8B, 4, {4, 1, 3, 2, 192, 102784, 1}},
    {kCodes4Many, kQkv8B, 8, {8, 8, 4, 2, 24, 102816, 1}},
    {kCodes4, kDown8B, 1, {1, 1, 5, 2, 128, 224240, 4}},
    {kCodes4Many, kDown8B, 4, {4, 2, 8, 2, 64, 225408, 4}},
    {kCodes4Many, kDown8B, 17, {17, 4, 3, 2, 32, 231520, 2}},
    {kCodes4, kHead8B, 1, {1, 1, 2, 2, 4008, 87344, 2}},
    {kCodes4Many, kHead8B, 8, {8, 2, 3, 2, 2004, 111552, 2}},
    {kCodes8, kQkv8B, 1, {1, 1, 6, 2, 192, 220720, 3}},
    {kCodes8Many, kQkv8B, 8, {8, 8, 5, 2, 24, 114144, 3}},
    {kCodes8, kDown8B, 1, {1, 1, 5, 2, 128, 208880, 3}},
    {kCodes8Many, kDown8B, 17, {17, 4, 3, 2, 32, 226912, 3}},
    // clang-format on
};

// Segments of codes in blocks of 256 are whole blocks, so rows are taken for as many bands.
TEST(LinearConfigOnHost, SegmentsAreWholeUnits) {
  EXPECT_EQ(kCodes4.band_step(), 2);
  EXPECT_EQ(kCodes8.band_step(), 1);
  for (const int bands : {2, 6, 12, 14, 32, 112}) {
    const auto begin = [&](int segment) { return segment_begin(bands, 2, kSegments, segment); };
    EXPECT_EQ(begin(0), 0);
    EXPECT_EQ(begin(kSegments), bands);
    for (int segment = 0; segment < kSegments; ++segment) {
      EXPECT_EQ(begin(segment) % 2, 0);
      EXPECT_LE(begin(segment), begin(segment + 1));
    }
  }
}

// What kernels compute, and what ranks share by.
TEST(LinearConfigOnHost, SegmentsAreThoseOfShares) {
  for (const int step : {1, 2}) {
    for (int units = 1; units < 1000; ++units) {
      for (int segment = 0; segment <= kSegments; ++segment) {
        EXPECT_EQ(segment_begin(units * step, step, kSegments, segment),
                  segment_begin_of_all(units * step, step, odd_segment(units), segment));
      }
    }
  }
}

// A lane has whole words of each group: those that it multiplies, a quarter of it.
TEST(LinearConfigOnHost, LanesHaveAQuarterOfEachGroup) {
  for (const int group : {16, 32, 64, 128}) {
    std::array<int, kSpanInputs> seen{};
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < kLaneInputs; ++i) {
        const int input = lane_input(group, t, i);
        ++seen.at(input);
        EXPECT_EQ(input % 4, i % 4);
        EXPECT_EQ(input / std::min(group, kSpanInputs), i / (std::min(group, kSpanInputs) / 4));
      }
    }
    EXPECT_EQ(std::ranges::count(seen, 1), kSpanInputs) << group;
  }
  for (const int bits : {1, 2, 4}) {  // every code has bits of its own
    std::array<std::uint32_t, 4> words{};
    for (int i = 0; i < kLaneInputs; ++i) {
      for (const int half : {0, 1}) {
        const std::uint32_t own = ((1u << bits) - 1) << code_shift(bits, i, half);
        std::uint32_t& word = words.at(code_word(bits, i, half));
        EXPECT_EQ(word & own, 0u);
        word |= own;
      }
    }
    EXPECT_EQ(std::ranges::count(words, ~0u), bits);
  }
}

TEST(LinearConfigOnHost, KeepsItsDecisionsForModels) {
  for (const Case& c : kCases) {
    LinearShape shape = c.shape;
    shape.num_rows = c.num_rows;
    const auto found = share_out(kH200, c.format, shape);
    ASSERT_TRUE(found);
    const int early = c.format.streamed > 0 ? 0
                                            : early_stages(c.format.planes, c.format.large_stages(),
                                                           shape.op, shape.bands, found->depth);
    EXPECT_EQ(c.decision, (Decision{found->num_rows, found->row_warps, found->depth, found->buffers,
                                    found->row_blocks, found->places.total, early}))
        << "case " << &c - kCases;
  }
}

// Parts of heads have both halves of what is rotated together.
TEST(LinearConfigOnHost, PartsOfHeadsAndWholeHeads) {
  const LinearConfig parts = *share_out(kH200, kDraft, kQkv7B);
  EXPECT_EQ(1, parts.half_tiles);
  EXPECT_EQ(4, parts.parts);
  EXPECT_EQ(4, parts.pair_tiles);
  EXPECT_EQ(2, parts.block_tiles);
  for (int block = 0; block < parts.row_blocks; ++block) {
    EXPECT_EQ(block / 4u, block * parts.head_of >> 16);
  }
  LinearShape normed = kQkv7B;
  normed.heads_normed = true;
  const LinearConfig whole = *share_out(kH200, kBoth, normed);
  EXPECT_EQ(8, whole.row_warps) << "norms are of whole heads";
  EXPECT_EQ(0, whole.half_tiles);
  EXPECT_EQ(0, whole.block_tiles % (128 / kTileRows));
}

TEST(LinearConfigOnHost, ClustersLeaveRoomWhereOneBlockSuffices) {
  EXPECT_EQ(128, clusters_of_launch(kH200, kDraft, kOut, 128, 1, 264)) << "row blocks";
  EXPECT_EQ(132, clusters_of_launch(kH200, kDraft, kOut, 300, 1, 264)) << "multiprocessors";
  EXPECT_EQ(66, clusters_of_launch(kH200, kDraft, kOut, 300, 2, 132));
  EXPECT_EQ(264, clusters_of_launch(kH200, kDraft, kHead8B, 300, 1, 264));
  EXPECT_EQ(120, clusters_of_launch(kH200, kHalf, kOut, 300, 1, 120)) << "what is resident";
}

// Of several ranks each has some segments of a sum, and its blocks take more tiles instead.
TEST(LinearConfigOnHost, RanksHaveSomeSegments) {
  for (const LinearShape& whole : {kOut, kDown7B, kDown8B}) {
    for (const LinearSizes& format : {kDraft, kBothMany, kHalf, kFp32, kCodes4Many}) {
      for (const int ranks : {2, 4, 8}) {
        for (const LinearMachine& machine : {kH200, kA100}) {
          LinearShape share = whole;
          share.segments = kSegments / ranks;
          share.bands = round_up(divide_up(whole.bands, ranks), format.band_step());
          for (share.num_rows = 1; share.num_rows <= 17; ++share.num_rows) {
            const auto found = share_out(machine, format, share);
            ASSERT_TRUE(found);
            EXPECT_LE(found->row_warps, found->cluster * ranks);
            if (found->cluster > 1) {
              EXPECT_EQ(found->row_warps, found->cluster * ranks);
            }
            EXPECT_LE(found->row_warps, kLinearWarps);
            EXPECT_EQ(found->block_tiles, 2 * found->row_warps);
            EXPECT_LE(found->places.total, machine.max_shared_bytes);
            if (format.streamed == 0 && found->cluster == 1) {
              EXPECT_GE(found->places.stride, share.bands * kBandInputs) << "all of the share";
            }
          }
        }
      }
    }
  }
}

// Long rows on a GPU without clusters: fewer in a launch, then parts of the inputs.
TEST(LinearConfigOnHost, TakesFewerRowsAndPartsWhereMemoryIsShort) {
  LinearShape down = kDown8B;
  down.num_rows = 17;
  const auto some = share_out(kA100, kBothMany, down);
  ASSERT_TRUE(some);
  EXPECT_LT(some->num_rows, 17);
  EXPECT_LE(some->places.total, kA100.max_shared_bytes);
  EXPECT_EQ(1, some->row_warps);

  LinearShape longest = shape(LinearOp::kAdd, 65536, {4096});
  EXPECT_FALSE(share_out(kA100, kFp32, longest));
  const int bands = bands_of_part(kA100, kFp32, longest);
  EXPECT_LT(bands, longest.bands);
  longest.num_rows = 8;
  EXPECT_EQ(bands, bands_of_part(kA100, kFp32, longest)) << "depends on the number of rows";
  longest.num_rows = 1;
  EXPECT_EQ(longest.bands, bands_of_part(kA100, kHalf, longest)) << "streamed";
  longest.bands = bands;
  EXPECT_TRUE(share_out(kA100, kFp32, longest));
}

}  // namespace
}  // namespace quantspec::cuda
