#include "speculative/round_bytes.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "speculative/test_support.h"

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

}  // namespace
}  // namespace quantspec
