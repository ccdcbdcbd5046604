#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "speculative/speculative.h"
#include "speculative/test_support.h"

namespace quantspec {
namespace {

constexpr int kPageSize = 32;

class PassTiming : public ::testing::Test {
 protected:
  Sequence sequence(int capacity, const std::vector<Plan>& plans) {
    return {model_,
            pool_,
            capacity,
            {.sampling = {.temperature = 0}, .plans = plans},
            kv_options(plans)};
  }
  std::vector<TokenId> generate(Decoder& decoder, Sequence& sequence) {
    decoder.prefill(sequence, std::vector<TokenId>{1, 2, 3, 4});
    while (sequence.tokens().size() < 40) decoder.step(sequence, 1);
    return sequence.tokens();
  }

  const std::unique_ptr<Backend> backend_ = make_backend({.name = "cpu", .num_threads = 1});
  const Model model_ = load_tiny_model(*backend_);
  const int layers_ = model_.config().num_layers;
  PagePool pool_{*backend_, kv_shape(model_.config(), kPageSize)};
  const PlanContext context_{layers_, kPageSize, 2 * kPageSize};
  const std::vector<Plan> plans_ = {make_plan("quantspec", context_),
                                    make_plan("quantspec+sparse", context_),
                                    make_plan("kv-only", context_)};
};

TEST_F(PassTiming, TimesTheTargetAndEveryPlan) {
  Decoder decoder(model_);
  Sequence timed = sequence(256, plans_);
  const std::vector<TimedPass> passes = decoder.time_passes(timed, 10);
  std::vector<int> rows;
  std::vector<double> plan_seconds(plans_.size());
  for (const TimedPass& pass : passes) {
    EXPECT_GT(pass.seconds, 0);
    if (pass.plan == TimedPass::kTarget) rows.push_back(pass.load.rows);
    if (pass.plan != TimedPass::kTarget) plan_seconds[pass.plan] = pass.seconds;
  }
  std::ranges::sort(rows);
  EXPECT_EQ(rows, (std::vector{1, 3, 3, 7, 7}));
  EXPECT_EQ(plan_seconds[0], plan_seconds[1]);  // of one kind: they read the same weights
  EXPECT_EQ(std::ranges::count(plan_seconds, 0.0), 0);
}

TEST_F(PassTiming, LeavesNoTrace) {
  Decoder decoder(model_);
  Sequence timed = sequence(256, plans_), fresh = sequence(256, plans_);
  decoder.time_passes(timed, 10);
  EXPECT_TRUE(timed.tokens().empty());
  EXPECT_EQ(timed.cache().length(), 0);
  EXPECT_EQ(timed.stats().rounds, 0);
  EXPECT_EQ(pool_.used(), 0u);
  EXPECT_EQ(generate(decoder, timed), generate(decoder, fresh));
}

TEST_F(PassTiming, KeepsToItsTimeAndToTheCache) {
  Decoder decoder(model_);
  Sequence none = sequence(256, {}), small = sequence(4, plans_), timed = sequence(256, plans_);
  EXPECT_TRUE(decoder.time_passes(none, 10).empty());
  EXPECT_TRUE(decoder.time_passes(timed, 0).empty());
  for (const TimedPass& pass : decoder.time_passes(small, 10)) EXPECT_LE(pass.load.rows, 4);
  // Plain decoding comes first, and is timed wherever there is any time.
  const std::vector<TimedPass> hurried = decoder.time_passes(timed, 1e-9);
  EXPECT_LE(hurried.size(), 1u);
  generate(decoder, timed);
  EXPECT_THROW(decoder.time_passes(timed, 1), Error);
}

}  // namespace
}  // namespace quantspec
