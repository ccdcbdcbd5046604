// The measurements on tiny models: against plain computations, and the fast backend against the
// reference.
#include "eval/eval.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/expect_error.h"
#include "base/files.h"
#include "comm/comm.h"
#include "eval/forced_pass.h"
#include "eval/memory.h"
#include "eval/test_support.h"

namespace quantspec {
namespace {

using namespace testing::eval;
using testing::LoadedModel;

Variant simulated(int layers, KvRead read) {
  return {"simulated", Plan::uniform("simulated", layers, WeightRead::kTarget, {KvRead::kFull}),
          KvStore::kFull, KvCodec{KvCodec::Quantizer::kOurs, read}};
}

std::vector<PerplexityRow> perplexity(LoadedModel& loaded, std::span<const Prompt> texts,
                                      const PerplexityOptions& options,
                                      const std::vector<Variant>& variants) {
  std::vector<PerplexityRow> rows;
  eval_perplexity(eval_model(loaded), texts, options, variants, {}, rows);
  return rows;
}

std::vector<FidelityRow> fidelity(LoadedModel& loaded, const std::vector<Prompt>& texts,
                                  const std::vector<Plan>& plans) {
  std::vector<FidelityRow> rows;
  const FidelityTask task{texts, plans};
  eval_fidelity(eval_model(loaded), {&task, 1}, 5, {}, rows);
  return rows;
}

// Measured on the first of two prompts, verified on the second.
SensitivityResult sensitivity(LoadedModel& loaded, const std::vector<Prompt>& texts,
                              const SensitivityOptions& options,
                              const ProgressCallback& progress = {}) {
  SensitivityResult result;
  eval_sensitivity(eval_model(loaded), std::span(texts).first(1), std::span(texts).last(1), options,
                   progress, result);
  return result;
}

TEST(Perplexity, OfFp16KvIsThatOfOneTokenAfterTheOther) {
  LoadedModel loaded = tiny("reference");
  const auto texts = prompts(loaded, 1, 90, 0);
  auto variants = kv_variants(loaded.model);
  variants.resize(1);
  const auto rows = perplexity(loaded, texts, {90, 45, {}}, variants);
  double nll = 0;
  const std::span<const TokenId> tokens = texts[0].tokens;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    nll += Distribution(loaded.last_logits(tokens.first(i))).nll(tokens[i]);
  }
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].windows, 1);
  EXPECT_EQ(rows[0].scores.tokens, 89);
  // Prefill adds up in another order than decoding.
  EXPECT_NEAR(rows[0].scores.nll.value, nll / 89, 1e-5);
  EXPECT_EQ(rows[0].scores.kl.value, 0);
  EXPECT_EQ(rows[0].delta_nll.value, 0);
  EXPECT_EQ(rows[0].by_position.size(), 1u);
}

TEST(Perplexity, WindowsScoreEveryTokenOnce) {
  LoadedModel loaded = tiny("cpu");
  std::vector<Prompt> texts = prompts(loaded, 2, 80, 60);
  texts[0].tokens[0] = texts[1].tokens[0] = 1;
  auto variants = kv_variants(loaded.model);
  const auto rows = perplexity(loaded, texts, {80, 30, 1}, variants);
  ASSERT_EQ(rows.size(), variants.size());
  for (const PerplexityRow& row : rows) {
    EXPECT_EQ(row.windows, 6);
    EXPECT_EQ(row.scores.tokens, 2 * (79 + 30 + 30));
    EXPECT_TRUE(std::isfinite(row.delta_nll.error));
  }
  EXPECT_LT(rows[1].scores.kl.value, rows[3].scores.kl.value);  // 8 bits, 4 bits
  EXPECT_LT(rows[5].scores.kl.value, rows[6].scores.kl.value);  // 8- and 4-bit weights
}

TEST(Perplexity, RefusesAStrideThatIsNoStride) {
  LoadedModel loaded = tiny("reference");
  const auto texts = prompts(loaded, 1, 40, 0);
  EXPECT_THROW(perplexity(loaded, texts, {40, 40, {}}, kv_variants(loaded.model)), Error);
}

// What stands in for quantizers that the cache does not have is right for the one that it has.
TEST(ForcedPass, TheSimulationOfOursIsTheCacheItself) {
  LoadedModel loaded = tiny("reference");
  const int layers = loaded.model.config().num_layers;
  const auto tokens = some_tokens(170, loaded.model.config().vocab_size);
  for (const KvRead read : {KvRead::kBoth, KvRead::kUpper}) {
    const Variant paged{"paged", Plan::uniform("paged", layers, WeightRead::kTarget, {read})};
    for (const int prompt : {0, 100}) {
      const auto scores = score_variants(eval_model(loaded), {paged, simulated(layers, read)},
                                         tokens, prompt, prompt, {});
      EXPECT_LT(summarize(std::span(scores).last(1)).kl.value, 1e-10);
      EXPECT_EQ(summarize(std::span(scores).first(1)).kl.value, 0);
    }
  }
}

// The fast backend also rounds queries to 8 bits where it reads pages, and a full cache to fp16.
TEST(ForcedPass, TheSimulationOfOursIsCloseOnTheFastBackend) {
  LoadedModel loaded = tiny("cpu");
  const int layers = loaded.model.config().num_layers;
  const auto tokens = some_tokens(170, loaded.model.config().vocab_size);
  std::vector<Variant> variants = kv_variants(loaded.model);
  variants = {variants[0], variants[3], simulated(layers, KvRead::kUpper)};
  const auto scores = score_variants(eval_model(loaded), variants, tokens, 0, 0, {});
  const double paged = summarize(std::span(scores).subspan(1, 1)).kl.value;
  const double simulation = summarize(std::span(scores).subspan(2, 1)).kl.value;
  EXPECT_NEAR(simulation, paged, 0.05 * paged);
}

TEST(ForcedPass, TheTargetAsADraftAgreesWithItself) {
  LoadedModel loaded = tiny("cpu");
  const int layers = loaded.model.config().num_layers;
  const auto tokens = some_tokens(200, loaded.model.config().vocab_size);
  const Plan target = Plan::uniform("target", layers, WeightRead::kTarget, {KvRead::kBoth});
  Plan sparse =
      Plan::uniform("sparse", layers, WeightRead::kTarget, {KvRead::kBoth, KvTokens::kByMass, 64});
  const auto scores =
      score_drafts(eval_model(loaded), {target, Plan::draft(layers, WeightRead::kUpper), sparse},
                   tokens, 130, {.round = 5}, {});
  ASSERT_EQ(scores.size(), 3u);
  for (const Score& score : scores[0]) {
    EXPECT_EQ(score.kl, 0);
    EXPECT_TRUE(score.agrees);
  }
  EXPECT_EQ(scores[0].size(), 69u);
  EXPECT_GT(summarize(std::span(scores).subspan(1, 1)).kl.value, 1e-4);
  // Before the first round has been verified, there is no mass to choose by: all pages are read.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(scores[2][i].kl, 0) << i;
  EXPECT_GT(summarize(std::span(scores).subspan(2, 1)).kl.value, 0);
}

// A draft's score does not depend on the other drafts beside it.
TEST(ForcedPass, DraftsLeaveNoTrace) {
  LoadedModel loaded = tiny("cpu");
  const int layers = loaded.model.config().num_layers;
  const auto tokens = some_tokens(180, loaded.model.config().vocab_size);
  const Plan w4 = Plan::draft(layers, WeightRead::kUpper),
             w8 = Plan::draft(layers, WeightRead::kBoth);
  const auto alone = score_drafts(eval_model(loaded), {w4}, tokens, 120, {.round = 3}, {});
  const auto after = score_drafts(eval_model(loaded), {w8, w4}, tokens, 120, {.round = 5}, {});
  for (std::size_t i = 0; i < alone[0].size(); ++i) {
    EXPECT_EQ(alone[0][i].kl, after[1][i].kl) << i;
    EXPECT_EQ(alone[0][i].overlap, after[1][i].overlap) << i;
  }
}

TEST(Fidelity, OfTheFastBackendIsThatOfTheReference) {
  std::vector<std::vector<FidelityRow>> rows;
  for (const char* backend : {"reference", "cpu"}) {
    LoadedModel loaded = tiny(backend);
    const int layers = loaded.model.config().num_layers;
    const auto texts = prompts(loaded, 2, 100, 41);
    rows.push_back(fidelity(
        loaded, texts,
        {Plan::draft(layers, WeightRead::kTarget), Plan::draft(layers, WeightRead::kUpper)}));
  }
  ASSERT_EQ(rows[0].size(), 4u);
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    const ScoreSummary &exact = rows[0][i].scores, &fast = rows[1][i].scores;
    EXPECT_EQ(rows[0][i].reading, rows[1][i].reading);
    EXPECT_EQ(fast.tokens, 80);
    EXPECT_EQ(rows[1][i].by_position.size(), 4u);
    // Random weights make steep distributions: KL of 1e-4 where trained ones have 1e-5.
    EXPECT_NEAR(fast.nll.value, exact.nll.value, 0.05) << rows[0][i].reading;
    EXPECT_NEAR(fast.acceptance.value, exact.acceptance.value, 5e-3) << rows[0][i].reading;
    EXPECT_NEAR(fast.kl.value, exact.kl.value, 2e-5 + 0.2 * exact.kl.value) << rows[0][i].reading;
  }
  EXPECT_LT(rows[1][0].scores.kl.value, 3e-4);
  EXPECT_GT(rows[1][0].scores.acceptance.value, rows[1][2].scores.acceptance.value);
  EXPECT_GT(rows[1][2].scores.acceptance.value, rows[1][3].scores.acceptance.value);
}

TEST(Fidelity, PlansOfOtherTargetsAreMeasuredApart) {
  LoadedModel loaded = tiny("cpu");
  const int layers = loaded.model.config().num_layers;
  const auto texts = prompts(loaded, 1, 100, 11);
  Plan other = Plan::draft(layers, WeightRead::kBoth);
  other.target_full_layers = {0};
  other.layers[0].kv = {KvRead::kFull};
  const auto rows = fidelity(loaded, texts, {Plan::draft(layers, WeightRead::kBoth), other});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_NE(rows[2].scores.kl.value, rows[3].scores.kl.value);
}

TEST(Lossless, FindsTheFirstDifference) {
  const std::vector<TokenId> one = {1, 2, 3}, other = {1, 2, 4}, shorter = {1, 2};
  EXPECT_EQ(first_difference(one, one), std::nullopt);
  EXPECT_EQ(first_difference(one, other), 2);
  EXPECT_EQ(first_difference(one, shorter), 2);
  EXPECT_EQ(first_difference(shorter, one), 2);
}

TEST(Lossless, SpeculationChangesNothing) {
  LoadedModel loaded = tiny("cpu");
  const int layers = loaded.model.config().num_layers;
  const auto texts = prompts(loaded, 2, 70, 0);
  LosslessOptions options;
  options.predict = 80;
  options.drafters = {{"w4", {Plan::draft(layers, WeightRead::kUpper)}},
                      {"sparse",
                       {Plan::uniform("sparse", layers, WeightRead::kBoth,
                                      {KvRead::kUpper, KvTokens::kByMass, 32})}}};
  options.draft_lens = {2, std::nullopt};
  std::vector<LosslessRow> rows;
  eval_lossless(eval_model(loaded), texts, options, {}, rows);
  ASSERT_EQ(rows.size(), 2u * 2 * 2 * 2);
  for (const LosslessRow& row : rows) {
    EXPECT_EQ(row.first_difference, std::nullopt) << row.sampling << " " << row.drafter;
    EXPECT_EQ(row.tokens, 80);
  }
  EXPECT_GT(rows[0].tokens_per_round, 1);
}

TEST(Sensitivity, WritesAPlanThatFitsTheBytesOfTheUniformOne) {
  LoadedModel loaded = tiny("cpu");
  const ModelConfig& config = loaded.model.config();
  const auto texts = prompts(loaded, 2, 160, 13);
  SensitivityOptions options;
  options.base = Plan::draft(config.num_layers, WeightRead::kUpper);
  const std::size_t layer_bytes = loaded.pool.shape().fp16_token_bytes() / config.num_layers * 160;
  options.target_bytes = layer_bytes;
  const SensitivityResult result = sensitivity(loaded, texts, options);
  EXPECT_EQ(std::ssize(result.entropies), config.num_layers);
  for (const LayerEntropy& layer : result.entropies) {
    EXPECT_GT(layer.nats, 0);
    EXPECT_LE(layer.relative, 1);
  }
  EXPECT_LE(result.chosen_outcome.draft_bytes, result.base_outcome.draft_bytes);
  EXPECT_LE(result.chosen_outcome.predicted_kl, result.base_outcome.predicted_kl);
  EXPECT_EQ(result.chosen->target_full_layers.size(), 1u);
  EXPECT_LT(result.chosen_outcome.target.kl.value, result.base_outcome.target.kl.value);
  const ScoreSummary &base = result.base_outcome.measured, &chosen = result.chosen_outcome.measured;
  EXPECT_NEAR(result.acceptance_change.value, chosen.acceptance.value - base.acceptance.value,
              1e-12);
  EXPECT_NEAR(result.kl_change.value, chosen.kl.value - base.kl.value, 1e-12);
  EXPECT_EQ(result.draft_budget, result.base_outcome.draft_bytes);
  EXPECT_EQ(result.is_worse() || (result.is_within_error() && result.acceptance_change.value < 0),
            chosen.acceptance.value < base.acceptance.value);

  const std::filesystem::path file = ::testing::TempDir() + "/eval_test_plan.json";
  NewFile new_file(file);
  write_plan_file(*result.chosen, new_file);
  const Plan read = read_plan_file(file, {config.num_layers, kPageSize});
  EXPECT_EQ(read.layers, result.chosen->layers);
  EXPECT_EQ(read.head, result.chosen->head);
  EXPECT_EQ(read.target_full_layers, result.chosen->target_full_layers);
  std::filesystem::remove(file);
}

// A store from `quantspec prepare` may have 4-bit planes alone.
TEST(Sensitivity, TriesOnlyWeightsThatAreThere) {
  LoadedModel loaded(testing::testdata("models/llama-gqa3"), "cpu", 1, kPageSize,
                     WeightRead::kUpper);
  for (const Variant& variant : kv_variants(loaded.model)) {
    EXPECT_NE(variant.plan.layers[0].weights, WeightRead::kBoth) << variant.name;
  }
  const auto texts = prompts(loaded, 2, 100, 5);
  SensitivityOptions options;
  options.base = Plan::draft(loaded.model.config().num_layers, WeightRead::kUpper);
  const SensitivityResult result = sensitivity(loaded, texts, options);
  EXPECT_TRUE(loaded.model.reads(*result.chosen));
}

TEST(Sensitivity, RefusesBudgetsThatNothingFits) {
  LoadedModel loaded = tiny("cpu");
  const auto texts = prompts(loaded, 2, 100, 5);
  SensitivityOptions options;
  options.base = Plan::draft(loaded.model.config().num_layers, WeightRead::kUpper);
  const auto run = [&] { sensitivity(loaded, texts, options); };
  options.draft_bytes = 1000;
  EXPECT_THROW(run(), Error);
  options.draft_bytes.reset();
  options.target_bytes = 1;
  EXPECT_THROW(run(), Error);
}

// --- measurements that are ended early -----------------------------------------------------------

TEST(Ended, PerplexityIsThatOfTheWindowsThatWereRead) {
  LoadedModel loaded = tiny("cpu");
  const auto texts = prompts(loaded, 2, 80, 0);
  const auto variants = kv_variants(loaded.model);
  std::vector<PerplexityRow> rows;
  EXPECT_THROW(eval_perplexity(eval_model(loaded), texts, {80, 30, {}}, variants,
                               ends_at("windows", 0.7), rows),
               Ended);
  const auto whole = perplexity(loaded, std::span(texts).first(1), {80, 30, {}}, variants);
  ASSERT_EQ(rows.size(), whole.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].windows, 1);
    EXPECT_EQ(rows[i].scores.nll.value, whole[i].scores.nll.value);
  }
  rows.clear();
  EXPECT_THROW(eval_perplexity(eval_model(loaded), texts, {80, 30, {}}, variants,
                               ends_at("windows", 0), rows),
               Ended);
  EXPECT_TRUE(rows.empty());
}

TEST(Ended, FidelityKeepsWholePromptsAndEarlierStages) {
  LoadedModel loaded = tiny("cpu");
  const int layers = loaded.model.config().num_layers;
  const FidelityTask task{prompts(loaded, 2, 100, 11), {Plan::draft(layers, WeightRead::kUpper)}};
  std::vector<FidelityRow> rows;
  EXPECT_THROW(eval_fidelity(eval_model(loaded), {&task, 1}, 5, ends_at("drafts", 0.6), rows),
               Ended);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].prompts, 2);
  EXPECT_EQ(rows[2].prompts, 1);
  EXPECT_EQ(rows[2].scores.tokens, 10);
}

TEST(Ended, LosslessKeepsWhatWasCompared) {
  LoadedModel loaded = tiny("cpu");
  LosslessOptions options;
  options.predict = 20;
  options.drafters = {{"w4", {Plan::draft(loaded.model.config().num_layers, WeightRead::kUpper)}}};
  options.draft_lens = {1, 2};
  std::vector<LosslessRow> rows;
  EXPECT_THROW(eval_lossless(eval_model(loaded), prompts(loaded, 1, 70, 0), options,
                             ends_at("generating", 0.8), rows),
               Ended);
  EXPECT_EQ(rows.size(), 3u);
}

TEST(Ended, SensitivityKeepsItsStages) {
  LoadedModel loaded = tiny("cpu");
  const auto texts = prompts(loaded, 2, 100, 5);
  SensitivityOptions options;
  options.base = Plan::draft(loaded.model.config().num_layers, WeightRead::kUpper);
  const auto ended_at = [&](std::string_view stage) {
    SensitivityResult result;
    EXPECT_THROW(eval_sensitivity(eval_model(loaded), std::span(texts).first(1),
                                  std::span(texts).last(1), options, ends_at(stage, 0), result),
                 Ended);
    const Report shown = report(result);  // can be shown whatever is missing
    EXPECT_FALSE(to_markdown({}, shown).empty());
    EXPECT_FALSE(to_json({}, shown).empty());
    return result;
  };
  EXPECT_TRUE(ended_at("entropy").entropies.empty());
  EXPECT_FALSE(ended_at("drafts").entropies.empty());
  EXPECT_TRUE(ended_at("drafts").rows.empty());
  const SensitivityResult no_targets = ended_at("targets");
  EXPECT_FALSE(no_targets.rows.empty());
  EXPECT_FALSE(no_targets.chosen.has_value());
  const SensitivityResult not_verified = ended_at("verify");
  ASSERT_TRUE(not_verified.chosen.has_value());
  EXPECT_EQ(not_verified.chosen_outcome.measured.tokens, 0);
  const auto json = nlohmann::json::parse(to_json({}, report(not_verified)));
  for (const auto& row : json["rows"]) {
    if (row["kind"] == "plan") {
      EXPECT_TRUE(row["acceptance"].is_null());
    }
  }
}

// --- checkpoints that change meanwhile -----------------------------------------------------------

TEST_F(ChangingModel, PerplexityIsOfTheWindowsBefore) {
  std::vector<PerplexityRow> rows;
  expect_reported([&] {
    eval_perplexity(model(), texts_, {100, 30, {}}, kv_variants(loaded_->model),
                    writes_at("windows", 0.7), rows);
  });
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].windows, 1);
}

TEST_F(ChangingModel, FidelityIsOfThePromptsBefore) {
  const FidelityTask task{texts_, {draft()}};
  std::vector<FidelityRow> rows;
  expect_reported([&] { eval_fidelity(model(), {&task, 1}, 5, writes_at("drafts", 0.7), rows); });
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].prompts, 1);
}

TEST_F(ChangingModel, LosslessIsOfTheGenerationsBefore) {
  LosslessOptions options;
  options.predict = 20;
  options.drafters = {{"w4", {draft()}}};
  options.draft_lens = {1, 2};
  std::vector<LosslessRow> rows;
  expect_reported([&] {
    eval_lossless(model(), std::span(texts_).first(1), options, writes_at("generating", 0.8), rows);
  });
  EXPECT_EQ(rows.size(), 3u);
}

TEST_F(ChangingModel, SensitivityKeepsItsStages) {
  SensitivityOptions options;
  options.base = draft();
  SensitivityResult result;
  expect_reported([&] {
    eval_sensitivity(model(), std::span(texts_).first(1), std::span(texts_).last(1), options,
                     writes_at("entropy", 0.5), result);
  });
  EXPECT_TRUE(result.entropies.empty());
}

// --- memory --------------------------------------------------------------------------------------

TEST(Memory, CountsTheCachesThatAreOpened) {
  LoadedModel loaded = tiny("cpu");
  const EvalModel model = eval_model(loaded);
  const auto tokens = some_tokens(200, loaded.model.config().vocab_size);
  std::vector<float> logits(loaded.model.config().vocab_size);
  for (const Variant& variant : kv_variants(loaded.model)) {
    KvOptions options = kv_options(variant);
    options.chunk = kPageSize;  // of whole chunks every page is there: the most there can be
    KvCache cache(*loaded.backend, loaded.pool, 200, options);
    loaded.model.prefill(tokens, cache, logits);
    const std::size_t taken = cache.page_bytes() + cache.ring_bytes() + cache.gathered_bytes();
    EXPECT_GE(cache_bytes(model, 200, options), taken) << variant.name;
    EXPECT_LE(cache_bytes(model, 200, options), 1.01 * taken) << variant.name;
  }
  const auto variants = kv_variants(loaded.model);
  const std::size_t fp16 = loaded.pool.shape().fp16_token_bytes() * 200;
  EXPECT_GT(variants_bytes(model, variants, 200), 3 * fp16);  // fp16, and the paper's, simulated
}

TEST(Memory, WhatDoesNotFitIsRefusedInOneLine) {
  LoadedModel loaded = tiny("cpu");
  const EvalModel model = eval_model(loaded);
  require_memory(model, 1 << 20, 4096);
  expect_error(ErrorKind::kOutOfMemory,
               {"context size 4096: ", "need 1000000000000 MB", "are available"},
               [&] { require_memory(model, std::size_t{1'000'000'000'000'000'000}, 4096); });
}

// Whichever of them has less, or needs more.
TEST(Memory, WhatAnotherRankHasNotIsRefused) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 62;
  struct Another {
    std::uint64_t has, needs;
    const char* said;  // null: nothing is refused
  };
  for (const Another another : {Another{1'000'000, 1, "need 2 MB and 1 MB are available"},
                                Another{3'000'000, 4'000'000, "need 4 MB and 3 MB are available"},
                                Another{kMuch, 1, nullptr}}) {
    SharedRanks ranks(2);
    const std::jthread other([&] {
      as_rank(ranks, 1, [&](Communicator& all) {
        const Agreement agreement(&all);
        agreement.least(another.has);
        agreement.least(~another.needs);
      });
    });
    as_rank(ranks, 0, [&](Communicator& all) {
      LoadedModel loaded = tiny("cpu");
      EvalModel model = eval_model(loaded);
      model.ranks = &all;
      const auto ask = [&] { require_memory(model, 2'000'000, 4096); };
      if (another.said == nullptr) return ask();
      expect_error(ErrorKind::kOutOfMemory, {another.said}, ask);
    });
  }
}

}  // namespace
}  // namespace quantspec
