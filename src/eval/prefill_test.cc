// What reading prompts in chunks costs, on tiny models: against plain computations.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/forced_pass.h"
#include "eval/memory.h"
#include "eval/test_support.h"

namespace quantspec {
namespace {

using namespace testing::eval;
using testing::LoadedModel;

constexpr int kContext = 150;  // no multiple of a page or of a chunk
constexpr int kTokens = 21;

Plan w4(const LoadedModel& loaded) {
  return Plan::draft(loaded.model.config().num_layers, WeightRead::kUpper);
}

PrefillResult prefill(LoadedModel& loaded, const FidelityTask& task, std::vector<int> chunks) {
  PrefillResult result;
  eval_prefill(eval_model(loaded), {&task, 1}, chunks, 5, {}, result);
  return result;
}

std::vector<Distribution> plain_target(LoadedModel& loaded, const Prompt& prompt, int chunk) {
  return forced_one_by_one(loaded, prompt, Plan::target(loaded.model.config().num_layers),
                           {.chunk = chunk});
}

TEST(Prefill, ComparesTargetsAfterChunksWithTheTargetAfterTheWhole) {
  for (const char* backend : {"reference", "cpu"}) {
    LoadedModel loaded = tiny(backend);
    const auto texts = prompts(loaded, 2, kContext, kTokens);
    const PrefillResult result = prefill(loaded, {texts, {}}, {32, 96});
    ASSERT_EQ(result.targets.size(), 2u);
    for (const PrefillRow& row : result.targets) {
      double kl = 0, delta = 0, agreed = 0;
      for (const Prompt& prompt : texts) {
        const auto whole = plain_target(loaded, prompt, 160);
        const auto in_chunks = plain_target(loaded, prompt, row.chunk);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          const TokenId truth = prompt.continuation[i + 1];
          const Score score = compare(whole[i], in_chunks[i], truth);
          kl += score.kl;
          agreed += score.agrees;
          delta += score.nll - whole[i].nll(truth);
        }
      }
      EXPECT_EQ(row.context, kContext);
      EXPECT_EQ(row.prompts, 2);
      EXPECT_EQ(row.scores.tokens, 40);
      EXPECT_GT(kl, 0);
      EXPECT_NEAR(row.scores.kl.value, kl / 40, 1e-12);
      EXPECT_NEAR(row.scores.agreement.value, agreed / 40, 1e-12);
      EXPECT_NEAR(row.delta_nll.value, delta / 40, 1e-12);
      EXPECT_TRUE(std::isfinite(row.scores.kl.error));
    }
  }
}

TEST(Prefill, TakesTheTimeOfEveryPrompt) {
  LoadedModel loaded = tiny("cpu");
  const PrefillRow row = prefill(loaded, {prompts(loaded, 2, kContext, 3), {}}, {32}).targets[0];
  ASSERT_EQ(row.seconds.of_groups.size(), 2u);
  double ratios = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(row.seconds.of_groups[i], 0);
    EXPECT_GT(row.whole_seconds.of_groups[i], 0);
    ratios += row.seconds.of_groups[i] / row.whole_seconds.of_groups[i];
  }
  EXPECT_NEAR(row.ratio.value, ratios / 2, 1e-12);
}

TEST(Prefill, AChunkThatHoldsThePromptChangesNothing) {
  LoadedModel loaded = tiny("cpu");
  const FidelityTask task{prompts(loaded, 2, kContext, kTokens), {w4(loaded)}};
  const PrefillResult result = prefill(loaded, task, {160, 1 << 28});
  ASSERT_EQ(result.targets.size(), 2u);
  ASSERT_EQ(result.drafts.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result.targets[i].scores.kl.value, 0);
    EXPECT_EQ(result.targets[i].delta_nll.value, 0);
    EXPECT_EQ(result.targets[i].scores.agreement.value, 1);
    EXPECT_EQ(result.drafts[i].acceptance_change.value, 0);
  }
  EXPECT_EQ(result.targets[1].chunk, 1 << 28);
}

TEST(Prefill, DraftsAreTriedAfterEachReading) {
  LoadedModel loaded = tiny("cpu");
  const EvalModel model = eval_model(loaded);
  const int layers = loaded.model.config().num_layers;
  Plan other = Plan::draft(layers, WeightRead::kBoth);  // of a target of its own
  other.name = "other";
  other.target_full_layers = {1};
  other.layers[1].kv = {KvRead::kFull};
  const FidelityTask task{prompts(loaded, 2, kContext, kTokens), {w4(loaded), other}};
  const PrefillResult result = prefill(loaded, task, {32, 96});
  ASSERT_EQ(result.drafts.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const PrefillDraftRow& row = result.drafts[i];
    const Plan& plan = task.plans[i / 2];
    EXPECT_EQ(row.plan, plan.name);
    EXPECT_EQ(row.chunk, i % 2 == 0 ? 32 : 96);
    std::vector<std::vector<Score>> whole, in_chunks;
    for (const Prompt& prompt : task.prompts) {
      const auto tokens = whole_text(prompt);
      whole.push_back(score_drafts(model, {plan}, tokens, kContext, {5, 160}, {})[0]);
      in_chunks.push_back(score_drafts(model, {plan}, tokens, kContext, {5, row.chunk}, {})[0]);
    }
    EXPECT_EQ(row.tokens, 40);
    EXPECT_EQ(row.whole_acceptance.value, summarize(whole).acceptance.value);
    EXPECT_EQ(row.acceptance.value, summarize(in_chunks).acceptance.value);
    EXPECT_NE(row.acceptance_change.value, 0);
    EXPECT_NEAR(row.acceptance_change.value, row.acceptance.value - row.whole_acceptance.value,
                1e-12);
  }
}

// By which everything else is measured: its prompts know no chunks.
TEST(Prefill, Fp16KvReadsPromptsInFullPrecisionThroughout) {
  for (const char* backend : {"reference", "cpu"}) {
    LoadedModel loaded = tiny(backend);
    std::vector<Variant> variants(2, kv_variants(loaded.model)[0]);
    variants[0].chunk = 160;
    variants[1].chunk = 32;
    const auto tokens = some_tokens(kContext + kTokens, loaded.model.config().vocab_size);
    const auto scores =
        score_variants(eval_model(loaded), variants, tokens, kContext, kContext, {});
    EXPECT_EQ(summarize(std::span(scores).last(1)).kl.value, 0) << backend;
  }
}

TEST(Prefill, KeepsWholePromptsAndEarlierStages) {
  LoadedModel loaded = tiny("cpu");
  const FidelityTask task{prompts(loaded, 2, kContext, kTokens), {w4(loaded)}};
  const std::vector<int> chunks = {32, 96};
  const auto ended_at = [&](std::string_view stage, double share) {
    PrefillResult result;
    EXPECT_THROW(
        eval_prefill(eval_model(loaded), {&task, 1}, chunks, 5, ends_at(stage, share), result),
        Ended);
    const Report shown = report(result);  // can be shown whatever is missing
    EXPECT_FALSE(to_markdown({}, shown).empty());
    return result;
  };
  EXPECT_TRUE(report(ended_at("target", 0)).empty());
  const PrefillResult one_read = ended_at("target", 0.6);
  ASSERT_EQ(one_read.targets.size(), 2u);
  EXPECT_EQ(one_read.targets[0].prompts, 1);
  EXPECT_TRUE(one_read.drafts.empty());
  const PrefillResult one_drafted = ended_at("drafts", 0.6);
  EXPECT_EQ(one_drafted.targets[0].prompts, 2);
  ASSERT_EQ(one_drafted.drafts.size(), 2u);
  EXPECT_EQ(one_drafted.drafts[1].prompts, 1);
  EXPECT_EQ(one_drafted.drafts[1].tokens, 20);
}

TEST_F(ChangingModel, PrefillIsOfThePromptsBefore) {
  const FidelityTask task{texts_, {draft()}};
  PrefillResult result;
  expect_reported([&] {
    const std::vector<int> chunks = {32};
    eval_prefill(model(), {&task, 1}, chunks, 5, writes_at("target", 0.7), result);
  });
  ASSERT_EQ(result.targets.size(), 1u);
  EXPECT_EQ(result.targets[0].prompts, 1);
}

// A prompt that is read whole takes K and V of a layer in full precision, and its activations.
TEST(Prefill, CountsTheMemoryOfReadingAPromptWhole) {
  LoadedModel loaded = tiny("cpu");
  const EvalModel model = eval_model(loaded);
  const std::size_t chunk = loaded.backend->prefill_chunk(), whole = 16 * chunk;
  const KvShape& shape = loaded.pool.shape();
  const std::size_t more = prefill_bytes(model, whole, whole) - prefill_bytes(model, whole);
  EXPECT_EQ(prefill_bytes(model, whole, chunk), prefill_bytes(model, whole));
  EXPECT_GE(more, (whole - chunk) * sizeof(float) * loaded.model.config().hidden_size +
                      loaded.backend->full_kv_bytes(shape, whole) -
                      loaded.backend->full_kv_bytes(shape, chunk));
}

}  // namespace
}  // namespace quantspec
