#include "prepare/prepare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "base/error.h"
#include "model/draft_store.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/safetensors.h"
#include "model/weight_source.h"
#include "prepare/observer.h"
#include "prepare/test_support.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

// A test model with a tokenizer of the letters a to z and the space, and text of them.
class PrepareTest : public testing::Test {
 protected:
  PrepareTest()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("quantspec-prepare-") +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(model());
    const fs::path source = fs::path(QUANTSPEC_TESTDATA) / "models" / "llama3-gqa";
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy(source / name, model() / name);
    }
    std::string vocabulary = "\"\u0120\": 26", text;
    for (char c = 'a'; c <= 'z'; ++c)
      vocabulary += ", \"" + std::string(1, c) + "\": " + std::to_string(c - 'a');
    std::ofstream(model() / "tokenizer.json")
        << R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,)"
        << R"( "use_regex": false}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE",)"
        << R"( "merges": [], "vocab": {)" << vocabulary << "}}}";
    const CounterRng rng(5);
    for (int i = 0; i < 3000; ++i) {
      const auto word = rng.block(i, RandomStream::kSample, 0)[0];
      text += i % 7 == 6 ? ' ' : static_cast<char>('a' + word % 26);
    }
    std::ofstream(folder_ / "text.txt") << text;
    options_.model = model();
    options_.calibration = "text:" + (folder_ / "text.txt").string();
    options_.calibration_tokens = 1024;
    options_.output = folder_ / "draft.qsd";
    options_.backend = {.name = "reference", .num_threads = 1};
  }
  ~PrepareTest() override { fs::remove_all(folder_); }

  fs::path model() const { return folder_ / "model"; }

  void expect_refused(const std::string& mention) {
    try {
      prepare_draft_store(options_);
      ADD_FAILURE() << "no error; expected one that mentions " << mention;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
      EXPECT_NE(std::string(error.what()).find(mention), std::string::npos) << error.what();
    }
    EXPECT_FALSE(fs::exists(options_.output));
  }

  // Logits of a few tokens with the draft's weights of `store` (none: the target's).
  std::vector<float> logits(const DraftStore* store, WeightRead head = WeightRead::kUpper) {
    const auto backend = make_backend(options_.backend);
    const ModelConfig config = load_config(model());
    Weights weights(config, open_model(model())->weights(), *backend);
    if (store != nullptr) weights.use_draft_store(*backend, *store);
    const Model model(config, std::move(weights), *backend);
    PagePool pages(*backend, kv_shape(config, 0));
    KvCache cache(*backend, pages, 64);
    Plan plan = Plan::target(config.num_layers);
    if (store != nullptr) {
      for (LayerPlan& layer : plan.layers) layer.weights = WeightRead::kUpper;
      plan.head = head;
    }
    const std::vector<TokenId> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    std::vector<float> out(tokens.size() * config.vocab_size);
    const SequenceInput input{tokens, &cache};
    cache.reserve(static_cast<int>(tokens.size()));
    model.forward({&input, 1}, plan, out);
    return out;
  }

  fs::path folder_;
  PrepareOptions options_;
};

// |a - b|^2 / |b|^2
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, power = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - b[i], 2);
    power += std::pow(double{b[i]}, 2);
  }
  return error / power;
}

TEST_F(PrepareTest, GptqMakesAStoreThatDraftsRead) {
  const std::vector<float> target = logits(nullptr);
  for (const int group : {32, 64, 128}) {
    options_.group = group;
    options_.method = DraftMethod::kGptq;
    const PrepareSummary made = prepare_draft_store(options_);
    EXPECT_EQ(made.calibration_tokens, 1024);
    EXPECT_GT(made.error, 0.0);
    EXPECT_LT(made.error, 0.8 * made.rtn_error);
    const DraftStore store(options_.output);
    EXPECT_EQ(store.info().method, "gptq");
    EXPECT_EQ(store.info().calibration, options_.calibration);
    EXPECT_EQ(store.info().group, group);
    // 4-bit weights of a random model: other logits, but near.
    const double error = relative_error(logits(&store), target);
    EXPECT_GT(error, 1e-6);
    EXPECT_LT(error, 0.1);
  }
}

TEST_F(PrepareTest, RtnNeedsNoTextAndIsWhatLoadingMakes) {
  options_.method = DraftMethod::kRtn;
  options_.calibration.clear();
  const PrepareSummary made = prepare_draft_store(options_);
  EXPECT_EQ(made.calibration_tokens, 0);
  EXPECT_EQ(made.error, 0.0);
  const auto backend = make_backend(options_.backend);
  const ModelConfig config = load_config(model());
  Weights stored(config, open_model(model())->weights(), *backend),
      usual(config, open_model(model())->weights(), *backend);
  const DraftStore store(options_.output);
  EXPECT_EQ(store.info().group, kFineGroup);
  EXPECT_GE(made.bits_per_weight, 4.625);  // blocks end early
  stored.use_draft_store(*backend, store);
  usual.make_draft_planes(*backend, WeightRead::kUpper);
  const auto a = stored.matrices(), b = usual.matrices();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].linear->draft.format, b[i].linear->draft.format);
    const auto bytes = backend->plane_bytes(a[i].linear->outputs(), a[i].linear->inputs(),
                                            a[i].linear->draft.format);
    EXPECT_EQ(std::memcmp(a[i].linear->draft.data, b[i].linear->draft.data, bytes.upper), 0)
        << a[i].name;
  }
}

TEST_F(PrepareTest, HeadOf8BitsIsNearerToTheTarget) {
  options_.head_bits = 8;
  prepare_draft_store(options_);
  const DraftStore store(options_.output);
  for (const StoredMatrix& matrix : store.matrices()) {
    EXPECT_EQ(matrix.has_lower, matrix.name == "lm_head.weight") << matrix.name;
  }
  const std::vector<float> target = logits(nullptr);
  EXPECT_LT(relative_error(logits(&store, WeightRead::kBoth), target),
            relative_error(logits(&store, WeightRead::kUpper), target));
}

TEST_F(PrepareTest, SameCommandGivesTheSameBytes) {
  prepare_draft_store(options_);
  const std::string first = read_file(options_.output);
  prepare_draft_store(options_);
  EXPECT_EQ(read_file(options_.output), first);
}

TEST_F(PrepareTest, CancellingLeavesNoFile) {
  for (const std::string_view stage : {"calibrating", "rounding weights"}) {
    const auto cancel = [&](std::string_view now, double done) {
      if (now == stage && done > 0.3) throw std::runtime_error("cancelled");
    };
    EXPECT_THROW(prepare_draft_store(options_, cancel), std::runtime_error);
    int files = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) files += entry.is_regular_file();
    EXPECT_EQ(files, 1) << "only the text";
  }
}

// What a run that is killed leaves.
TEST_F(PrepareTest, WritesOneFileAtATime) {
  std::size_t most = 0;
  prepare_draft_store(options_, [&](std::string_view, double) {
    std::size_t parts = 0;
    for (const fs::path& path : list_folder(folder_)) parts += path.extension() == ".part";
    most = std::max(most, parts);
  });
  EXPECT_EQ(most, 1u);
}

TEST_F(PrepareTest, ImpossibleRequestsAreRefused) {
  options_.group = 16;
  expect_refused("group size 16");
  options_.group = 64;
  options_.head_bits = 5;
  expect_refused("head bits 5");
  options_.head_bits = 4;
  for (const int tokens : {0, -5, kLeastCalibrationTokens - 1}) {
    options_.calibration_tokens = tokens;
    expect_refused("calibration tokens " + std::to_string(tokens));
  }
  options_.calibration_tokens = 1'000'000;
  expect_refused("calibration text '" + options_.calibration + "': ");
  options_.calibration = "text:/nowhere";
  expect_refused("calibration text 'text:/nowhere': ");
  options_.calibration.clear();
  expect_refused("calibration text");
}

TEST_F(PrepareTest, TooLittleTextIsRefusedSayingWhatWouldDo) {
  const int length = std::min(2048, load_config(model()).max_positions);
  const int found = 3000 / length;
  options_.calibration_tokens = (found + 2) * length;
  expect_refused(
      fmt::format("calibration needs {} sequences of {} tokens for calibration tokens {}, and the "
                  "text has {}; more text or calibration tokens {} works",
                  found + 2, length, options_.calibration_tokens, found, found * length));
  options_.calibration_tokens = found * length;
  EXPECT_EQ(prepare_draft_store(options_).calibration_tokens, found * length);
  fs::remove(options_.output);
  std::ofstream(folder_ / "text.txt") << "too short";
  expect_refused(
      fmt::format("calibration reads calibration tokens {} in sequences of {}: longer texts or "
                  "fewer calibration tokens work",
                  found * length, std::min(length, found * length)));
}

TEST_F(PrepareTest, WeightsThatAreNotFiniteAreNamed) {
  std::string file = read_file(model() / "model.safetensors");
  const TensorEntry down = parse_safetensors(std::as_bytes(std::span(file)), "")
                               .at("model.layers.1.mlp.down_proj.weight");
  file.replace(down.begin + 8, 4, "\x80\x7f\x80\x7f");  // infinite as fp32 and as bf16
  std::ofstream(model() / "model.safetensors", std::ios::binary) << file;
  options_.method = DraftMethod::kRtn;
  options_.calibration.clear();
  try {
    prepare_draft_store(options_);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile);
    EXPECT_NE(std::string(error.what()).find("layers.1.mlp.down_proj"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(fs::exists(options_.output));
}

TEST(InputSums, SumsTheInputsOfWhatItWatches) {
  constexpr int kIn = 48, kOut = 20, kRows = 5;
  ThreadPool pool(1);
  InputSums observer(pool);
  const std::vector<float> w = uniform_floats(kIn * kOut, 1), x = uniform_floats(kIn * kRows, 2),
                           norm = uniform_floats(kIn, 3);
  const Linear first{view_of(w, kOut, kIn)}, second{view_of(w, kOut, kIn)};
  observer.watch({&first});
  observer.observe(second, {nullptr, 0.0f}, x.data(), kRows);
  observer.observe(first, {norm.data(), 1e-5f}, x.data(), kRows);
  const auto sums = observer.take();
  ASSERT_EQ(sums.size(), 1u);
  const Gram& gram = sums.at(&first);
  EXPECT_EQ(gram.rows(), kRows);
  for (int i = 0; i < kIn; ++i) {
    double expected = 0.0;
    for (int r = 0; r < kRows; ++r) {
      double squares = 0.0;
      for (int c = 0; c < kIn; ++c) squares += double{x[r * kIn + c]} * x[r * kIn + c];
      expected += std::pow(x[r * kIn + i] * norm[i], 2) / (squares / kIn + 1e-5);
    }
    EXPECT_NEAR(gram.at(i, i), expected, 1e-5);
  }
  EXPECT_TRUE(observer.take().empty());
}

TEST(InputSums, APassShowsTheInputOfEveryMatrixOnceAndIsTheSame) {
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  const fs::path folder = QUANTSPEC_TESTDATA "/models/llama-gqa3";
  const ModelConfig config = load_config(folder);
  const Model model(config, Weights(config, open_model(folder)->weights(), *backend), *backend);
  struct Seen final : LinearObserver {
    void observe(const Linear& linear, const Norm& norm, const float* in, int rows) override {
      EXPECT_EQ(rows, 3);
      linears.push_back(&linear);
      norms.push_back(norm.weight);
      sizes.push_back(std::abs(in[0]));
    }
    std::vector<const Linear*> linears;
    std::vector<const float*> norms;
    std::vector<float> sizes;
  } seen;
  const std::vector<TokenId> tokens = {5, 6, 7};
  std::vector<float> with(3 * config.vocab_size), without(with.size());
  for (auto* logits : {&with, &without}) {
    PagePool pages(*backend, kv_shape(config, 0));
    KvCache cache(*backend, pages, 16);
    cache.reserve(3);
    const SequenceInput input{tokens, &cache};
    model.forward({&input, 1}, Plan::target(config.num_layers), *logits,
                  logits == &with ? &seen : nullptr);
  }
  EXPECT_EQ(with, without);
  std::vector<const Linear*> linears;
  std::vector<const float*> norms;
  for (const LayerWeights& layer : model.weights().layers()) {
    linears.insert(linears.end(), {&layer.q, &layer.o, &layer.gate, &layer.down});
    norms.insert(norms.end(), {layer.input_norm.weight, nullptr, layer.post_norm.weight, nullptr});
  }
  linears.push_back(&model.weights().head());
  norms.push_back(model.weights().final_norm().weight);
  EXPECT_EQ(seen.linears, linears);
  EXPECT_EQ(seen.norms, norms);
  for (const float size : seen.sizes) EXPECT_GT(size, 0.0f);
}

}  // namespace
}  // namespace quantspec
