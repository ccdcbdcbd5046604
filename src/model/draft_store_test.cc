#include "model/draft_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "backend/backend.h"
#include "base/expect_error.h"
#include "base/expect_linear_time.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/test_folder.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "quant/encode_row.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

// Random codes and parameters of one matrix.
struct Codes {
  Codes(int rows, int cols, int group, std::uint64_t seed)
      : rows(rows),
        cols(cols),
        format(sliced_format(group)),
        codes(std::size_t(rows) * cols),
        sub_scales(format.two_levels() ? std::size_t(rows) * format.groups(cols) : 0),
        sub_offsets(sub_scales.size()) {
    const CounterRng rng(seed);
    const auto word = [&](std::size_t i) {
      return rng.block(std::int64_t(i), RandomStream::kSample, 0)[0];
    };
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = word(i) & 255;
    for (int i = 0; i < rows * format.blocks(cols); ++i) {
      const std::uint32_t bits = word(codes.size() + i);
      scales.push_back({std::uint16_t(bits & 0x3fff), std::uint16_t(bits >> 16 & 0xbfff)});
    }
    for (std::size_t i = 0; i < sub_scales.size(); ++i) {
      const std::uint32_t bits = word(codes.size() + scales.size() + i);
      sub_scales[i] = std::int8_t(bits & 127);
      sub_offsets[i] = std::uint8_t(bits >> 8);
    }
  }
  CodedMatrix get() const {
    return {format, rows, cols, [this](int row, const RowCodes& out) {
              const auto copy = [row](const auto& from, int count, auto* to) {
                std::copy_n(from.begin() + std::ptrdiff_t(row) * count, count, to);
              };
              copy(codes, cols, out.codes);
              copy(scales, format.blocks(cols), out.scales);
              if (!format.two_levels()) return;
              copy(sub_scales, format.groups(cols), out.sub_scales);
              copy(sub_offsets, format.groups(cols), out.sub_offsets);
            }};
  }

  int rows, cols;
  WeightFormat format;
  std::vector<std::uint8_t> codes;
  std::vector<GroupScale> scales;
  std::vector<std::int8_t> sub_scales;
  std::vector<std::uint8_t> sub_offsets;
};

class DraftStoreTest : public testing::Test {
 protected:
  // Two matrices, one with its lower plane, of odd sizes.
  void write_small(int group = 64) {
    DraftStoreInfo info = kInfo;
    info.group = group;
    DraftStoreWriter writer(path_, info, {{"a", 3, 131, true}, {"b", 5, 64, false}});
    writer.add(a(group).get());
    writer.add(b(group).get());
    writer.finish();
  }
  static Codes a(int group) { return {3, 131, group, 1}; }
  static Codes b(int group) { return {5, 64, group, 2}; }
  std::string bytes() const { return read_file(path_); }
  void replace(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  void expect_corrupt(const std::vector<std::string>& mentions) {
    expect_error(ErrorKind::kCorruptFile, mentions, [&] { DraftStore store(path_); });
  }
  // With a header that says something else, and a checksum that is right again.
  void replace_in_header(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    std::string file = bytes();
    const std::size_t at = file.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    file.replace(at, from.size(), to);
    const std::uint64_t sum = hash_bytes(std::as_bytes(std::span(file)).subspan(16));
    std::memcpy(file.data() + 8, &sum, sizeof(sum));
    replace(file);
  }

  inline static const DraftStoreInfo kInfo{"gptq", "text:books", 8192, 64, 0xfedcba9876543210u};
  const TestFolder folder_;
  fs::path path_ = folder_ / "store.qsd";
  Codes a_ = a(64);
  Codes b_ = b(64);
};

TEST_F(DraftStoreTest, GivesBackWhatWasWritten) {
  for (const int group : {32, 64, 128}) {
    write_small(group);
    const DraftStore store(path_);
    EXPECT_EQ(store.info().method, "gptq");
    EXPECT_EQ(store.info().calibration, "text:books");
    EXPECT_EQ(store.info().calibration_tokens, 8192);
    EXPECT_EQ(store.info().group, group);
    EXPECT_EQ(store.info().checkpoint, kInfo.checkpoint);
    ASSERT_EQ(store.matrices().size(), 2u);
    EXPECT_EQ(store.find("c"), nullptr);
    for (const auto& [name, written] : {std::pair{"a", a(group)}, std::pair{"b", b(group)}}) {
      const StoredMatrix* matrix = store.find(name);
      ASSERT_NE(matrix, nullptr);
      EXPECT_EQ(matrix->has_lower, std::string(name) == "a");
      const CodedMatrix read = store.read(*matrix), expected = written.get();
      ASSERT_EQ(read.rows, expected.rows);
      ASSERT_EQ(read.cols, expected.cols);
      ASSERT_EQ(read.format, expected.format);
      RowBuffer row(read.format, read.cols), same(read.format, read.cols);
      for (int r = 0; r < read.rows; ++r) {
        read.read(r, row.view());
        expected.read(r, same.view());
        for (int i = 0; i < read.cols; ++i) {
          const int code = same.codes[i];
          ASSERT_EQ(row.codes[i], matrix->has_lower ? code : code / 16 * 16 + 8) << name << i;
        }
        EXPECT_EQ(row.scales, same.scales);
        EXPECT_EQ(row.sub_scales, same.sub_scales);
        EXPECT_EQ(row.sub_offsets, same.sub_offsets);
      }
    }
  }
}

TEST_F(DraftStoreTest, EveryDamagedByteIsFound) {
  write_small(32);
  const std::string good = bytes();
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 0x10;
    replace(bad);
    expect_corrupt({path_.string()});
  }
}

TEST_F(DraftStoreTest, EveryTruncationIsFound) {
  write_small(32);
  const std::string good = bytes();
  for (std::size_t size = 0; size < good.size(); size += 7) {
    replace(good.substr(0, size));
    expect_corrupt({path_.string()});
  }
  replace(good + '\0');
  expect_corrupt({path_.string(), "checksum"});
}

TEST_F(DraftStoreTest, SaysWhatIsWrong) {
  replace("not a store of anything, but long enough");
  expect_corrupt({"not a store of draft weights"});
  write_small();
  std::string other = bytes();
  other[7] = '2';
  replace(other);
  expect_corrupt({"another version than 1"});
}

// The checksum is right: what the header says is checked all the same.
TEST_F(DraftStoreTest, HostileHeadersAreRefused) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"group\":64", "\"group\":65"},
      {"\"group\":64", "\"group\":16"},
      {"\"group\":64", "\"group\":32"},  // whose matrices take more
      {"\"rows\":5", "\"rows\":6"},
      {"\"rows\":5", "\"rows\":0"},
      {"\"cols\":131", "\"cols\":\"x\""},
      {"\"lower\":true", "\"lower\":null"},
      {"\"method\":\"gptq\"", "\"methods\":\"gpt\""},
      {"\"checkpoint\":\"f", "\"checkpoint\":\"g"},
      {"\"matrices\":[", "\"matrixes\":["},
      {"\"rows\":3", "\"row\" :3"},
  };
  for (const auto& [from, to] : changes) {
    write_small();
    replace_in_header(from, to);
    SCOPED_TRACE(to);
    expect_corrupt({path_.string()});
  }
  const std::pair<const char*, const char*> others[] = {{"\"group\":32", "\"group\":64"},
                                                        {"\"rows\":5", "\"rows\":6"},
                                                        {"\"cols\":131", "\"cols\":331"}};
  for (const auto& [from, to] : others) {
    write_small(32);
    replace_in_header(from, to);
    expect_corrupt({path_.string(), "do not lie where its header says"});
  }
}

TEST_F(DraftStoreTest, UnfinishedStoreLeavesTheFileAsItWas) {
  replace("before");
  { DraftStoreWriter writer(path_, kInfo, {{"a", 3, 131, true}}); }
  EXPECT_EQ(bytes(), "before");
  EXPECT_EQ(list_folder(folder_.path()), std::vector{path_});
  write_small();
  EXPECT_EQ(DraftStore(path_).matrices().size(), 2u);
  EXPECT_EQ(list_folder(folder_.path()), std::vector{path_});
}

// Until it goes, no file can grow: as on a disk that is full.
class FullDisk {
 public:
  FullDisk() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(DraftStoreTest, FullDiskLeavesTheFileAsItWas) {
  replace("before");
  DraftStoreInfo long_header = kInfo;
  long_header.calibration = "text:" + std::string(100'000, 'x');  // more than a stream buffers
  for (const DraftStoreInfo& info : {kInfo, long_header}) {
    expect_error(ErrorKind::kInvalidRequest, {"cannot write", path_.string()}, [&] {
      const FullDisk full;
      DraftStoreWriter writer(path_, info, {{"a", 3, 131, true}});
      writer.add(a_.get());
      writer.finish();
    });
    EXPECT_EQ(list_folder(folder_.path()), std::vector{path_});
    EXPECT_EQ(bytes(), "before");
  }
}

// Both once wrote one file, which then had parts of each, or holes, under a checksum that was
// right.
TEST_F(DraftStoreTest, TwoWritersOfOnePathLeaveAWholeStore) {
  std::optional<DraftStoreWriter> first, second;
  const std::vector<StoredMatrix> matrices = {{"a", 3, 131, true}, {"b", 5, 64, false}};
  DraftStoreInfo other = kInfo;
  other.method = "rtn";
  first.emplace(path_, kInfo, matrices);
  first->add(a_.get());
  second.emplace(path_, other, matrices);
  second->add(a_.get());
  second->add(b_.get());
  second->finish();
  EXPECT_EQ(DraftStore(path_).info().method, "rtn");
  first.reset();  // it is ended before it has finished
  EXPECT_EQ(DraftStore(path_).info().method, "rtn");
  write_small();
  EXPECT_EQ(DraftStore(path_).info().method, "gptq");
  EXPECT_EQ(list_folder(folder_.path()), std::vector{path_});
}

TEST_F(DraftStoreTest, OnlyAFileIsReplaced) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  expect_error(ErrorKind::kInvalidRequest, {path_.string(), "a named pipe"},
               [&] { write_small(); });
  fs::remove(path_);
  fs::create_symlink(folder_.write("other", "kept"), path_);
  expect_error(ErrorKind::kInvalidRequest, {path_.string(), "a link"}, [&] { write_small(); });
  EXPECT_EQ(read_file(folder_ / "other"), "kept");
}

TEST_F(DraftStoreTest, ScalesThatAreNotFiniteAreRefused) {
  for (const int group : {32, 64}) {
    for (const std::uint16_t bits : {0x7c00, 0xfc00, 0x7e00}) {  // infinities, NaN
      Codes broken = a(group);
      broken.scales[2].offset = bits;
      DraftStoreInfo info = kInfo;
      info.group = group;
      {
        DraftStoreWriter writer(path_, info, {{"a", 3, 131, true}});
        writer.add(broken.get());
        writer.finish();
      }
      const DraftStore store(path_);
      expect_error(ErrorKind::kCorruptFile, {path_.string(), "\"a\"", "not finite"},
                   [&] { store.read(*store.find("a")); });
    }
  }
}

// A search through all matrices for each of them took minutes.
TEST_F(DraftStoreTest, TimeIsLinearInTheNumberOfMatrices) {
  const auto write = [&](std::size_t count) {
    std::vector<StoredMatrix> matrices;
    for (std::size_t i = 0; i < count; ++i) {
      matrices.push_back({fmt::format("m{}", i), 1, 64, false});
    }
    DraftStoreWriter writer(path_, kInfo, matrices);
    const Codes codes(1, 64, 64, 1);
    for (std::size_t i = 0; i < count; ++i) writer.add(codes.get());
    writer.finish();
  };
  const auto read = [&](std::size_t count) {
    const DraftStore store(path_);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_NE(store.find(fmt::format("m{}", i)), nullptr);
    }
  };
  expect_linear_time(10'000, write, read);
  write(70'000);
  expect_corrupt({"matrices must be a list of up to 65536"});
}

TEST_F(DraftStoreTest, TwoMatricesOfOneNameAreRefused) {
  DraftStoreWriter writer(path_, kInfo, {{"b", 5, 64, false}, {"b", 5, 64, false}});
  writer.add(b_.get());
  writer.add(b_.get());
  writer.finish();
  expect_corrupt({"two matrices \"b\""});
}

TEST_F(DraftStoreTest, UnwritablePathIsAnError) {
  path_ = folder_ / "no-such-folder" / "store.qsd";
  expect_error(ErrorKind::kInvalidRequest, {"cannot write", "no-such-folder"},
               [&] { write_small(); });
}

// --- weights that read a store -------------------------------------------------------------------

fs::path model_dir(const std::string& name) {
  return fs::path(QUANTSPEC_TESTDATA) / "models" / name;
}

struct Loaded {
  explicit Loaded(const std::string& name, const std::string& backend_name = "reference")
      : config(load_config(model_dir(name))),
        backend(make_backend({.name = backend_name, .num_threads = 1})),
        weights(config, std::make_unique<Checkpoint>(model_dir(name)), *backend) {}

  ModelConfig config;
  std::unique_ptr<Backend> backend;
  Weights weights;
};

// A store of all matrices of `weights` by the codec; of the head with both planes.
void write_store(const fs::path& path, const Weights& weights, int group, std::uint64_t checkpoint,
                 bool transposed = false) {
  std::vector<StoredMatrix> entries;
  for (const auto& [name, linear] : weights.matrices()) {
    entries.push_back({name, linear->outputs(), linear->inputs(), linear == &weights.head()});
    if (transposed) std::swap(entries.back().rows, entries.back().cols);
  }
  DraftStoreWriter writer(path, {.method = "rtn", .group = group, .checkpoint = checkpoint},
                          entries);
  for (const StoredMatrix& entry : entries) {
    writer.add(Codes(entry.rows, entry.cols, group, entry.rows + entry.cols).get());
  }
  writer.finish();
}

TEST_F(DraftStoreTest, ACheckpointThatShrinksIsNotAnotherOne) {
  MappedFile::survive_losses();
  const fs::path folder = folder_ / "model";
  fs::copy(model_dir("qwen3-qk-norm"), folder);
  const ModelConfig config = load_config(folder);
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  Weights weights(config, std::make_unique<Checkpoint>(folder), *backend);
  write_store(path_, weights, 64, weights.checkpoint_hash());
  const DraftStore store(path_);
  fs::resize_file(folder / "model.safetensors", 4096);
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "became shorter"},
               [&] { weights.use_draft_store(*backend, store); });
}

TEST_F(DraftStoreTest, WeightsReadTheirPlanesFromIt) {
  for (const int group : {32, 64, 128}) {
    Loaded model("qwen3-qk-norm");
    write_store(path_, model.weights, group, model.weights.checkpoint_hash());
    const DraftStore store(path_);
    model.weights.use_draft_store(*model.backend, store);
    EXPECT_EQ(model.weights.draft_bytes(), Weights::draft_bytes_for(store, *model.backend));
    for (const auto& [name, linear] : model.weights.matrices()) {
      const bool is_head = linear == &model.weights.head();
      EXPECT_EQ(linear->draft.format.group, group);
      EXPECT_EQ(linear->draft.lower != nullptr, is_head) << name;
      const auto bytes =
          model.backend->plane_bytes(linear->outputs(), linear->inputs(), sliced_format(group));
      std::vector<std::byte> upper(bytes.upper), lower(bytes.lower);
      model.backend->import_planes(
          Codes(linear->outputs(), linear->inputs(), group, linear->outputs() + linear->inputs())
              .get(),
          upper.data(), lower.data());
      EXPECT_EQ(std::memcmp(linear->draft.data, upper.data(), bytes.upper), 0) << name;
      if (is_head) {
        EXPECT_EQ(std::memcmp(linear->draft.lower, lower.data(), bytes.lower), 0) << name;
      }
    }
  }
}

TEST_F(DraftStoreTest, AGpuTakesEveryGroup) {
  if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  Loaded model("llama2-mha", "cuda");
  for (const int group : {32, 64, 128}) {
    write_store(path_, model.weights, group, model.weights.checkpoint_hash());
    model.weights.use_draft_store(*model.backend, DraftStore(path_));
    EXPECT_EQ(model.weights.head().draft.format.group, group);
  }
}

TEST_F(DraftStoreTest, WeightsSayWhatDraftsCanRead) {
  Loaded model("llama2-mha");
  EXPECT_EQ(model.weights.draft_description(), "none");
  write_store(path_, model.weights, 64, model.weights.checkpoint_hash());
  model.weights.use_draft_store(*model.backend, DraftStore(path_));
  EXPECT_EQ(model.weights.draft_description(),
            "4 bits, 4 and 8 bits in the head, from " + path_.string());
  model.weights.make_draft_planes(*model.backend, WeightRead::kBoth);
  EXPECT_EQ(model.weights.draft_description(), "4 and 8 bits");
  EXPECT_EQ(model.weights.head().draft.format, model.backend->encoder().format);
}

TEST_F(DraftStoreTest, StoreOfAnotherModelIsRefused) {
  Loaded model("llama2-mha");
  write_store(path_, model.weights, 64, model.weights.checkpoint_hash() + 1);
  expect_error(ErrorKind::kInvalidRequest,
               {"draft store " + path_.string(), "made for another checkpoint"},
               [&] { model.weights.use_draft_store(*model.backend, DraftStore(path_)); });
  write_store(path_, model.weights, 64, model.weights.checkpoint_hash(), true);
  expect_error(ErrorKind::kInvalidRequest, {"draft store " + path_.string(), "has no model."},
               [&] { model.weights.use_draft_store(*model.backend, DraftStore(path_)); });
  EXPECT_EQ(model.weights.head().draft.data, nullptr);
}

TEST(CheckpointHash, TellsCheckpointsApart) {
  const auto hash = [](const char* name) { return Checkpoint(model_dir(name)).hash(); };
  EXPECT_EQ(hash("llama2-mha"), hash("llama2-mha"));
  EXPECT_NE(hash("llama2-mha"), hash("llama3-gqa"));
  EXPECT_NE(hash("llama-yarn-sharded"), hash("llama2-mha"));
}

}  // namespace
}  // namespace quantspec
