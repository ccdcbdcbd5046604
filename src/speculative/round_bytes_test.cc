#include "speculative/round_bytes.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "speculative/test_support.h"
#include "tests/gguf_support.h"

namespace quantspec {
namespace {

constexpr int kPageSize = 32;
constexpr int kContext = 300;

class RoundBytesTest : public ::testing::Test {
 protected:
  double of_pass(const Plan& plan, int context) const {
    return static_cast<double>(
        pass_bytes(model_.weights(), model_.backend(), shape_, plan, context));
  }
  RoundBytes bytes(KvStore store) const { return {model_, shape_, store, target_, plans_}; }

  const std::unique_ptr<Backend> backend_ = make_backend({.name = "reference", .num_threads = 1});
  const Model model_ = load_tiny_model(*backend_);
  const KvShape shape_ = kv_shape(model_.config(), kPageSize);
  const Plan target_ = Plan::target(model_.config().num_layers);
  const std::vector<Plan> plans_ = {Plan::draft(model_.config().num_layers, WeightRead::kUpper),
                                    Plan::draft(model_.config().num_layers, WeightRead::kTarget)};
};

TEST_F(RoundBytesTest, WeightsAndCacheAreThoseOfAPass) {
  const RoundBytes bytes = this->bytes(KvStore::kHierarchical);
  const DraftLengths::Options options = bytes.options(3);
  EXPECT_EQ(options.fixed_len, 3);
  EXPECT_EQ(options.target_bytes + bytes.verify(kContext), of_pass(target_, kContext));
  std::vector<double> cache(plans_.size());
  bytes.draft(kContext, cache);
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    EXPECT_EQ(options.plans[i], plans_[i].name);
    EXPECT_EQ(options.plan_bytes[i] + cache[i], of_pass(plans_[i], kContext));
    EXPECT_LT(cache[i], bytes.verify(kContext));
  }
}

TEST_F(RoundBytesTest, PlansForLongerSequencesAreNotUsedYet) {
  std::vector<Plan> plans = plans_;
  plans[1].from_tokens = kContext + 1;
  const RoundBytes bytes{model_, shape_, KvStore::kHierarchical, target_, plans};
  std::vector<double> cache(plans.size());
  bytes.draft(kContext, cache);
  EXPECT_GE(cache[0], 0);
  EXPECT_LT(cache[1], 0);
  bytes.draft(kContext + 1, cache);
  EXPECT_GE(cache[1], 0);
}

// A cache in full precision has no planes to choose between.
TEST_F(RoundBytesTest, OfACacheInFullPrecisionAllIsRead) {
  const RoundBytes bytes = this->bytes(KvStore::kFull);
  std::vector<double> cache(plans_.size());
  bytes.draft(kContext, cache);
  const double all =
      model_.config().num_layers * static_cast<double>(kv_bytes(shape_, {KvRead::kFull}, kContext));
  EXPECT_EQ(cache, std::vector<double>(plans_.size(), all));
  EXPECT_EQ(bytes.verify(kContext), all);
}

TEST_F(RoundBytesTest, RefusesRoomForOtherPlans) {
  std::vector<double> one(1);
  EXPECT_THROW(bytes(KvStore::kFull).draft(kContext, one), Error);
}

// To begin with.
TEST_F(RoundBytesTest, WhatReadsLessIsAcceptedLess) {
  const std::vector<float> all = bytes(KvStore::kHierarchical).options({}).acceptance;
  ASSERT_EQ(all.size(), plans_.size());
  EXPECT_LT(all[0], all[1]);
}

// Acceptance to begin with by plans of 4 bits, of 4 bits with the head at 8, of 8, in a file of
// these types of the layers and of the head.
std::vector<float> acceptance_of_file(GgmlType layers, GgmlType head) {
  testing::GgufTypes types = testing::GgufTypes::all(layers);
  types.embedding = head;
  const testing::GgufModelFile file({"file", "llama", types});
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  const auto files = open_model(file.path);
  Weights weights(files->config(), files->weights(), *backend);
  weights.make_draft_planes(*backend, WeightRead::kBoth);
  const Model model(files->config(), std::move(weights), *backend);
  const int count = files->config().num_layers;
  std::vector<Plan> plans = {Plan::draft(count, WeightRead::kUpper),
                             Plan::draft(count, WeightRead::kUpper),
                             Plan::draft(count, WeightRead::kBoth)};
  plans[1].head = WeightRead::kBoth;
  const RoundBytes bytes{model, kv_shape(files->config(), kPageSize), KvStore::kHierarchical,
                         Plan::target(count), plans};
  return bytes.options({}).acceptance;
}

// Nothing is read less where four bits are all there is.
TEST(RoundBytesOfFiles, FourBitsOfFourAreAcceptedLikeEight) {
  const auto all = acceptance_of_file(GgmlType::kQ4_1, GgmlType::kQ4_1);
  EXPECT_EQ(all[0], all[2]);
  EXPECT_EQ(all[1], all[2]);
  const auto layers = acceptance_of_file(GgmlType::kQ4_K, GgmlType::kQ6_K);
  EXPECT_LT(layers[0], layers[1]);
  EXPECT_EQ(layers[1], layers[2]);
  const auto none = acceptance_of_file(GgmlType::kQ8_0, GgmlType::kQ8_0);
  EXPECT_LT(none[0], layers[0]);
  EXPECT_LT(none[0], none[1]);
  EXPECT_LT(none[1], none[2]);
  EXPECT_EQ(none[2], all[2]);
}

}  // namespace
}  // namespace quantspec
