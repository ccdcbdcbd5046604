#include "bench/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/expect_error.h"
#include "base/json.h"
#include "bench/load_loop.h"
#include "bench/load_summary.h"
#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

using testing::dataset;
using testing::engine;

BenchOptions small_load() {
  BenchOptions options = testing::small_bench();
  options.contexts = {100};
  options.predict = 16;
  options.plans = {"quantspec"};
  options.spec_sampling = SpecSampling::kCoupled;
  return options;
}

// Three requests, one at a time, of which the last shares all it can.
LoadOptions small_trace() {
  Trace trace{"small", {{0, 60, 30}, {0, 1100, 20, "p", 1060}, {0.05, 1100, 10, "p", 1060, "x"}}};
  return {.streams = {1}, .trace = trace};
}
const LoadReport& trace_report() {
  static const LoadReport report = [] {
    BenchOptions options = small_load();
    options.repeats = 1;
    options.draft_lens = {std::nullopt};
    return run_load(engine(), dataset(), options, small_trace());
  }();
  return report;
}

TEST(Percentile, IsByNearestRank) {
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(percentile({4, 1, 2, 3}, 0.5), 2);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  hundred.push_back(101);
  EXPECT_EQ(percentile(hundred, 0.99), 100);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(PausedClock, RunsOnlyWhileItIsTold) {
  PausedClock clock;
  EXPECT_EQ(clock.seconds(), 0);
  clock.start();
  while (clock.seconds() < 0.002) {
  }
  clock.stop();
  const double stopped = clock.seconds();
  const Stopwatch other;
  while (other.seconds() < 0.002) {
  }
  EXPECT_EQ(clock.seconds(), stopped);
  clock.start();
  EXPECT_GE(clock.seconds(), stopped);
}

TEST(Load, UniformRowsAreOfWhatDecodesTogether) {
  const LoadReport report = run_load(engine(), dataset(), small_load(), {.streams = {1, 3}});
  ASSERT_EQ(report.rows.size(), 6u);
  EXPECT_EQ(report.meta.head.measurement, "streams");
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const LoadRow& row = report.rows[i];
    EXPECT_EQ(row.streams, i < 3 ? 1 : 3);
    EXPECT_EQ((std::vector{*row.context, row.requests, *row.tokens, row.repeats}),
              (std::vector{100, row.streams, 16, 2}));
    EXPECT_EQ(row.streams_per_round, row.streams);  // nobody waits, nobody has ended
    EXPECT_EQ(row.identical, true) << row.plan;
    if (row.plan != kPlainFp16) {
      EXPECT_EQ(row.tokens_hash, report.rows[i < 3 ? 1 : 4].tokens_hash) << row.plan;
    }
    EXPECT_EQ(row.output_tokens_per_second.values.size(), 2u);
    EXPECT_GT(row.output_tokens_per_second.min, 0);
    EXPECT_GT(row.ttft.p50, 0);
    EXPECT_LE(row.itl.p50, row.itl.p99);
    EXPECT_EQ(row.cached_tokens, 0);
    EXPECT_EQ(row.moves.preemptions, 0);
    EXPECT_TRUE(row.over_time.empty());
  }
  const LoadRow &fp16 = report.rows[3], &int8 = report.rows[4], &drafts = report.rows[5];
  EXPECT_EQ(fp16.plan, kPlainFp16);
  EXPECT_EQ(int8.speedup_int8.median, 1);
  EXPECT_EQ(fp16.speedup_fp16.median, 1);
  EXPECT_FALSE(int8.acceptance_rate);
  EXPECT_EQ(int8.draft_len_mean, 0);
  EXPECT_LT(int8.memory.kv_bytes, fp16.memory.kv_bytes);
  EXPECT_GE(fp16.memory.kv_bytes, fp16.memory.kv_fp16_bytes);
  ASSERT_TRUE(drafts.acceptance_rate);
  EXPECT_LE(*drafts.acceptance_rate, *drafts.acceptance_per_token);
  EXPECT_EQ(drafts.chosen_plan, "quantspec");
  EXPECT_GT(drafts.draft_len_mean, 1);  // always 2, but for borders
  EXPECT_GT(drafts.memory.draft_weights_bytes, 0u);
  // Plain streams write a token each in every round.
  EXPECT_NEAR(int8.tpot.p50 * int8.output_tokens_per_second.max, 3e3, 1e-3);
}

TEST(Load, ALatePromptIsReadWhileTheStreamsDecode) {
  BenchOptions options = small_load();
  options.repeats = 1;
  // Of few streams, or on a busy machine, one may end before it is read.
  LoadReport report;
  for (int attempt = 0; attempt < 5; ++attempt) {
    report = run_load(engine(), dataset(), options, {.streams = {6}, .late_prompt = 400});
    const auto is_read = [](const LoadRow& row) { return row.late && row.late->ttft_ms; };
    if (std::ranges::all_of(report.rows, is_read)) break;
  }
  EXPECT_EQ(report.meta.late_prompt, 400);
  for (const LoadRow& row : report.rows) {
    EXPECT_EQ(row.identical, true);
    ASSERT_TRUE(row.late);
    EXPECT_GT(row.late->itl.p50, 0);
    EXPECT_LE(row.late->itl.p50, row.late->itl.p99);
    ASSERT_TRUE(row.late->ttft_ms);
    EXPECT_GT(*row.late->ttft_ms, row.late->itl.p50);  // it took more than a slice
    EXPECT_EQ(row.requests, 6);
  }
}

TEST(Load, ATraceWaitsForItsArrivalsAndFindsWhatIsShared) {
  const LoadReport& report = trace_report();
  ASSERT_EQ(report.rows.size(), 3u);
  EXPECT_EQ(report.meta.requests, 3);
  for (const LoadRow& row : report.rows) {
    EXPECT_FALSE(row.context);
    EXPECT_EQ(row.identical, true) << row.plan;
    if (row.plan != kPlainFp16) {
      EXPECT_EQ(row.tokens_hash, report.rows[1].tokens_hash) << row.plan;
    }
    EXPECT_EQ(row.requests, 3);
    EXPECT_EQ(row.streams_per_round, 1);
    EXPECT_EQ(row.cached_tokens, row.plan == kPlainFp16 ? 0 : 1024);
    ASSERT_EQ(row.over_time.size(), 10u);
    double before = 0, tokens = 0;
    for (const LoadMoment& moment : row.over_time) {
      EXPECT_GT(moment.ms, before);
      tokens += moment.output_tokens_per_second * (moment.ms - before) / 1e3;
      before = moment.ms;
    }
    EXPECT_NEAR(tokens, 60, 1e-6);
    EXPECT_GE(before, 50);
  }
}

// Of an owner whose requests wrote little until now, more are admitted than fit.
TEST(Load, ATraceWithFewPagesIsServedByPreemption) {
  Trace trace{"short of pages", {}};
  for (int i = 0; i < 8; ++i) trace.requests.push_back({0.001 * i, 100, i < 4 ? 4 : 200});
  BenchOptions options = small_load();
  options.repeats = 1;
  options.warm_up = 0;
  const std::size_t page = engine().pool().page_bytes();
  for (const std::size_t host_cache : {std::size_t{0}, 100 * page}) {
    const LoadReport report = run_load(
        engine(), dataset(), options,
        {.streams = {4}, .trace = trace, .page_memory = 12 * page, .host_cache = host_cache});
    EXPECT_EQ(report.meta.page_memory, 12 * page);
    EXPECT_EQ(report.meta.host_cache, host_cache);
    for (const LoadRow& row : report.rows) {
      EXPECT_EQ(row.identical, true) << row.plan;
      const LoadMoves& moves = row.moves;
      EXPECT_EQ(moves.preemptions > 0, row.plan != kPlainFp16) << row.plan;
      EXPECT_EQ(moves.swaps > 0, row.plan != kPlainFp16 && host_cache > 0) << row.plan;
      // One whose prompt is being read when it gives way is read again, whatever room there is.
      if (row.plan == kPlainFp16 || host_cache == 0) {
        EXPECT_EQ(moves.replays > 0, row.plan != kPlainFp16) << row.plan;
      }
      EXPECT_EQ(moves.pages_swapped_in, moves.pages_swapped_out);
      EXPECT_LE(row.memory.kv_bytes, row.plan == kPlainFp16 ? row.memory.total() : 12 * page);
    }
  }
}

TEST(Load, WithoutASeedNothingNeedBeIdentical) {
  BenchOptions options = small_load();
  options.spec_sampling = SpecSampling::kRejection;
  options.repeats = 1;
  const LoadReport report = run_load(engine(), dataset(), options, {.streams = {2}});
  EXPECT_EQ(report.rows[1].identical, true);
  EXPECT_EQ(report.rows[2].identical, std::nullopt);
}

// A target that is broken between its repeats writes other tokens.
TEST(Load, TellsTheRowsBeforeItFailsForTokensThatDiffer) {
  const auto broken = testing::load_engine();
  BenchOptions options = small_load();
  options.repeats = 1;
  std::vector<LoadMeasured> measured;
  const std::vector<Entry> entries = make_entries(*broken, options, 100);
  const std::vector<std::vector<TokenId>> prompts = {{1, 2, 3}, {4, 5, 6}};
  measured = measure_uniform(*broken, entries, prompts, {}, options, {});
  EXPECT_EQ(difference(entries, measured, 2), "");
  measured[2].tokens[0][1][5] ^= 1;
  EXPECT_EQ(
      difference(entries, measured, 2),
      "plain-int8 at draft length 0 and quantspec at draft length 2 must give the same tokens, "
      "and differ in stream 1 from token 5 on");
  const LoadShape shape{2, 3, 2, 16, 400};
  const std::vector<LoadRow> rows = make_load_rows(*broken, entries, measured, shape);
  EXPECT_EQ(rows[2].identical, false);
  EXPECT_NE(rows[2].tokens_hash, rows[1].tokens_hash);
  EXPECT_EQ(rows[1].identical, true);
}

TEST(Load, WhatCannotBeRunIsRefusedBeforeAnythingRuns) {
  const auto refused = [](const char* word, auto change, LoadOptions load = {.streams = {2}}) {
    BenchOptions options = small_load();
    change(options, load);
    LoadEvents events;
    events.begin = [](const LoadMeta&) { FAIL() << "it began"; };
    expect_error(ErrorKind::kInvalidRequest, {word},
                 [&] { run_load(engine(), dataset(), options, load, events); });
  };
  using O = BenchOptions;
  using L = LoadOptions;
  refused("number of streams 0", [](O&, L& load) { load.streams = {2, 0}; });
  refused("number of streams 1025: supported are 1 to 1024", [](O&, L& load) {
    load.streams = {1024, 1025};
  });
  refused("number of streams 1024: supported are 1 to 1023, and a late prompt",
          [](O&, L& load) { load.streams = {1024}, load.late_prompt = 10; });
  refused("plan snapkv: drafts that gather",
          [](O& o, L&) { o.plans = {"snapkv"}, o.contexts = {400}; });
  refused("context size 32000: with 3 repeats",
          [](O& o, L&) { o.contexts = {32000}, o.repeats = 3, o.predict = 512; });
  refused("context size 100: with 1000000 repeats",
          [](O& o, L&) { o.repeats = 1'000'000, o.predict = 512; });
  refused("late prompt 32768: this model has room for 32767",
          [](O&, L& load) { load.late_prompt = 32768; });
  refused("context size 28700: with 2 repeats of 16 tokens and 8 to warm up, and those beside",
          [](O& o, L& load) { o.contexts = {28700}, load.late_prompt = 32767; });
  refused(
      "trace small", [](O&, L& load) { load.trace->requests[0].output_tokens = 1 << 20; },
      small_trace());
  refused(
      "page memory 1000: a request of the trace may hold 1120 tokens",
      [](O&, L& load) { load.page_memory = 1000; }, small_trace());
  BenchOptions large = small_load();
  large.contexts = {30000};
  large.draft_lens = {1, 2, 3, 4, 5, 6, 7, 8};  // a cache for each
  expect_error(ErrorKind::kOutOfMemory, {"number of streams 1024"},
               [&] { run_load(engine(), dataset(), large, {.streams = {1024}}); });
}

TEST(Load, AllLeavesOutWhatIsNotForLoops) {
  BenchOptions options = small_load();
  options.contexts = {260};
  options.plans = {"all"};
  options.predict = options.repeats = 1;
  options.warm_up = 0;
  const LoadReport report = run_load(engine(), dataset(), options, {.streams = {1}});
  const auto named = [&](std::string_view plan) {
    return std::ranges::count(report.rows, plan, &LoadRow::plan);
  };
  EXPECT_EQ(named("snapkv") + named("streaming") + named("retrieval"), 0);
  EXPECT_EQ(named("quantspec") + named("quantspec+sparse") + named("kv-only"), 3);
  const auto left_out = std::ranges::find(report.meta.left_out, "snapkv", &LeftOut::plan);
  ASSERT_NE(left_out, report.meta.left_out.end());
  EXPECT_NE(left_out->why.text().find("one text at a time"), std::string::npos);
}

TEST(Load, ReportsAreWholeInEveryFormat) {
  const LoadReport& report = trace_report();
  const auto text = [&](BenchFormat format) {
    return load_head(format, report.meta) + load_rows(format, report.rows, true) +
           bench_tail(format, true);
  };
  const quantspec::Json json = parse_json(text(BenchFormat::kJson), "it");
  EXPECT_EQ(json["meta"]["trace"], "small");
  EXPECT_EQ(json["rows"].size(), 3u);
  const quantspec::Json& row = json["rows"][2];
  for (const char* key : {"streams", "context", "plan", "output_tokens_per_second", "speedup_int8",
                          "speedup_fp16", "ttft_p50_ms", "itl_p99_ms", "acceptance_rate", "swaps",
                          "replays", "pages_swapped_in", "prefix_pages_to_host"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_EQ(row["over_time_draft_len"].size(), 10u);
  const std::string csv = text(BenchFormat::kCsv);
  EXPECT_EQ(std::ranges::count(csv, '\n'), 4);
  const std::string markdown = text(BenchFormat::kMarkdown);
  EXPECT_NE(markdown.find("## a trace of 3 requests, 1 at once, temperature 1"), markdown.npos);
  EXPECT_NE(markdown.find("len by tenths"), markdown.npos);
}

}  // namespace
}  // namespace quantspec::bench
