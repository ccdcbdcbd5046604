#include "bench/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/expect_error.h"
#include "base/test_folder.h"
#include "bench/entries.h"
#include "bench/measurement.h"
#include "bench/prediction.h"
#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

using testing::dataset;
using testing::engine;
using testing::small_bench;

const BenchRow& row_of(const BenchReport& report, std::string_view plan) {
  return *std::ranges::find(report.rows, plan, &BenchRow::plan);
}

class Bench : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    report_ = new BenchReport(run_bench(engine(), dataset(), small_bench()));
  }
  static void TearDownTestSuite() { delete report_; }
  static BenchReport* report_;
};
BenchReport* Bench::report_ = nullptr;

TEST_F(Bench, HasARowForEveryEntry) {
  std::vector<std::string> plans;
  for (const BenchRow& row : report_->rows) plans.push_back(row.plan);
  EXPECT_EQ(plans, (std::vector<std::string>{"plain-fp16", "plain-int8", "quantspec",
                                             "quantspec+sparse", "auto"}));
  for (const BenchRow& row : report_->rows) {
    EXPECT_EQ(row.context, 300);
    EXPECT_EQ((std::vector{row.prompts, row.repeats, row.tokens}), (std::vector{2, 2, 40}));
    EXPECT_GT(row.prefill_ms.min, 0);
    EXPECT_GT(row.predicted_ms_per_token, 0);
    EXPECT_GT(row.commit_ms.min, 0);
    for (const Spread& spread : {row.ms_per_token, row.speedup_fp16, row.speedup_int8,
                                 row.verify_ms, row.tokens_per_round}) {
      EXPECT_LE(spread.min, spread.median);
      EXPECT_LE(spread.median, spread.max);
      EXPECT_GT(spread.min, 0);
      EXPECT_EQ(std::ssize(spread.values), row.repeats);
    }
    EXPECT_EQ(std::ssize(row.prefill_ms.values), row.prompts);
    EXPECT_NEAR(row.ms_per_token.min * row.decode_tokens_per_second.max, 1e3, 1e-6);
  }
}

// Repeat by repeat: where rounds have more tokens in one repeat than in another, as those of auto
// may, whose plan the clock chooses, a product of two medians is the time of no round.
TEST_F(Bench, TimesOfARoundAreWithinItsTime) {
  for (const BenchRow& row : report_->rows) {
    for (int i = 0; i < row.repeats; ++i) {
      const double parts =
          row.draft_ms.values.at(i) + row.verify_ms.values.at(i) + row.commit_ms.values.at(i);
      const double round = row.ms_per_token.values.at(i) * row.tokens_per_round.values.at(i);
      EXPECT_GT(parts, 0) << row.plan;
      EXPECT_LE(parts, round * 1.001) << row.plan << ", repeat " << i;
    }
  }
}

TEST_F(Bench, PlainDecodingDraftsNothing) {
  for (const std::string_view plan : {kPlainFp16, kPlainInt8}) {
    const BenchRow& row = row_of(*report_, plan);
    EXPECT_EQ(row.draft_len, 0);
    EXPECT_EQ(row.tokens_per_round.median, 1);
    EXPECT_FALSE(row.acceptance_rate);
    EXPECT_EQ(row.memory.draft_weights_bytes, 0u);
  }
  EXPECT_EQ(row_of(*report_, kPlainInt8).speedup_int8.median, 1);
}

TEST_F(Bench, MemoryIsThatOfSuchARunAlone) {
  const MemoryPlan& fp16 = row_of(*report_, kPlainFp16).memory;
  const MemoryPlan& quantspec = row_of(*report_, "quantspec").memory;
  const MemoryPlan& automatic = row_of(*report_, "auto").memory;
  EXPECT_GE(fp16.kv_bytes, fp16.kv_fp16_bytes);  // its 340 tokens, rounded up to 16
  EXPECT_LT(fp16.kv_bytes, fp16.kv_fp16_bytes * 360 / 340);
  EXPECT_LT(quantspec.kv_bytes, fp16.kv_bytes);
  EXPECT_GT(quantspec.ring_bytes, 0u);
  EXPECT_LT(quantspec.draft_weights_bytes, automatic.draft_weights_bytes);  // 4 bits; both
  EXPECT_EQ(automatic.draft_weights_bytes, engine().model().weights().draft_bytes());
}

TEST_F(Bench, ARerunGivesTheSameTokensAndAcceptance) {
  const BenchReport again = run_bench(engine(), dataset(), small_bench());
  for (std::size_t i = 0; i + 1 < report_->rows.size(); ++i) {  // but auto, which follows the clock
    const BenchRow &a = report_->rows[i], &b = again.rows[i];
    EXPECT_EQ(a.tokens_hash, b.tokens_hash) << a.plan;
    EXPECT_EQ(a.accepted_per_position, b.accepted_per_position) << a.plan;
    EXPECT_EQ(a.tokens_per_round.median, b.tokens_per_round.median) << a.plan;
  }
}

TEST_F(Bench, AnotherSeedGivesOtherTokens) {
  BenchOptions options = small_bench();
  options.plans = {};
  options.seed = 2;
  const BenchReport other = run_bench(engine(), dataset(), options);
  EXPECT_NE(row_of(other, kPlainInt8).tokens_hash, row_of(*report_, kPlainInt8).tokens_hash);
}

TEST(BenchRun, ACheckpointThatIsWrittenToEndsItBeforeItsRows) {
  const TestFolder folder;
  std::filesystem::copy(testing::kModel, folder.path());
  const auto changing = testing::load_engine(folder.path());
  if (changing->model().backend().name() == "cuda") GTEST_SKIP() << "has a copy of its own";
  BenchOptions options = small_bench();
  options.contexts = {100, 300};
  options.plans = {"quantspec"};
  std::vector<int> contexts;
  BenchEvents events;
  events.context_done = [&](std::span<const BenchRow> rows) {
    contexts.push_back(rows.front().context);
  };
  events.progress = [&](std::string_view, double done) {
    if (done < 0.9) return;
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(folder / "model.safetensors", now);
  };
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "was written to"},
               [&] { run_bench(*changing, dataset(), options, events); });
  EXPECT_EQ(contexts, std::vector{100});
}

TEST(BenchRun, DraftWeightsAreThePlanesThatAPlanReadsWhateverIsShown) {
  BenchOptions options = small_bench();
  options.plans = {"quantspec", "quantspec+w8", "layer-skip:0-2+w4", "kv-only"};
  options.predict = 1;
  options.head.draft_store = "a store, for the report";
  const BenchReport report = run_bench(engine(), dataset(), options);
  const Model& model = engine().model();
  const auto all = [&](WeightRead read) {
    return Weights::draft_bytes_for(model.config(), model.weights().source(), model.backend(),
                                    read);
  };
  const auto of = [&](std::string_view plan) {
    return row_of(report, plan).memory.draft_weights_bytes;
  };
  EXPECT_EQ(of("quantspec"), all(WeightRead::kUpper));
  EXPECT_EQ(of("quantspec+w8"), all(WeightRead::kBoth));
  EXPECT_EQ(of("kv-only"), 0u);
  const Linear& head = model.weights().head();
  const std::size_t head_bytes =
      model.backend().plane_bytes(head.outputs(), head.inputs(), head.draft.format).upper;
  EXPECT_EQ(of("layer-skip:0-2+w4") - head_bytes,  // 3 of 6 layers
            (all(WeightRead::kUpper) - head_bytes) / 2);
}

TEST(BenchRun, DraftsOfCodesHaveNoWeightsOfTheirOwn) {
  const auto coded = testing::load_engine(testing::kModel, TargetWeights::k8Bits);
  BenchOptions options = small_bench();
  options.plans = {"quantspec"};
  options.predict = 1;
  const BenchReport report = run_bench(*coded, dataset(), options);
  const MemoryPlan& plain = row_of(report, kPlainInt8).memory;
  const MemoryPlan& drafts = row_of(report, "quantspec").memory;
  EXPECT_EQ(drafts.draft_weights_bytes, 0u);
  EXPECT_EQ(drafts.weights_bytes, plain.weights_bytes);
  EXPECT_EQ(drafts.total(), plain.total());
}

TEST(BenchRun, WhatRivalsChooseAmongIsNobodysMemory) {
  const auto run = [&](std::vector<std::string> plans) {
    BenchOptions options = small_bench();
    options.plans = std::move(plans);
    options.predict = 1;
    return run_bench(engine(), dataset(), options);
  };
  const BenchReport alone = run({"quantspec"}), beside = run({"quantspec", "snapkv"});
  for (const std::string_view plan : {kPlainFp16, kPlainInt8, std::string_view("quantspec")}) {
    EXPECT_EQ(row_of(beside, plan).memory.total(), row_of(alone, plan).memory.total()) << plan;
  }
  const MemoryPlan& rival = row_of(beside, "snapkv").memory;
  EXPECT_EQ(rival.ring_bytes, row_of(alone, kPlainInt8).memory.ring_bytes);
  EXPECT_GT(row_of(beside, "snapkv").gathered_bytes, 0u);
}

TEST(BenchRun, PredictsForThePagesThatItHas) {
  BenchOptions options = small_bench();
  options.plans = {};
  options.machine->flops = 1e15;  // all is reading
  const BenchReport report = run_bench(engine(), dataset(), options);
  const Predictor pages{*options.machine, engine().config(), 32,
                        weight_bytes(dense_format(DType::kBF16))};
  const auto entries = make_entries(engine(), options, 300);
  EXPECT_DOUBLE_EQ(report.rows[1].predicted_ms_per_token,
                   pages.milliseconds(entries[1], 320, nullptr, 0, 0));
}

// A draft whose weights go bad between its repeats proposes other tokens, and other ones are kept.
TEST(BenchRun, TellsTheRowsBeforeItFailsForRunsThatDiffer) {
  const auto broken = testing::load_engine();
  BenchOptions options = small_bench();
  options.plans = {"quantspec"};
  options.prompts = 1;
  int rows = 0;
  BenchEvents events;
  events.context_done = [&](std::span<const BenchRow> all) {
    rows += static_cast<int>(all.size());
  };
  events.progress = [&](std::string_view, double done) {
    if (done < 0.7) return;  // within the last repeat
    const Linear& head = broken->model().weights().head();
    const auto bytes =
        broken->model().backend().plane_bytes(head.outputs(), head.inputs(), head.draft.format);
    std::memset(const_cast<void*>(head.draft.data), 0, bytes.upper);
  };
  try {
    run_bench(*broken, dataset(), options, events);
    ADD_FAILURE() << "the runs gave the same tokens";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("must give the same tokens"), std::string::npos);
  }
  EXPECT_EQ(rows, 3);
}

TEST(BenchRun, TellsWhatAllLeavesOut) {
  BenchOptions options = small_bench();
  options.contexts = {60};
  options.plans = {"all"};
  options.predict = options.repeats = options.prompts = 1;
  options.warm_up = 0;
  BenchEvents events;
  std::size_t told = 0;
  events.begin = [&](const BenchMeta& meta) { told = meta.left_out.size(); };
  const BenchReport report = run_bench(engine(), dataset(), options, events);
  EXPECT_EQ(told, 13u);
  EXPECT_EQ(report.rows.size() + told, all_bench_plans(6).size() + 2);
}

TEST(BenchRun, ShowsEveryPlanByOneName) {
  BenchOptions options = small_bench();
  options.plans = {"quantspec+w4", "streaming", "auto"};
  options.contexts = {512};
  options.draft_budgets = {96};
  const BenchReport report = run_bench(engine(), dataset(), options);
  EXPECT_EQ(report.rows[2].plan, "quantspec");
  EXPECT_EQ(report.rows[2].chosen_plan, "quantspec");
  EXPECT_EQ(report.rows[3].plan, "streaming");
  EXPECT_EQ(report.rows[3].chosen_plan, "streaming@96");
  EXPECT_EQ(report.rows[4].draft_budget, 96);
  const std::vector<std::string> known = {
      "quantspec",           "quantspec+h8",           "quantspec+w8",          "weights-only+w8",
      "quantspec+sparse@96", "quantspec+sparse+h8@96", "quantspec+sparse+w8@96"};
  EXPECT_TRUE(std::ranges::count(known, report.rows[4].chosen_plan)) << report.rows[4].chosen_plan;
}

TEST(BenchRun, GreedyPlansGiveTheTokensOfPlainDecoding) {
  BenchOptions options = small_bench();
  options.temperatures = {0};
  options.plans.push_back("streaming");
  const BenchReport report = run_bench(engine(), dataset(), options);
  for (const BenchRow& row : report.rows) {
    if (row.plan == kPlainFp16) continue;
    EXPECT_EQ(row.tokens_hash, row_of(report, kPlainInt8).tokens_hash) << row.plan;
  }
}

TEST(BenchRun, RivalsChooseTheirDraftLengths) {
  BenchOptions options = small_bench();
  options.plans = {"streaming", "snapkv", "retrieval+w4"};
  options.draft_lens = {std::nullopt};
  options.predict = 20;
  options.prompts = options.repeats = 1;
  const BenchReport report = run_bench(engine(), dataset(), options);
  for (const std::string& plan : options.plans) {
    const BenchRow& row = row_of(report, plan);
    EXPECT_FALSE(row.draft_len) << plan;
    EXPECT_EQ(row.tokens, 20) << plan;
  }
}

TEST(BenchRun, TellsWhatItDoesAndCanBeCancelled) {
  BenchOptions options = small_bench();
  options.plans = {"quantspec"};
  options.contexts = {200, 100};
  std::vector<std::string> told;
  std::map<std::string, double> last;
  BenchEvents events;
  events.begin = [&](const BenchMeta& meta) {
    EXPECT_EQ(meta.head.contexts, options.contexts);
    told.push_back("begin");
  };
  events.context_done = [&](std::span<const BenchRow> rows) {
    EXPECT_EQ(rows.size(), 3u);
    told.push_back(std::to_string(rows[0].context));
  };
  events.progress = [&](std::string_view stage, double done) {
    EXPECT_GE(done, last[std::string(stage)]);
    last[std::string(stage)] = done;
  };
  run_bench(engine(), dataset(), options, events);
  EXPECT_EQ(told, (std::vector<std::string>{"begin", "200", "100"}));
  // One stage over all contexts.
  ASSERT_EQ(last.size(), 1u);
  EXPECT_NEAR(last["bench"], 1, 1e-9);

  told.clear();
  events.progress = [&](std::string_view, double done) {
    if (told.back() != "200") return;
    EXPECT_GT(done, 0.5);  // the longer one of both is over
    throw std::runtime_error("cancelled");
  };
  EXPECT_THROW(run_bench(engine(), dataset(), options, events), std::runtime_error);
  EXPECT_EQ(told, (std::vector<std::string>{"begin", "200"}));
}

TEST(BenchRun, WhatCannotBeRunIsRefusedBeforeAnythingRuns) {
  const auto refused = [](const char* word, auto change) {
    BenchOptions options = small_bench();
    change(options);
    BenchEvents events;
    events.begin = [](const BenchMeta&) { FAIL() << "it began"; };
    events.progress = [](std::string_view, double) { FAIL() << "it worked"; };
    try {
      run_bench(engine(), dataset(), options, events);
      ADD_FAILURE() << "no error for " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  };
  using O = BenchOptions;
  refused("no plan 'x'", [](O& o) { o.plans.push_back("x"); });
  refused("draft budget 300", [](O& o) { o.contexts.push_back(301), o.draft_budgets = {300}; });
  refused("draft length 17", [](O& o) { o.draft_lens = {17}; });
  refused("number of tokens to predict 0", [](O& o) { o.predict = 0; });
  refused("32768 tokens", [](O& o) { o.contexts.push_back(32769); });
  refused("no document holds", [](O& o) { o.contexts.push_back(20000); });
  refused("temperature", [](O& o) { o.temperatures = {-1}; });
  refused("has room for", [](O& o) { o.predict = 100'000'000; });

  BenchOptions options = small_bench();
  const auto entries = bench::make_entries(engine(), options, options.contexts[0]);
  options.predict = 100'000'000;
  expect_error(ErrorKind::kOutOfMemory, {"context size ", "are available"},
               [&] { bench::require_memory(engine(), entries, options, options.contexts[0]); });
}

}  // namespace
}  // namespace quantspec::bench
