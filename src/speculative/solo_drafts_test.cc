#include "speculative/solo_drafts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "speculative/speculative.h"
#include "speculative/test_support.h"

namespace quantspec {
namespace {

constexpr int kPageSize = 32;
constexpr double kSecondsPerByte = 1e-9;

// A tiny model on a machine where a byte takes a nanosecond, and a row a twentieth of the weights.
class SoloDraftsTest : public ::testing::Test {
 protected:
  SoloDrafts drafts(std::optional<int> fixed_len = {}) {
    return {model_, cache_, target_, plans_, fixed_len};
  }
  double seconds(const Plan& plan, int rows, int context) const {
    const auto bytes = [&](int n) {
      return static_cast<double>(pass_bytes(model_.weights(), *backend_, pool_.shape(), plan, n));
    };
    return kSecondsPerByte * (bytes(context) + 0.05 * (rows - 1) * bytes(0));
  }
  // Rounds after so many tokens, all of that context. Returns how often each plan drafted.
  std::vector<int> rounds(SoloDrafts& drafts, int count, int context,
                          const std::vector<double>& acceptance) {
    std::vector<int> by_plan(plans_.size());
    std::uniform_real_distribution<double> uniform(0, 1);
    for (int i = 0; i < count; ++i) {
      const DraftChoice choice = drafts.choose(kMaxDraftLen, context);
      int accepted = 0;
      double draft_seconds = 0;
      if (choice.draft_len > 0) {
        ++by_plan[choice.plan];
        while (accepted < choice.draft_len && uniform(random_) < acceptance[choice.plan]) {
          ++accepted;
        }
        draft_seconds = choice.draft_len * seconds(plans_[choice.plan], 1, context);
      }
      drafts.observe(choice, accepted, draft_seconds,
                     seconds(target_, choice.draft_len + 1, context));
    }
    return by_plan;
  }

  const std::unique_ptr<Backend> backend_ = make_backend({.name = "reference", .num_threads = 1});
  const Model model_ = load_tiny_model(*backend_);
  const int num_layers_ = model_.config().num_layers;
  PagePool pool_{*backend_, kv_shape(model_.config(), kPageSize)};
  const KvCache cache_{*backend_, pool_, 64};
  const Plan target_ = Plan::target(num_layers_);
  const std::vector<Plan> plans_ = {
      Plan::draft(num_layers_, WeightRead::kUpper),
      Plan::uniform("few pages", num_layers_, WeightRead::kUpper,
                    {KvRead::kUpper, KvTokens::kByMass, 2 * kPageSize})};
  std::mt19937_64 random_{5};
};

// Plans are told apart by what they read of the cache, also at a context that no round had yet.
TEST_F(SoloDraftsTest, FollowsTheBytesOfTheCache) {
  SoloDrafts drafts = this->drafts();
  const std::vector<double> acceptance = {0.97, 0.8};
  const std::vector<int> at_short = rounds(drafts, 300, 100, acceptance);
  EXPECT_GT(at_short[0], 10 * at_short[1]);
  rounds(drafts, 300, 4000, acceptance);
  const std::vector<int> at_long = rounds(drafts, 300, 60000, acceptance);
  EXPECT_GT(at_long[1], 10 * at_long[0]);
  EXPECT_FALSE(drafts.off());
}

TEST_F(SoloDraftsTest, CopiesGoOnByThemselves) {
  SoloDrafts drafts = this->drafts();
  rounds(drafts, 200, 1000, {0.9, 0.9});
  SoloDrafts copy = drafts;
  EXPECT_EQ(copy.explain(), drafts.explain());
  const std::string before = drafts.explain();
  rounds(copy, 200, 1000, {0, 0});
  EXPECT_TRUE(copy.off());
  EXPECT_NE(copy.explain().find("does not pay"), std::string::npos);
  EXPECT_FALSE(drafts.off());
  EXPECT_EQ(drafts.explain(), before);
}

TEST_F(SoloDraftsTest, KeepsToAFixedLengthAndToTheCap) {
  SoloDrafts drafts = this->drafts(5), none = this->drafts(0);
  rounds(drafts, 20, 100, {0.9, 0.9});
  for (const int cap : {16, 5, 3, 0}) {
    const DraftChoice choice = drafts.choose(cap, 100);
    EXPECT_EQ(choice.draft_len, std::min(cap, 5));
    drafts.observe(choice, 0, 1e-3 * choice.draft_len, 1e-2);
  }
  EXPECT_EQ(none.choose(16, 100).draft_len, 0);
  EXPECT_THROW(this->drafts(kMaxDraftLen + 1), Error);
  EXPECT_THROW(drafts.choose(-1, 100), Error);
}

// A sequence has them for as long as its plans and its draft length stay.
TEST_F(SoloDraftsTest, ASequenceGoesOnWithWhatAnotherMeasured) {
  const DecodingOptions options{.sampling = {.temperature = 0}, .plans = plans_};
  Sequence first(model_, pool_, 1024, options, kv_options(plans_));
  Sequence second(model_, pool_, 256, options, kv_options(plans_));
  Decoder decoder(model_);
  decoder.prefill(first, std::vector<TokenId>{1, 2, 3, 4});
  // NOTE: rounds are timed, so how many it takes depends on what else the processor does.
  std::string measured = first.drafts().explain();
  while (measured.starts_with("still measuring") && first.room() > 0) {
    decoder.step(first, first.room());
    measured = first.drafts().explain();
  }
  EXPECT_EQ(measured.find("still measuring"), std::string::npos) << measured;
  EXPECT_NE(second.drafts().explain(), measured);
  second.adopt_drafts(first.drafts());
  EXPECT_EQ(second.drafts().explain(), measured);
  DecodingOptions other = options;
  other.sampling.temperature = 1;
  second.set_options(other);
  EXPECT_EQ(second.drafts().explain(), measured);
  other.draft_len = 2;
  second.set_options(other);
  EXPECT_NE(second.drafts().explain().find("still measuring"), std::string::npos);
}

}  // namespace
}  // namespace quantspec
