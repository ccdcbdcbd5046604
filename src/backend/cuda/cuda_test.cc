// What this backend has of its own: its layout, its device. Its ops are tested with those of the
// others, in backend/.
#include "backend/cuda/cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/row_upload.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/expect_error.h"
#include "quant/test_support.h"

namespace quantspec::cuda {
namespace {

// --- layout --------------------------------------------------------------------------------------

using Place = NibblePlace (*)(const KvShape&, int, int);

// Every code has a nibble of the plane to itself, and there is none besides.
void expect_bijection(const KvShape& shape, Place place) {
  std::vector<int> uses(2 * shape.plane_bytes());
  for (int token = 0; token < shape.page_size; ++token) {
    for (int channel = 0; channel < shape.head_dim; ++channel) {
      const NibblePlace at = place(shape, token, channel);
      const std::size_t nibble = 8 * at.word + at.nibble;
      ASSERT_LT(at.nibble, 8);
      ASSERT_LT(nibble, uses.size());
      ++uses[nibble];
    }
  }
  EXPECT_EQ(std::ranges::count(uses, 1), std::ssize(uses));
}

// Without a GPU, too: the library needs none to be loaded.
TEST(CublasLtOnHost, IsLoadedOrNamed) {
  try {
    const CublasLt& lt = cublas_lt();
    EXPECT_STRNE(lt.status_string(CUBLAS_STATUS_SUCCESS),
                 lt.status_string(CUBLAS_STATUS_ALLOC_FAILED));
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("libcublasLt.so"));
  }
}

TEST(CudaLayoutOnHost, EveryCodeHasItsNibble) {
  for (const int head_dim : {16, 64, 80, 96, 128, 256}) {
    for (const int page_size : {16, 32, 48, 64, 128, 192, 256}) {
      SCOPED_TRACE(testing::Message() << head_dim << " channels, " << page_size << " tokens");
      const KvShape shape{1, 1, head_dim, page_size};
      expect_bijection(shape, key_place);
      expect_bijection(shape, value_place);
    }
  }
}

TEST(CudaLayoutOnHost, SixtyFourTokensAreConsecutive) {
  const KvShape shape{1, 1, 80, 256};
  for (int token = 0; token < shape.page_size; ++token) {
    for (int channel = 0; channel < shape.head_dim; ++channel) {
      const std::size_t bytes = shape.head_dim * 32;
      EXPECT_EQ(4 * key_place(shape, token, channel).word / bytes, token / 64);
      EXPECT_EQ(4 * value_place(shape, token, channel).word / bytes, token / 64);
    }
  }
}

// --- device --------------------------------------------------------------------------------------

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    ordinal_ = std::max(0, static_cast<int>(gpu_names().size()) - 1);  // the last
    if (const std::string why = unavailable(ordinal_); !why.empty()) {
      GTEST_SKIP() << "no GPU: " << why;
    }
    device_ = std::make_unique<Device>(ordinal_);
    current_.emplace(device_->gpu());
  }
  // Bytes go to `data` and come back as they were.
  void expect_usable(std::byte* data) {
    std::vector<int> there(1000), back(there.size());
    std::iota(there.begin(), there.end(), 17);
    device_->upload(data, there.data(), 4 * there.size());
    device_->download(back.data(), data, 4 * back.size());
    EXPECT_EQ(there, back);
  }
  int ordinal_ = 0;
  std::unique_ptr<Device> device_;
  std::optional<CurrentGpu> current_;
};

TEST_F(CudaDevice, MemoryIsZeroedAndAligned) {
  for (const std::size_t bytes : {1, 1000, 1 << 20}) {
    Buffer buffer = device_->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0);
    std::vector<char> back(bytes, 'x');
    device_->download(back.data(), buffer.data(), bytes);
    EXPECT_EQ(std::ranges::count(back, 0), std::ssize(back));
  }
  EXPECT_EQ(device_->allocate(0).size(), 0u);
}

TEST_F(CudaDevice, OutOfMemoryIsAnErrorAndNoMore) {
  expect_error(ErrorKind::kOutOfMemory, {"GPU", "1125899906842624 bytes", "are free"},
               [&] { device_->allocate(std::size_t{1} << 50); });
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  Buffer buffer = device_->allocate(4096);
  expect_usable(buffer.data());
}

TEST_F(CudaDevice, OtherFailuresNameTheCall) {
  expect_error(ErrorKind::kDevice, {"the GPU", "cudaSetDevice(-1)"},
               [] { QUANTSPEC_CUDA(cudaSetDevice(-1)); });
  cudaGetLastError();
}

CUcontext context_of_thread() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  QUANTSPEC_CUDA(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, 12000,
                                                  cudaEnableDefault, &result));
  CUcontext context = nullptr;
  EXPECT_EQ(reinterpret_cast<decltype(&cuCtxGetCurrent)>(found)(&context), CUDA_SUCCESS);
  return context;
}

// Threads that have another GPU, or none; memory may be given back by any.
TEST_F(CudaDevice, IsCurrentOnlyWhileItIsUsed) {
  const Gpu& gpu = device_->gpu();
  EXPECT_EQ(context_of_thread(), gpu.context());
  Buffer memory = device_->allocate(4096);
  const int frees = gpu.frees();
  std::thread([&] {
    EXPECT_EQ(context_of_thread(), nullptr);
    {
      const CurrentGpu current(gpu);
      EXPECT_EQ(context_of_thread(), gpu.context());
      const CurrentGpu again(gpu);
      int ordinal = -1;
      EXPECT_EQ(cudaGetDevice(&ordinal), cudaSuccess);
      EXPECT_EQ(ordinal, ordinal_);
      expect_usable(memory.data());
    }
    EXPECT_EQ(context_of_thread(), nullptr);
    memory = {};
    EXPECT_EQ(context_of_thread(), nullptr);
  }).join();
  EXPECT_EQ(gpu.frees(), frees + 1);
  for (int other = 0; other < ordinal_; ++other) {  // of several GPUs
    const CurrentGpu current(Gpu::at(other));
    EXPECT_NE(context_of_thread(), gpu.context());
    const int before = Gpu::at(other).frees();
    device_->allocate(4096) = {};
    EXPECT_EQ(Gpu::at(other).frees(), before);
    EXPECT_EQ(context_of_thread(), Gpu::at(other).context());
  }
}

// What a kernel does to the wrong memory is beyond repair: in a process of its own.
TEST_F(CudaDevice, AFaultOfAKernelIsAnErrorOfThisAndEveryLaterCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    auto device = std::make_unique<Device>(0);
    const CurrentGpu current(device->gpu());
    const KvShape shape{1, 1, 64, 32};
    Buffer target = device->allocate(1 << 20);
    copy_full_kv(*device, shape, {reinterpret_cast<std::byte*>(4096), 64}, {target.data(), 64}, 0,
                 16);
    for (int i = 0; i < 2; ++i) {
      expect_error(ErrorKind::kDevice, {"the GPU: ", " in cuda"}, [&] { device->synchronize(); });
    }
    expect_error(ErrorKind::kDevice, {"the GPU: "}, [&] { device->allocate(4096); });
    target = {};
    device.reset();
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaDevice, ScratchGrowsAndKindsAreApart) {
  std::byte* counters = device_->scratch(Scratch::kCounters, 4096);
  std::byte* small = device_->scratch(Scratch::kWorkspace, 4096);
  EXPECT_NE(counters, small);
  EXPECT_EQ(device_->scratch(Scratch::kWorkspace, 100), small);
  expect_usable(small);
  // Work on the old memory is done before it goes.
  std::vector<std::byte> bytes(4096, std::byte{1});
  device_->upload(small, bytes.data(), bytes.size());
  std::byte* large = device_->scratch(Scratch::kWorkspace, std::size_t{64} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % 256, 0);
  expect_usable(large + (std::size_t{64} << 20) - 4096);
  std::vector<char> back(4096, 'x');
  device_->download(back.data(), counters, back.size());
  EXPECT_EQ(std::ranges::count(back, 0), std::ssize(back));
}

// More than there is pinned memory for, of sizes on either side of what goes through it.
TEST_F(CudaDevice, UploadsTakeTheirBytesAlongAndComeInOrder) {
  constexpr std::size_t kBytes = 1 << 20;
  Buffer memory = device_->allocate(kBytes);
  std::vector<std::byte> expected(kBytes), back(kBytes);
  std::uint32_t random = 1;
  const auto next = [&](std::uint32_t below) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % below;
  };
  for (int i = 0; i < 300; ++i) {
    const std::size_t size = i % 20 == 0 ? (256 << 10) - 1 + i / 20 % 3 : 1 + next(20'000);
    const std::size_t at = next(static_cast<std::uint32_t>(kBytes - size));
    std::vector<std::byte> bytes(size, static_cast<std::byte>(i));
    device_->upload(memory.data() + at, bytes.data(), size);
    std::ranges::fill(bytes, std::byte{0xee});
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(at), size,
                static_cast<std::byte>(i));
    if (i % 50 != 0) continue;
    std::vector<std::byte> part(size);
    device_->download(part.data(), memory.data() + at, size);
    EXPECT_EQ(std::ranges::count(part, static_cast<std::byte>(i)), std::ssize(part));
  }
  device_->download(back.data(), memory.data(), kBytes);
  EXPECT_TRUE(back == expected);
}

TEST_F(CudaDevice, AnUploadIsNoPartOfAGraph) {
  Buffer memory = device_->allocate(64);
  const int value = 1;
  cudaGraph_t graph = nullptr;
  QUANTSPEC_CUDA(cudaStreamBeginCapture(device_->stream(), cudaStreamCaptureModeThreadLocal));
  expect_error(ErrorKind::kInternal, {"a graph would repeat"},
               [&] { device_->upload(memory.data(), &value, sizeof(value)); });
  QUANTSPEC_CUDA(cudaStreamEndCapture(device_->stream(), &graph));
  QUANTSPEC_CUDA(cudaGraphDestroy(graph));
}

template <typename T>
std::vector<T> downloaded(Device& device, const T* from, std::size_t count) {
  std::vector<T> values(count);
  device.download(values.data(), from, count * sizeof(T));
  return values;
}

TEST_F(CudaDevice, TablesOfSequencesAreOnTheDevice) {
  const FullKv ring{reinterpret_cast<std::byte*>(4096), 128};
  const SequenceRows first{
      .first_row = 0, .num_rows = 3, .first_position = 70, .kv = {.full = ring}};
  SequenceRows second{.first_row = 4, .num_rows = 1, .first_position = 9, .kv = {}};
  second.kv.first_full = 64;
  second.kv.all_full = true;
  for (int pass = 0; pass < 2; ++pass, ++second.first_position) {
    const SequenceTables tables = device_->tables(std::vector{first, second}, 6, 1);
    ASSERT_EQ(tables.count, 2);
    const auto states = downloaded(*device_, tables.states, 2);
    EXPECT_EQ(states[0], (SequenceState{0, 3, 70, 0, 0, 0, nullptr}));
    EXPECT_EQ(states[1], (SequenceState{4, 1, 9 + pass, 64, 0, 0, nullptr}));
    EXPECT_EQ(downloaded(*device_, tables.rows, 6),
              (std::vector<RowPlace>{{0, 70}, {0, 71}, {0, 72}, {-1, 0}, {1, 9 + pass}, {-1, 0}}));
    const auto kv = downloaded(*device_, tables.kv, 2);
    EXPECT_EQ(kv[0], sequence_kv(first.kv, 1));
    EXPECT_EQ(kv[0].full, ring);
    EXPECT_EQ(kv[1].all_full, 1);
  }
}

// Passes of a batch of any number of lanes, of which some draft less deep and some are empty; lanes
// that are bound anew read other memory, the others what they did.
TEST_F(CudaDevice, LanesStandWhereTheirRoundsSay) {
  constexpr int kPage = 32, kLayers = 2, kDraftLens[] = {3, 0, -1, 1};
  const KvShape shape{kLayers, 1, 64, kPage};
  for (const int count : {1, 5, 200, 7}) {
    SCOPED_TRACE(count);
    std::vector<Round> rounds;
    std::vector<RoundLane> lanes;
    std::vector<LaneKey> keys;
    Buffer memory = device_->allocate(count * sizeof(Round));
    int rows = 0;
    for (int i = 0; i < count; ++i) {
      rounds.push_back({.length = 7 * i + 1, .drafted = 1});
      lanes.push_back({.draft_len = kDraftLens[i % 4], .first_row = rows});
      lanes.back().at.round = memory.as<Round>() + i;
      lanes.back().at.tokens = reinterpret_cast<TokenId*>(64 * i);
      rows += lanes.back().rows();
      keys.push_back({static_cast<std::uint64_t>(1000 * count + i)});
    }
    device_->upload(memory.data(), rounds.data(), count * sizeof(Round));
    device_->begin_batch(lanes);
    std::vector<KvView> views(kLayers);
    int asked = 0, base = 0;
    const auto views_of = [&](int lane, bool verifies) {
      ++asked;
      for (int layer = 0; layer < kLayers; ++layer) {
        views[layer].layer = layer;
        views[layer].full = {
            reinterpret_cast<std::byte*>(256 * (base + 4 * lane + 2 * verifies + layer)), 64};
      }
      return std::span<const KvView>(views);
    };
    for (int pass = 0; pass < 3; ++pass) {
      const bool verifies = pass > 0;
      if (pass == 2) keys[0].variant = 1, base = 1 << 20;
      asked = 0;
      device_->bind_lanes(shape, keys, views_of);
      EXPECT_EQ(asked, pass == 0 ? 2 * count : pass == 2 ? 2 : 0);
      std::vector<SequenceRows> sequences;
      for (int i = 0; i < count; ++i) {
        views_of(i, verifies);
        const bool has_row = verifies ? lanes[i].rows() > 0 : lanes[i].draft_len > 1;
        sequences.push_back(
            {.first_row = 0, .num_rows = has_row && (pass < 2 || i == 0), .kv = {}});
        sequences.back().kv = views[1];
        sequences.back().lane = i;
        sequences.back().verifies = verifies;
        sequences.back().drafted = 1;
        if (pass == 2 && i == 0) base = 0;
      }
      const int num_rows = verifies ? rows + 3 : count;
      device_->begin_pass({.sequences = sequences,
                           .table = {},
                           .out = nullptr,
                           .page_size = kPage,
                           .num_rows = num_rows});
      const SequenceTables tables = device_->tables(sequences, num_rows, 1);
      const auto states = downloaded(*device_, tables.states, count);
      std::vector<RowPlace> places(num_rows, {-1, 0});
      for (int i = 0; i < count; ++i) {
        const int has = verifies ? lanes[i].rows() : lanes[i].draft_len > 1;
        const int position = 7 * i + !verifies, full = first_full_position(position, kPage);
        const int first = verifies ? lanes[i].first_row : i;
        const SequenceState expected =
            has == 0 ? SequenceState{} : SequenceState{first,        has, position,          full,
                                                       full / kPage, 0,   lanes[i].at.tokens};
        EXPECT_EQ(states[i], expected) << i;
        for (int row = 0; row < has; ++row) places[first + row] = {i, position + row};
        EXPECT_EQ(downloaded(*device_, tables.kv + i * tables.kv_stride, 1)[0].full.data,
                  reinterpret_cast<std::byte*>(
                      256 * ((pass == 2 && i == 0 ? 1 << 20 : 0) + 4 * i + 2 * verifies + 1)));
      }
      EXPECT_EQ(downloaded(*device_, tables.rows, num_rows), places);
    }
    EXPECT_EQ(device_->lane_table(count - 1, 1).first_row, lanes.back().first_row);
  }
  const SequenceRows other{.first_row = 0, .num_rows = 1, .kv = {}, .lane = 0};
  expect_error(ErrorKind::kInternal, {"bound to what they read"}, [&] {
    device_->tables({&other, 1}, 1, 1);
  });
}

TEST(CudaShapesOnHost, AreFew) {
  const std::vector<int> shapes = {1,  2,  3,  4,   6,   8,   12,  16,  24,  32, 48,
                                   64, 80, 96, 112, 128, 160, 192, 224, 256, 320};
  for (int count = 1; count <= 320; ++count) {
    EXPECT_EQ(padded(count), *std::ranges::lower_bound(shapes, count)) << count;
  }
}

// --- attention -----------------------------------------------------------------------------------

// Without a GPU, too.
TEST(CudaAttentionOnHost, OtherHeadsAndPagesAreRefused) {
  require_supported({1, 1, 96, 256});
  expect_error(ErrorKind::kUnsupportedModel,
               {"64, 80, 96, 128 or 256 channels", "112", "backend cpu"}, [] {
                 require_supported({1, 1, 112, 64});
               });
  expect_error(ErrorKind::kUnsupportedModel, {"32, 64, 128 or 256 tokens", "16"}, [] {
    require_supported({1, 1, 128, 16});
  });
}

// --- weights -------------------------------------------------------------------------------------

// Matrices of more than two portions, whose last tile has few rows. Rows repeat, at a distance that
// no power of two divides, so that they take little time to make.
class CudaRowUpload : public CudaDevice {
 protected:
  static constexpr int kCols = 8192, kDistinct = 61, kThreads = 5;

  void SetUp() override {
    CudaDevice::SetUp();
    if (device_) upload_.emplace(*device_, kThreads);
  }
  static CodedMatrix large_matrix(RandomCodes& codes) {
    CodedMatrix matrix = codes.matrix();
    matrix.rows = 2 * portion_rows(matrix) + 21;
    matrix.read = [read = std::move(matrix.read)](int row, const RowCodes& out) {
      read(row % kDistinct, out);
    };
    return matrix;
  }
  Matrix import(const CodedMatrix& coded) {
    const PlaneBytes bytes = plane_bytes(coded.rows, coded.cols, coded.format);
    upper_ = device_->allocate(bytes.upper);
    lower_ = device_->allocate(bytes.lower);
    import_planes(*device_, *upload_, coded, upper_.data(), lower_.data());
    return {coded.format, coded.rows, coded.cols, upper_.data(), lower_.data()};
  }
  // Of a sample of rows, and of those at the ends of portions.
  void expect_rows(const Matrix& matrix, RandomCodes& codes, int portion) {
    std::vector<TokenId> rows = {portion - 1, portion, 2 * portion - 1, 2 * portion};
    for (int row = matrix.rows - 1; row >= 0; row -= 67) rows.push_back(row);
    const int count = static_cast<int>(rows.size());
    Buffer tokens = device_->allocate(rows.size() * sizeof(TokenId));
    Buffer out = device_->allocate(rows.size() * kCols * sizeof(float));
    device_->upload(tokens.data(), rows.data(), rows.size() * sizeof(TokenId));
    const SequenceRows sequence{0, count, 0, {}, tokens.as<TokenId>()};
    embed(*device_, {.sequences = {&sequence, 1}, .table = matrix, .out = out.as<float>()});
    std::vector<float> values(kCols);
    for (int i = 0; i < count; ++i) {
      device_->download(values.data(), out.as<float>() + std::size_t(i) * kCols, 4 * kCols);
      const std::vector<float> expected = codes.weights(rows[i] % kDistinct);
      ASSERT_EQ(std::memcmp(values.data(), expected.data(), 4 * kCols), 0) << "row " << rows[i];
    }
  }

  std::optional<RowUpload> upload_;
  Buffer upper_, lower_;
};

TEST_F(CudaRowUpload, PortionsGiveTheBitsOfDecodeRow) {
  for (const NamedFormat& format : kNamedFormats) {
    if (!format.is_made()) continue;
    SCOPED_TRACE(format.name);
    RandomCodes codes(format.format, kDistinct, kCols, 3);
    const CodedMatrix coded = large_matrix(codes);
    expect_rows(import(coded), codes, portion_rows(coded));
  }
}

TEST_F(CudaRowUpload, AFailingReadIsItsErrorAndLeaksNothing) {
  RandomCodes codes(sliced_format(), kDistinct, kCols, 3);
  const CodedMatrix coded = large_matrix(codes);
  const int portion = portion_rows(coded);
  import(coded);
  for (const int bad : {0, portion - 1, portion + 100, coded.rows - 1}) {
    SCOPED_TRACE(bad);
    CodedMatrix corrupt = coded;
    corrupt.read = [&](int row, const RowCodes& out) {
      if (row == bad) fail(ErrorKind::kCorruptFile, "row {} is corrupt", row);
      coded.read(row, out);
    };
    const int allocations = device_->allocations();
    expect_error(ErrorKind::kCorruptFile, {fmt::format("row {} is corrupt", bad)},
                 [&] { import_planes(*device_, *upload_, corrupt, upper_.data(), lower_.data()); });
    import_planes(*device_, *upload_, coded, upper_.data(), lower_.data());
    EXPECT_EQ(device_->allocations(), allocations);
    expect_rows({coded.format, coded.rows, coded.cols, upper_.data(), lower_.data()}, codes,
                portion);
  }
}

// --- launches ------------------------------------------------------------------------------------

class CudaRounds : public CudaDevice {
 protected:
  static constexpr int kHidden = 256, kHeads = 4, kInner = 512;

  template <typename T>
  T* memory(std::size_t count) {
    buffers_.push_back(device_->allocate(count * sizeof(T)));
    return buffers_.back().as<T>();
  }
  Linear planes(int outputs, int inputs) {
    Linear linear{.target = dense({nullptr, DType::kBF16, outputs, inputs})};
    const WeightFormat format = sliced_format();
    linear.draft = {format, outputs, inputs,
                    memory<std::byte>(plane_bytes(outputs, inputs, format).upper)};
    return linear;
  }
  static int kernels_of(cudaGraph_t graph) {
    std::size_t count = 0;
    QUANTSPEC_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    QUANTSPEC_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
    return static_cast<int>(std::ranges::count_if(nodes, [](cudaGraphNode_t node) {
      cudaGraphNodeType type;
      QUANTSPEC_CUDA(cudaGraphNodeGetType(node, &type));
      return type == cudaGraphNodeTypeKernel;
    }));
  }
  std::vector<Buffer> buffers_;
};

// One row, read at 4 bits: queries, keys and values; attention; output; gate and up; down.
TEST_F(CudaRounds, ADraftStepHasFiveLaunchesALayer) {
  const KvShape shape{1, 2, 64, 64};
  const Linear q = planes(kHeads * 64, kHidden), k = planes(2 * 64, kHidden), v = k;
  const Linear output = planes(kHidden, kHeads * 64);
  const Linear gate = planes(kInner, kHidden), up = gate, down = planes(kHidden, kInner);
  auto *x = memory<float>(kHidden), *queries = memory<float>(kHidden);
  auto *attended = memory<float>(kHidden), *inner = memory<float>(kInner);
  const Norm norm{memory<float>(kHidden), 1e-5f};
  const auto* angles = memory<float>(32);
  const FullKv ring{memory<std::byte>(2 * 2 * 128 * 64 * sizeof(std::uint16_t)), 128};
  const std::vector<SequenceRows> rows = {
      {.first_row = 0,
       .num_rows = 1,
       .first_position = 10,
       .kv = {.pages = {}, .full = ring, .read = KvRead::kUpper}}};
  const auto layer = [&](OpOrder first) {
    decode_qkv(*device_, {.phase = Phase::kDecode,
                          .weights = WeightRead::kUpper,
                          .num_heads = kHeads,
                          .shape = shape,
                          .x = x,
                          .num_rows = 1,
                          .norm = norm,
                          .q = &q,
                          .k = &k,
                          .v = &v,
                          .q_norm = {},
                          .k_norm = {},
                          .cos = angles,
                          .sin = angles,
                          .q_out = queries,
                          .sequences = rows,
                          .order = first});
    constexpr Phase kDecode = Phase::kDecode;
    constexpr WeightRead kUpper = WeightRead::kUpper;
    constexpr OpOrder kOverlaps = OpOrder::kOverlaps;
    attention(*device_, {queries, attended, kHeads, shape, 0.125f, rows, kOverlaps});
    decode_add_linear(*device_, {kDecode, kUpper, attended, 1, &output, x, kOverlaps});
    decode_gate_up(*device_, {kDecode, kUpper, x, 1, norm, &gate, &up, inner, kOverlaps});
    decode_add_linear(*device_, {kDecode, kUpper, inner, 1, &down, x, kOverlaps});
  };
  layer(OpOrder::kAfter);  // what is made once is there
  device_->synchronize();
  cudaGraph_t graph;
  QUANTSPEC_CUDA(cudaStreamBeginCapture(device_->stream(), cudaStreamCaptureModeThreadLocal));
  // Nothing is ahead of the first in the capture.
  for (int i = 0; i < 3; ++i) layer(i == 0 ? OpOrder::kAfter : OpOrder::kOverlaps);
  QUANTSPEC_CUDA(cudaStreamEndCapture(device_->stream(), &graph));
  EXPECT_EQ(kernels_of(graph), 3 * 5);
  QUANTSPEC_CUDA(cudaGraphDestroy(graph));
}

// --- pages ---------------------------------------------------------------------------------------

TEST_F(CudaDevice, PagesOfOtherSizesAreRefused) {
  for (const int page_size : {80, 320}) {
    const KvShape shape{1, 1, 64, page_size};
    expect_error(ErrorKind::kInvalidRequest, {"256 tokens", std::to_string(page_size)}, [&] {
      const FullKv source{nullptr, 1024};
      quantize_pages(*device_, shape, 0, {&source, 1}, 0, std::vector<PagePlanes>(1));
    });
  }
}

TEST_F(CudaDevice, PagesOfMoreThanAThreadHasAreSelected) {
  for (const int num_pages : {2, 1000, 1025, 5000, 16384}) {
    SCOPED_TRACE(num_pages);
    std::vector<float> scores(num_pages);
    for (int page = 0; page < num_pages; ++page) scores[page] = (page * 37 % num_pages) / 3;
    const int count = num_pages / 2;
    std::vector<int> expected(num_pages), lists(count);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin() + 1, expected.end(),
                     [&](int a, int b) { return scores[a] > scores[b]; });
    expected.resize(count);
    std::ranges::sort(expected);
    Buffer device_scores = device_->allocate(4 * scores.size());
    Buffer device_lists = device_->allocate(4 * lists.size());
    device_->upload(device_scores.data(), scores.data(), 4 * scores.size());
    SequenceRows row{.first_row = 0, .num_rows = 1, .kv = {}};
    row.kv.pages = {reinterpret_cast<const PagePlanes*>(256), std::size_t(num_pages)};  // not read
    row.kv.page_scores = {device_scores.as<float>(), num_pages};
    row.kv.page_lists = {device_lists.as<int>(), lists.size()};
    select_pages(*device_, {{1, 1, 64, 32}, {&row, 1}});
    device_->download(lists.data(), device_lists.data(), 4 * lists.size());
    EXPECT_EQ(lists, expected);
  }
}

}  // namespace
}  // namespace quantspec::cuda
