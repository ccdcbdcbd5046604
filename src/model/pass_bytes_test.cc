#include "model/pass_bytes.h"

#include <gtest/gtest.h>

#include "model/model.h"
#include "model/model_files.h"
#include "model/safetensors.h"
#include "quant/encode_row.h"

namespace quantspec {
namespace {

constexpr int kPageSize = 32;
constexpr int kContext = 160;  // B = 128: four pages, and 32 tokens in the ring

// Three layers of grouped heads; matrices are read, not padded.
class PassBytesTest : public ::testing::Test {
 protected:
  std::size_t bytes(const Plan& plan) const {
    return pass_bytes(weights_, *backend_, shape_, plan, kContext);
  }
  std::size_t bytes(const KvAccess& kv) const {
    return bytes(Plan::uniform("", config_.num_layers, WeightRead::kTarget, kv));
  }

  const std::filesystem::path folder_ = QUANTSPEC_TESTDATA "/models/llama-gqa3";
  const ModelConfig config_ = load_config(folder_);
  const std::unique_ptr<Backend> backend_ = make_backend({.name = "reference", .num_threads = 1});
  const Weights weights_{config_, std::make_unique<Checkpoint>(folder_), *backend_};
  const KvShape shape_ = kv_shape(config_, kPageSize);
};

TEST_F(PassBytesTest, OfKvAreWhatEachAccessReads) {
  const std::size_t ring_only = bytes({KvRead::kUpper, KvTokens::kNone});
  const std::size_t upper = shape_.units() * shape_.upper_unit_bytes();
  const std::size_t token = shape_.fp16_token_bytes();
  EXPECT_EQ(bytes({KvRead::kUpper}) - ring_only, 4 * upper);
  EXPECT_EQ(bytes({KvRead::kBoth}) - bytes({KvRead::kUpper}),
            4 * shape_.units() * shape_.lower_unit_bytes());
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kByMass, 64}) - ring_only, 2 * upper);
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kByMass, KvBudget::one_in(2)}) - ring_only, 2 * upper);
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kByMass, KvBudget::one_in(9)}) - ring_only, upper);
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kByMass, 9999}), bytes({KvRead::kUpper}));
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kByBound, 64}) - ring_only,
            2 * upper + 4 * 4 * shape_.units() * shape_.head_dim);
  EXPECT_EQ(bytes({KvRead::kFull}) - ring_only, 128 * token);
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kStreaming, 100}) - ring_only,
            (16 + 64) * token);  // sinks, and the window in whole tiles
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kStreaming, 20}) - ring_only, 16 * token);
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kSnap, 48}) - ring_only, (48 - 32) * token);
  EXPECT_EQ(bytes({KvRead::kUpper, KvTokens::kRetrieval, 9999}) - ring_only, 128 * token);
}

TEST_F(PassBytesTest, OfWeightsAreThoseOfTheLayersThatRunAndTheHead) {
  const KvAccess kv = {KvRead::kUpper};
  Plan plan = Plan::uniform("", config_.num_layers, WeightRead::kTarget, kv);
  const std::size_t all = bytes(plan);
  std::size_t layer = 0;
  for (const NamedLinear& matrix : weights_.matrices()) {
    if (matrix.name.find("layers.1.") != matrix.name.npos) {
      layer += matrix_bytes(*backend_, *matrix.linear, WeightRead::kTarget);
    }
  }
  plan.layers[1].run = false;
  EXPECT_EQ(all - bytes(plan), layer + kv_bytes(shape_, kv, kContext));
  plan.head = WeightRead::kUpper;
  EXPECT_EQ(all - bytes(plan), layer + kv_bytes(shape_, kv, kContext) +
                                   matrix_bytes(*backend_, weights_.head(), WeightRead::kTarget) -
                                   matrix_bytes(*backend_, weights_.head(), WeightRead::kUpper));
}

// Before and after pages' borders, for layers that differ and for one that does not run.
TEST_F(PassBytesTest, OfAPlansKvAreThoseOfAPassWithoutItsWeights) {
  Plan plan = Plan::draft(config_.num_layers, WeightRead::kUpper);
  plan.layers[1].kv = {KvRead::kUpper, KvTokens::kByBound, 64};
  const PlanKvBytes kv(shape_, KvStore::kHierarchical, plan);
  plan.layers[0].run = false;
  const PlanKvBytes fewer(shape_, KvStore::kHierarchical, plan);
  const PlanKvBytes full(shape_, KvStore::kFull, plan);
  const std::size_t layer = kv_bytes(shape_, plan.layers[0].kv, kContext);
  EXPECT_EQ(kv.after(kContext) - fewer.after(kContext), static_cast<double>(layer));
  for (const int context : {0, 1, 31, 32, 63, 64, 160, 1000}) {
    const auto bytes = [&](int n) { return pass_bytes(weights_, *backend_, shape_, plan, n); };
    EXPECT_EQ(fewer.after(context), static_cast<double>(bytes(context) - bytes(0)));
    EXPECT_EQ(full.after(context) * config_.num_layers,
              static_cast<double>((config_.num_layers - 1) * shape_.fp16_token_bytes() * context));
  }
}

// What is counted for a model that is not loaded is what a loaded one has, where nothing is padded.
TEST(PassBytes, OfAWeightTimesTheirNumberAreThoseOfTheMatrix) {
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  for (const int group : {32, 64, 128}) {
    const Linear linear{dense({nullptr, DType::kBF16, 48, 256}), {sliced_format(group), 48, 256}};
    const WeightBytes bytes = weight_bytes(dense_format(DType::kBF16), group);
    for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
      EXPECT_EQ(static_cast<double>(matrix_bytes(*backend, linear, read)),
                48 * 256 * bytes.of(read));
    }
  }
}

// Of a model in 8 bits, of which nothing is kept for drafts, and of one in part.
TEST(PassBytes, OfAModelsWeightsAreTheMeanOfItsMatrices) {
  const std::filesystem::path folder = QUANTSPEC_TESTDATA "/models/llama-gqa3";
  const auto files = open_model(folder);
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  const auto of = [&](TargetWeights target) {
    return mean_weight_bytes(matrix_formats(files->config(), *files->weights(target, *backend)));
  };
  const WeightFormat kept = backend->encoder().format;
  const WeightBytes dense = of(TargetWeights::kCheckpoint), coded = of(TargetWeights::k8Bits);
  EXPECT_DOUBLE_EQ(dense.target, files->weight_bytes(TargetWeights::kCheckpoint, kept).target);
  EXPECT_DOUBLE_EQ(coded.target, files->weight_bytes(TargetWeights::k8Bits, kept).target);
  EXPECT_DOUBLE_EQ(dense.kept_for_drafts, 0.53125);
  EXPECT_DOUBLE_EQ(coded.target, 1 + 0.625 / 8);
  EXPECT_DOUBLE_EQ(coded.upper, 4.625 / 8);
  EXPECT_DOUBLE_EQ(coded.kept_for_drafts, 0);
  const WeightBytes mixed = mean_weight_bytes(std::vector<MatrixFormat>{
      {"a", "bf16", dense_format(DType::kBF16), 100}, {"b", "8 bits", sliced_format(), 300}});
  EXPECT_DOUBLE_EQ(mixed.target, (2 + 3 * 1.03125) / 4);
  EXPECT_DOUBLE_EQ(mixed.kept_for_drafts, 0.53125 / 4);
}

TEST(PassBytes, OfAUnitAreItsPlanes) {
  const KvShape shape{.num_layers = 2, .num_kv_heads = 3, .head_dim = 64, .page_size = 32};
  EXPECT_EQ(unit_bytes(shape, KvRead::kUpper), shape.upper_unit_bytes());
  EXPECT_EQ(unit_bytes(shape, KvRead::kBoth), shape.upper_unit_bytes() + shape.lower_unit_bytes());
}

}  // namespace
}  // namespace quantspec
