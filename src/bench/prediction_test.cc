#include "bench/prediction.h"

#include <gtest/gtest.h>

#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

constexpr int kContext = 8192;
const Machine kMachine{"test", 1e10, 1e12, 1e10};

const ModelConfig& model() { return testing::engine().config(); }

WeightBytes bytes_of_bf16(int group = kWeightGroup) {
  return weight_bytes(dense_format(DType::kBF16), group);
}

Predictor predictor(int page_size = kv_shape(model(), 0).page_size,
                    int weight_group = kWeightGroup) {
  return {kMachine, model(), page_size, bytes_of_bf16(weight_group)};
}

PassRead read_of(const std::string& plan, const Predictor& predictor = bench::predictor()) {
  const PlanContext context{model().num_layers, predictor.page_size, 1024};
  return predictor.read_of(make_plan(plan, context), kContext);
}

TEST(ReadOf, AUniformPlanReadsWhatTheRooflineSays) {
  const PassRead read = read_of("quantspec");
  const PassRead expected = pass_read(model(), bytes_of_bf16(), WeightRead::kUpper, KvRead::kUpper);
  EXPECT_DOUBLE_EQ(read.weight_bytes, expected.weight_bytes);
  EXPECT_DOUBLE_EQ(read.kv_bytes, expected.kv_bytes);
  EXPECT_DOUBLE_EQ(read.ring_tokens, expected.ring_tokens);
  EXPECT_DOUBLE_EQ(*read.kv_tokens, kContext);
  EXPECT_DOUBLE_EQ(read.layers, 1);
}

TEST(ReadOf, ASparsePlanReadsItsBudgetAndTheRing) {
  const double ring = 1.5 * kv_shape(model(), 0).page_size;
  EXPECT_DOUBLE_EQ(*read_of("quantspec+sparse").kv_tokens, 1024 + ring);
  EXPECT_DOUBLE_EQ(*read_of("snapkv").kv_tokens, 1024 - 32 + ring);
  EXPECT_DOUBLE_EQ(read_of("snapkv").kv_bytes, 2);
  EXPECT_DOUBLE_EQ(read_of("snapkv+w8").weight_bytes, read_of("quantspec+w8").weight_bytes);
  // Bounds: a scale and an offset of every key channel and page, of all pages.
  EXPECT_NEAR((read_of("quantspec+bounds").kv_bytes - read_of("quantspec").kv_bytes) * 1024,
              (kContext - ring) * 4 / (2.0 * 128), 1e-9);
}

TEST(ReadOf, PagesAndGroupsAreThoseOfTheRun) {
  const PassRead read = read_of("quantspec+sparse", predictor(32, 64));
  const PassRead expected =
      pass_read(model(), bytes_of_bf16(64), WeightRead::kUpper, KvRead::kUpper, 32);
  EXPECT_DOUBLE_EQ(read.weight_bytes, 0.5 + 4.0 / 64);
  EXPECT_DOUBLE_EQ(read.kv_bytes, expected.kv_bytes);
  EXPECT_DOUBLE_EQ(*read.kv_tokens, 1024 + 1.5 * 32);
  EXPECT_DOUBLE_EQ(*read_of("streaming", predictor(32)).kv_tokens, 1024 - 32 + 1.5 * 32);
}

TEST(ReadOf, WeightsOfATargetInCodesAreThoseCodes) {
  const Predictor predictor{kMachine, model(), 128, weight_bytes(sliced_format())};
  EXPECT_DOUBLE_EQ(read_of("kv-only", predictor).weight_bytes, 1 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(read_of("quantspec", predictor).weight_bytes, 0.5 + 4.0 / 128);
}

TEST(ReadOf, SkippedLayersAreNotRead) {
  EXPECT_DOUBLE_EQ(read_of("layer-skip:1,3-4").layers, 0.5);
  EXPECT_DOUBLE_EQ(read_of("layer-skip:1,3-4").weight_bytes, 2);
}

TEST(PredictedMs, OfPlainDecodingIsAStepOfTheTarget) {
  const auto entries = make_entries(testing::engine(), testing::small_bench(), 512);
  const PassRead fp16 = pass_read(model(), bytes_of_bf16(), WeightRead::kTarget, KvRead::kFull);
  const double step = decode_cost(model(), kContext, 1, 1, fp16).seconds(kMachine);
  EXPECT_DOUBLE_EQ(predictor().milliseconds(entries[0], kContext, nullptr, 0, 0), 1e3 * step);
  EXPECT_LT(predictor().milliseconds(entries[1], kContext, nullptr, 0, 0), 1e3 * step);
}

TEST(PredictedMs, DraftsThatAreAcceptedPay) {
  const auto entries = make_entries(testing::engine(), testing::small_bench(), 512);
  const Plan* draft = &entries[2].decoding.plans[0];
  const auto ms = [&](double acceptance) {
    return predictor().milliseconds(entries[2], kContext, draft, 4, acceptance);
  };
  const double plain = predictor().milliseconds(entries[1], kContext, nullptr, 0, 0);
  EXPECT_LT(ms(1), plain);
  EXPECT_GT(ms(0), plain);
}

}  // namespace
}  // namespace quantspec::bench
