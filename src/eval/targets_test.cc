// Two models and one text, on tiny models: against plain computations.
#include <gtest/gtest.h>

#include <cmath>

#include "eval/memory.h"
#include "eval/test_support.h"

namespace quantspec {
namespace {

using namespace testing::eval;
using testing::LoadedModel;

constexpr int kContext = 100;
constexpr int kTokens = 21;

LoadedModel tiny_in_8_bits(const std::string& backend) {
  return LoadedModel(testing::testdata("models/llama-gqa3"), backend, 1, kPageSize,
                     WeightRead::kTarget, 0, TargetWeights::k8Bits);
}

std::vector<TargetRow> targets(LoadedModel& loaded, LoadedModel& base,
                               const std::vector<Prompt>& texts) {
  std::vector<TargetRow> rows;
  const FidelityTask task{texts, {}};
  eval_targets(eval_model(loaded), {eval_model(base), "base"}, {&task, 1}, {}, rows);
  return rows;
}

std::vector<Distribution> plain(LoadedModel& loaded, const Prompt& prompt) {
  const Plan plan = Plan::uniform("plain", loaded.model.config().num_layers, WeightRead::kTarget,
                                  {KvRead::kFull});
  KvOptions options = kv_options(std::vector{plan});
  options.store = KvStore::kFull;
  return forced_one_by_one(loaded, prompt, plan, options);
}

TEST(Targets, OfAModelAgainstItselfDifferByTheirKvAlone) {
  for (const char* backend : {"reference", "cpu"}) {
    LoadedModel loaded = tiny(backend), base = tiny(backend);
    const auto texts = prompts(loaded, 2, kContext, kTokens);
    const auto rows = targets(loaded, base, texts);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].reading, "fp16 KV");
    EXPECT_EQ(rows[0].scores.kl.value, 0);
    EXPECT_EQ(rows[0].scores.agreement.value, 1);
    EXPECT_EQ(rows[0].delta_nll.value, 0);
    EXPECT_EQ(rows[0].perplexity(), rows[0].reference_perplexity());
    std::vector<FidelityRow> within;  // one model
    const FidelityTask task{texts, {}};
    eval_fidelity(eval_model(loaded), {&task, 1}, 5, {}, within);
    EXPECT_EQ(rows[1].reading, within[0].reading);
    EXPECT_GT(rows[1].scores.kl.value, 0);
    EXPECT_EQ(rows[1].scores.kl.value, within[0].scores.kl.value);
  }
}

TEST(Targets, AreComparedWithTheBasesPlainCache) {
  LoadedModel loaded = tiny("cpu"), exact = tiny("reference"), coded = tiny_in_8_bits("cpu");
  const auto texts = prompts(loaded, 2, kContext, kTokens);
  for (const auto& [measured, base] : {std::pair{&loaded, &exact}, std::pair{&coded, &loaded}}) {
    const TargetRow row = targets(*measured, *base, texts)[0];
    double kl = 0, nll = 0, base_nll = 0, agreed = 0;
    for (const Prompt& prompt : texts) {
      const auto is = plain(*measured, prompt), ought = plain(*base, prompt);
      for (std::size_t i = 0; i < is.size(); ++i) {
        const TokenId truth = prompt.continuation[i + 1];
        const Score score = compare(ought[i], is[i], truth);
        kl += score.kl;
        agreed += score.agrees;
        nll += score.nll;
        base_nll += ought[i].nll(truth);
      }
    }
    EXPECT_EQ(row.reference, "base");
    EXPECT_EQ(row.context, kContext);
    EXPECT_EQ(row.prompts, 2);
    EXPECT_EQ(row.scores.tokens, 40);
    EXPECT_GT(kl, 0);
    // The reference's passes of many rows add up in another order.
    EXPECT_NEAR(row.scores.kl.value, kl / 40, 1e-5 * kl);
    EXPECT_NEAR(row.scores.agreement.value, agreed / 40, 1e-12);
    EXPECT_NEAR(row.perplexity(), std::exp(nll / 40), 1e-5 * row.perplexity());
    EXPECT_NEAR(row.reference_perplexity(), std::exp(base_nll / 40), 1e-5 * row.perplexity());
    EXPECT_NEAR(row.delta_nll.value, (nll - base_nll) / 40, 1e-6);
    EXPECT_TRUE(std::isfinite(row.delta_nll.error));
  }
}

TEST(Targets, Of8BitWeightsAreCloseToTheCheckpoints) {
  for (const char* backend : {"reference", "cpu"}) {
    LoadedModel base = tiny(backend), loaded = tiny_in_8_bits(backend);
    EXPECT_NE(loaded.model.weights().target_description(),
              base.model.weights().target_description());
    for (const TargetRow& row : targets(loaded, base, prompts(base, 2, kContext, kTokens))) {
      EXPECT_GT(row.scores.kl.value, 1e-7) << backend << " " << row.reading;
      EXPECT_LT(row.scores.kl.value, 1e-2) << backend << " " << row.reading;
    }
  }
}

TEST(Targets, RefuseAPromptAfterWhichNoPageIsRead) {
  LoadedModel loaded = tiny("cpu"), base = tiny("reference");
  expect_error(ErrorKind::kInvalidRequest,
               {"context size 63: ", "64 tokens or more work", "smaller page size"},
               [&] { targets(loaded, base, prompts(loaded, 1, 2 * kPageSize - 1, 5)); });
  const auto rows = targets(loaded, base, prompts(loaded, 1, 2 * kPageSize, 5));
  EXPECT_NE(rows[0].scores.kl.value, rows[1].scores.kl.value);
}

TEST(Targets, OfPromptsThatWereReadAreKept) {
  LoadedModel loaded = tiny("cpu"), base = tiny("reference");
  const FidelityTask task{prompts(loaded, 2, kContext, kTokens), {}};
  const auto ended_at = [&](double share) {
    std::vector<TargetRow> rows;
    EXPECT_THROW(eval_targets(eval_model(loaded), {eval_model(base), "base"}, {&task, 1},
                              ends_at("targets", share), rows),
                 Ended);
    return rows;
  };
  EXPECT_TRUE(ended_at(0).empty());
  const auto rows = ended_at(0.6);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].prompts, 1);
  EXPECT_EQ(rows[1].scores.tokens, 20);
}

// The checkpoint of the base counts as much as that of what is measured.
TEST_F(ChangingModel, TargetsAreOfThePromptsBefore) {
  LoadedModel other = tiny("reference");
  const FidelityTask task{texts_, {}};
  std::vector<TargetRow> rows;
  expect_reported([&] {
    eval_targets(eval_model(other), {model(), "base"}, {&task, 1}, writes_at("targets", 0.7), rows);
  });
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].prompts, 1);
}

TEST(Targets, TakeMemoryForBothModels) {
  LoadedModel loaded = tiny("cpu"), other = tiny("reference");
  const EvalModel one = eval_model(loaded), two = eval_model(other);
  const std::size_t most_of_it = loaded.backend->available_bytes() / 10 * 6;
  require_memory(one, most_of_it, 4096);
  require_memory(two, most_of_it, 4096);
  require_memory(one, 1 << 20, two, 1 << 20, 4096);
  expect_error(ErrorKind::kOutOfMemory, {"context size 4096: "},
               [&] { require_memory(one, most_of_it, two, most_of_it, 4096); });
}

}  // namespace
}  // namespace quantspec
