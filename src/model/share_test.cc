// Shares put together are the whole, and products of shares have its bits.

#include "model/share.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/params/pass.h"
#include "base/expect_error.h"
#include "base/test_folder.h"
#include "comm/comm.h"
#include "model/coded_source.h"
#include "model/draft_store.h"
#include "model/test_support.h"
#include "quant/encode_row.h"
#include "quant/test_support.h"

namespace quantspec {
namespace {

using Floats = std::vector<float>;

// Four segments, with channels that four ranks have no equal numbers of in any format.
ModelConfig shared_config() { return made_config(8, 4, 256, 2304); }

// What models of tests have: every format, and elements kept in eight bits.
struct Made {
  std::string name;
  WeightFormat format;
  bool in_eight_bits = false;

  std::unique_ptr<WeightSource> source(const ModelConfig& config) const {
    return source(MadeSource(config, format));
  }
  std::unique_ptr<WeightSource> source(const MadeSource& files) const {
    auto source = std::make_unique<MadeSource>(files);
    if (!in_eight_bits) return source;
    return quantspec::in_eight_bits(std::move(source), RowEncoder{sliced_format(kFineGroup)});
  }
};
void PrintTo(const Made& made, std::ostream* out) { *out << made.name; }

std::vector<Made> all_made() {
  std::vector<Made> all;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    all.push_back({std::string(name_of(dtype)), dense_format(dtype)});
  }
  all.push_back({"InEightBits", dense_format(DType::kBF16), true});
  for (const NamedFormat& named : kNamedFormats) {
    if (named.is_made()) all.push_back({named.name, named.format});
  }
  return all;
}

// A matrix or a vector as numbers, row by row.
std::vector<Floats> numbers(const SourceMatrix& matrix) {
  std::vector<Floats> rows;
  if (const auto* tensor = std::get_if<TensorView>(&matrix)) {
    for (int r = 0; r < tensor->rows; ++r) {
      Floats& row = rows.emplace_back();
      for (int c = 0; c < tensor->cols; ++c) {
        row.push_back(load_f32(tensor->data, tensor->dtype,
                               static_cast<std::size_t>(r) * stride_of(*tensor) + c));
      }
    }
    return rows;
  }
  const auto& coded = std::get<CodedMatrix>(matrix);
  RowBuffer buffer(coded.format, coded.cols);
  for (int r = 0; r < coded.rows; ++r) {
    coded.read(r, buffer.view());
    Floats& row = rows.emplace_back(coded.cols);
    decode_row(coded.format, coded.cols, buffer.view(), false, row.data());
  }
  return rows;
}

class ShareTest : public testing::TestWithParam<Made> {
 protected:
  void expect_whole(const ModelConfig& config, int ranks);
};

void ShareTest::expect_whole(const ModelConfig& config, int ranks) {
  const auto whole = GetParam().source(config);
  std::vector<Share> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    shares.push_back(share_of(config, GetParam().source(config), rank, ranks));
    EXPECT_EQ(unread_tensors(shares.back().config, *shares.back().source).size(), 0u);
  }
  const auto rows_side_by_side = [&](const std::string& name, const std::vector<int>& rows,
                                     int whole_rows, int cols) {
    std::vector<Floats> all;
    for (int rank = 0; rank < ranks; ++rank) {
      for (auto& row : numbers(shares[rank].source->matrix(name, rows[rank], cols))) {
        all.push_back(std::move(row));
      }
    }
    const bool tied = config.tied_head && name == kHeadName;
    EXPECT_EQ(all, numbers(whole->matrix(tied ? kEmbeddingName : name, whole_rows, cols))) << name;
  };
  const int hidden = config.hidden_size, vocab = config.vocab_size;
  if (shares.front().config.tied_head) {
    EXPECT_EQ(ranks, 1);
  } else {
    rows_side_by_side(kHeadName, std::vector<int>(ranks, vocab / ranks), vocab, hidden);
  }
  for (const Share& share : shares) {
    EXPECT_EQ(numbers(share.source->matrix(kEmbeddingName, vocab, hidden)),
              numbers(whole->matrix(kEmbeddingName, vocab, hidden)));
  }
  const auto specs = layer_matrices(config);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string name = tensor_name(0, kLayerMatrices[i].second, "weight");
    const std::string bias = tensor_name(0, kLayerMatrices[i].second, "bias");
    std::vector<int> own_rows;
    std::vector<Floats> columns(specs[i].outputs);
    Floats biases;
    for (const Share& share : shares) {
      const MatrixSpec own = layer_matrices(share.config)[i];
      own_rows.push_back(own.outputs);
      if (specs[i].in_segments) {
        const auto part = numbers(share.source->matrix(name, own.outputs, own.inputs));
        for (int r = 0; r < own.outputs; ++r) {
          columns[r].insert(columns[r].end(), part[r].begin(), part[r].end());
        }
      }
      if (!specs[i].has_bias) continue;
      const Floats part = numbers(share.source->tensor(bias, 1, own.outputs))[0];
      if (specs[i].in_segments) biases.clear();  // all of it at every rank
      biases.insert(biases.end(), part.begin(), part.end());
    }
    if (specs[i].in_segments) {
      EXPECT_EQ(columns, numbers(whole->matrix(name, specs[i].outputs, specs[i].inputs))) << name;
    } else {
      rows_side_by_side(name, own_rows, specs[i].outputs, specs[i].inputs);
    }
    if (specs[i].has_bias) {
      EXPECT_EQ(biases, numbers(whole->tensor(bias, 1, specs[i].outputs))[0]) << bias;
    }
  }
}

TEST_P(ShareTest, PutTogetherAreTheWhole) {
  ModelConfig config = shared_config();
  expect_whole(config, 2);
  config.qkv_bias = config.output_bias = config.qk_norm = config.tied_head = true;
  for (const int ranks : {1, 4}) expect_whole(config, ranks);
}

// --- products ------------------------------------------------------------------------------------

// What ranks compute of o or down, and one alone, of the same inputs.
struct Product {
  Linear LayerWeights::*matrix;
  Phase phase;
  WeightRead read;
};

class ShareProductTest : public testing::TestWithParam<Made> {
 protected:
  ShareProductTest() : config_(product_config()), files_(config_, GetParam().format) {}

  void expect_bits_of_one(const std::string& backend_name, const std::vector<Product>& products,
                          int ranks);

 private:
  static ModelConfig product_config() {
    ModelConfig config = shared_config();
    config.output_bias = true;
    config.hidden_size = 300;  // more than a tile of a prompt's products
    return config;
  }
  const Floats& random_numbers(std::size_t count, unsigned seed);

  const ModelConfig config_;
  // Made once: under AddressSanitizer, to draw numbers takes longer than all products of them.
  const MadeSource files_;
  std::map<std::pair<std::size_t, unsigned>, Floats> random_;
};

const Floats& ShareProductTest::random_numbers(std::size_t count, unsigned seed) {
  Floats& values = random_[{count, seed}];
  if (values.empty()) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    values.resize(count);
    for (float& value : values) value = normal(rng);
  }
  return values;
}

// Columns [first, first + count) of rows.
Floats columns_of(const Floats& rows, int stride, int first, int count) {
  Floats part;
  for (auto row = rows.begin(); row != rows.end(); row += stride) {
    part.insert(part.end(), row + first, row + first + count);
  }
  return part;
}

void ShareProductTest::expect_bits_of_one(const std::string& backend_name,
                                          const std::vector<Product>& products, int ranks) {
  struct Case {
    Product product;
    int rows;
    const Floats &in, &before;  // [rows, inputs] of all ranks, [rows, hidden]
    Floats expected;
  };
  const auto one = make_backend({.name = backend_name, .num_threads = 1});
  const Weights whole(config_, GetParam().source(files_), *one);
  std::vector<Case> cases;
  const auto add = [&](const Product& product, int rows) {
    const Linear& linear = whole.layers()[0].*product.matrix;
    const Floats& before = random_numbers(std::size_t(rows) * config_.hidden_size, 3);
    const Floats& in = random_numbers(std::size_t(rows) * linear.inputs(), 4 + rows);
    Floats& x = cases.emplace_back(product, rows, in, before, before).expected;
    one->add_linear({product.phase, product.read, in.data(), rows, &linear, x.data()});
  };
  for (const Product& product : products) {
    const int step = backend_name == "reference" ? 16 : 1;  // it is slow, and has no tiles
    for (int rows = 1; rows <= 17; rows += step) add(product, rows);
    if (step == 1 && product.phase == Phase::kPrefill) add(product, 150);
  }

  SharedRanks shared(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto all = shared.join(rank);
      const auto backend =
          make_backend({.name = backend_name, .num_threads = 2, .ranks = all.get()});
      Share share = share_of(config_, GetParam().source(files_), rank, ranks);
      const ModelConfig own = share.config;
      const Weights weights(own, std::move(share.source), *backend);
      for (const auto& [product, rows, all_in, before, expected] : cases) {
        const Linear& linear = weights.layers()[0].*product.matrix;
        const int inputs = (whole.layers()[0].*product.matrix).inputs();
        const int first =
            product.matrix == &LayerWeights::o
                ? rank * linear.inputs()
                : segment_begin(inputs, segment_unit(linear.target.format), ranks, rank);
        const Floats in = columns_of(all_in, inputs, first, linear.inputs());
        Floats x = before;
        backend->add_linear({product.phase, product.read, in.data(), rows, &linear, x.data()});
        EXPECT_EQ(std::memcmp(x.data(), expected.data(), x.size() * sizeof(float)), 0)
            << backend_name << ", " << (product.matrix == &LayerWeights::o ? "o" : "down")
            << ", phase " << static_cast<int>(product.phase) << ", read "
            << static_cast<int>(product.read) << ", " << rows << " rows, rank " << rank << " of "
            << ranks;
      }
    });
  }
}

TEST_P(ShareProductTest, HaveTheBitsOfOne) {
  const bool dense = GetParam().format.dense() && !GetParam().in_eight_bits;
  std::vector<Product> products;
  for (const auto matrix : {&LayerWeights::o, &LayerWeights::down}) {
    products.push_back({matrix, Phase::kDecode, WeightRead::kTarget});
    products.push_back({matrix, Phase::kPrefill, WeightRead::kTarget});
    // Of elements, drafts read codes that the backend makes, whose groups may be cut elsewhere.
    if (!dense) products.push_back({matrix, Phase::kDecode, WeightRead::kUpper});
  }
  for (const int ranks : {2, 4}) {
    for (const char* backend : {"cpu", "reference"}) expect_bits_of_one(backend, products, ranks);
  }
}

const auto kName = [](const testing::TestParamInfo<Made>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Formats, ShareTest, testing::ValuesIn(all_made()), kName);
INSTANTIATE_TEST_SUITE_P(Formats, ShareProductTest, testing::ValuesIn(all_made()), kName);

// --- what cannot be shared -----------------------------------------------------------------------

void refused(const ModelConfig& config, const WeightFormat& format, int ranks,
             const std::vector<std::string>& mentions) {
  expect_error(ErrorKind::kInvalidRequest, mentions,
               [&] { share_of(config, std::make_unique<MadeSource>(config, format), 0, ranks); });
}

TEST(Share, SaysHowManyRanksCan) {
  const WeightFormat f32 = dense_format(DType::kF32);
  refused(shared_config(), f32, 3, {"made: 3 ranks cannot share a model; 1 or 2 or 4 can"});
  refused(shared_config(), f32, 8, {"4 KV heads cannot be shared by 8 ranks; 1 or 2 or 4 can"});
  ModelConfig config = shared_config();
  config.vocab_size = 98;
  refused(config, f32, 4, {"98 tokens", "; 1 or 2 can"});
  config = shared_config();
  config.intermediate_size = 1024;
  refused(config, f32, 4, {"2048 and 1024 inputs are made in 2 segments", "; 1 or 2 can"});
}

// Of ranks that share contexts some may be alike.
TEST(Share, OfContexts) {
  const ModelConfig config = shared_config();  // of 4 KV heads
  const auto source = [&] {
    return std::make_unique<MadeSource>(config, dense_format(DType::kF32));
  };
  EXPECT_EQ(rank_counts(config, *source()), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(rank_counts(config, *source(), 2), (std::vector<int>{2, 4, 8}));
  EXPECT_EQ(rank_counts(config, *source(), 4), (std::vector<int>{4, 8}));
  for (const auto& [ranks, sharing, alike] :
       {std::tuple{4, 1, 1}, {2, 2, 1}, {4, 2, 1}, {4, 4, 1}, {8, 2, 2}, {8, 8, 2}}) {
    const RankGroups groups = rank_groups(config, *source(), ranks, sharing);
    EXPECT_EQ(groups.context, sharing);
    EXPECT_EQ(groups.alike, alike);
    for (int rank = 0; rank < ranks; ++rank) {
      const ModelConfig own = share_of(config, source(), rank, ranks, groups).config;
      EXPECT_EQ(own.num_heads * ranks, config.num_heads * alike);
      EXPECT_EQ(own.num_kv_heads * ranks, config.num_kv_heads * sharing);
      EXPECT_EQ(own.context_ranks, sharing);
      EXPECT_EQ(own.context_rank, rank % sharing);
    }
  }
  // Two segments of sums are two shares, with which eight ranks have two contexts.
  ModelConfig few = config;
  few.intermediate_size = 1024;
  const MadeSource of_few(few, dense_format(DType::kF32));
  expect_error(ErrorKind::kInvalidRequest, {"of 8 ranks 2 share", "so 4", "1 or 2 can; where 4"},
               [&] { rank_groups(few, of_few, 8, 2); });
}

WeightFormat named(std::string_view name) {
  return std::ranges::find(kNamedFormats, name, &NamedFormat::name)->format;
}

TEST(Share, CutsBetweenWholeScales) {
  // Nine units of 256: four ranks would have two and a quarter each.
  ModelConfig config = made_config(12, 4, 192, 2048);
  refused(config, named("Q4_K"), 4, {"the 2304 columns", "o_proj", "by heads", "256", "; 1 can"});
  // Down in two formats, of which the one with smaller units is cut elsewhere.
  config = made_config(8, 4, 256, 43 * 256);
  config.num_layers = 2;
  const auto share = [&](const char* second) {
    auto source = std::make_unique<MadeSource>(config, named("Q4_K"));
    source->put("model.layers.1.mlp.down_proj.weight", named(second), config.hidden_size,
                config.intermediate_size, 99);
    return share_of(config, std::move(source), 1, 2).config.intermediate_size;
  };
  EXPECT_EQ(share("Q4_K"), 22 * 256);
  expect_error(ErrorKind::kInvalidRequest, {"layers.1.mlp.down_proj", "as other layers' are"},
               [&] { share("Q8_0"); });
}

// By which a draft store of the whole is its own, too.
TEST(Share, HasTheHashOfTheWhole) {
  const ModelConfig config = shared_config();
  const MadeSource whole(config, dense_format(DType::kF32));
  auto source = std::make_unique<MadeSource>(config, dense_format(DType::kF32));
  EXPECT_EQ(share_of(config, std::move(source), 1, 2).source->hash(), whole.hash());
}

// A draft store of random codes, for a model of one layer.
std::filesystem::path made_store(const TestFolder& folder, const ModelConfig& config, int group) {
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  const Weights weights(config, std::make_unique<MadeSource>(config, dense_format(DType::kBF16)),
                        *backend);
  std::vector<StoredMatrix> matrices;
  for (const auto& [name, linear] : weights.matrices()) {
    matrices.push_back({name, linear->outputs(), linear->inputs(), name != "lm_head.weight"});
  }
  const std::filesystem::path path = folder / std::to_string(group);
  DraftStoreWriter writer(path, {.method = "rtn", .group = group}, matrices);
  for (const StoredMatrix& m : matrices) {
    RandomCodes codes(sliced_format(group), m.rows, m.cols, static_cast<unsigned>(m.rows + m.cols));
    for (RowBuffer& row : codes.rows) {  // as a store keeps them without a lower plane
      for (auto& code : row.codes) code = m.has_lower ? code : (code & 0xf0) + 8;
    }
    writer.add(codes.matrix());
  }
  writer.finish();
  return path;
}

// Those codes that the whole has of its rows and columns.
void expect_parts(const std::filesystem::path& path, const WeightSource& share) {
  const DraftStore store(path);
  DraftStore own(path);
  own.cut(share);
  bool is_less = false;
  for (const StoredMatrix& m : own.matrices()) {
    const StoredMatrix& whole = *store.find(m.name);
    const MatrixPart in = share.part_of(m.name, whole.rows, whole.cols);
    EXPECT_EQ((std::pair{m.rows, m.cols}), (std::pair{in.rows, in.cols}));
    is_less |= m.cols < whole.cols;
    const std::vector<Floats> expected = numbers(store.read(whole)), actual = numbers(own.read(m));
    for (int r = 0; r < in.rows; ++r) {
      const auto first = expected[in.first_row + r].begin() + in.first_col;
      ASSERT_EQ(actual[r], Floats(first, first + in.cols)) << m.name << " row " << r;
    }
  }
  EXPECT_TRUE(is_less);
}

TEST(Share, HasItsPartOfADraftStore) {
  for (const int channels : {2304, 4096}) {
    ModelConfig config = made_config(8, 4, 256, channels);
    const TestFolder folder;
    for (const int group : {kFineGroup, 64, 128}) {
      const std::filesystem::path path = made_store(folder, config, group);
      for (const auto& [rank, ranks] : {std::pair{0, 2}, std::pair{1, 2}, std::pair{2, 4}}) {
        const Share share = share_of(
            config, std::make_unique<MadeSource>(config, dense_format(DType::kBF16)), rank, ranks);
        if (group == kFineGroup && channels == 2304) {  // ranks have odd multiples of 128
          DraftStore own(path);
          expect_error(ErrorKind::kInvalidRequest, {"256 inputs have a scale", "64 or 128"},
                       [&] { own.cut(*share.source); });
          continue;
        }
        expect_parts(path, *share.source);
      }
    }
  }
}

// The bits of a model of which nobody could have a share stay those of one sum.
TEST(Share, ShortSumsAreOne) {
  EXPECT_EQ(num_segments(made_config(8, 8, 64, 1408)), 1);
  EXPECT_EQ(num_segments(made_config(8, 8, 128, 1408)), 2);
  EXPECT_EQ(num_segments(made_config(32, 8, 128, 14336)), 8);
  EXPECT_EQ(num_segments(made_config(28, 4, 128, 18944)), 4);
  EXPECT_EQ(num_segments(made_config(9, 3, 512, 14336)), 1);
}

}  // namespace
}  // namespace quantspec
