#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "eval/test_support.h"
#include "model/model.h"

namespace quantspec {
namespace {

using testing::LoadedModel;
using testing::eval::Ended;
using testing::eval::ends_at;
using testing::eval::eval_model;
using testing::eval::kPageSize;
using testing::eval::prompts;
using testing::eval::tiny;

// Longer than a chunk, so that there is something to find.
constexpr int kLength = 1200;

LosslessOptions options_for(const LoadedModel& loaded) {
  const int layers = loaded.model.config().num_layers;
  LosslessOptions options;
  options.predict = 40;
  options.drafters = {{"w4", {Plan::draft(layers, WeightRead::kUpper)}},
                      {"auto",
                       {Plan::draft(layers, WeightRead::kUpper),
                        make_plan("quantspec+sparse", {layers, kPageSize, 64}), Plan::lookup()}},
                      {"lookup", {Plan::lookup()}}};
  options.draft_lens = {1, 5, std::nullopt};
  options.seed = 3;
  return options;
}

TEST(LosslessStreams, EveryRequestGivesWhatItGivesAlone) {
  LoadedModel loaded = tiny("cpu");
  const auto texts = prompts(loaded, 2, kLength, 0);
  std::vector<StreamRow> rows;
  eval_lossless_streams(eval_model(loaded), texts, 4, options_for(loaded), {}, rows);
  ASSERT_EQ(rows.size(), 2u * 3 * 2 * 4);  // samplings, drafters, cold and warm
  int preemptions = 0;
  std::set<std::optional<int>> lengths;
  std::set<int> arrivals;
  for (const StreamRow& row : rows) {
    EXPECT_EQ(row.first_difference, std::nullopt) << row.sampling << " " << row.drafter;
    EXPECT_EQ(row.tokens, 40);
    EXPECT_TRUE(!row.warm || row.cached_tokens >= 1024) << row.cached_tokens;
    preemptions += row.preemptions;
    lengths.insert(row.draft_len);
    arrivals.insert(row.arrival);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(lengths.size(), 3u);
  EXPECT_GT(arrivals.size(), 5u);
}

TEST(LosslessStreams, TheSeedSaysWhoComesWhen) {
  LoadedModel loaded = tiny("cpu");
  const auto arrivals = [&](std::uint64_t seed) {
    LosslessOptions options = options_for(loaded);
    options.seed = seed;
    std::vector<StreamRow> rows;
    eval_lossless_streams(eval_model(loaded), prompts(loaded, 2, 70, 0), 5, options, {}, rows);
    std::vector<std::pair<int, std::optional<int>>> all;
    for (const StreamRow& row : rows) all.emplace_back(row.arrival, row.draft_len);
    return all;
  };
  EXPECT_EQ(arrivals(1), arrivals(1));
  EXPECT_NE(arrivals(1), arrivals(2));
}

TEST(LosslessStreams, WhatWasComparedBeforeAnEndIsKept) {
  LoadedModel loaded = tiny("cpu");
  LosslessOptions options = options_for(loaded);
  options.drafters.resize(1);
  std::vector<StreamRow> rows;
  EXPECT_THROW(eval_lossless_streams(eval_model(loaded), prompts(loaded, 1, 70, 0), 2, options,
                                     ends_at("generating", 0.8), rows),
               Ended);
  EXPECT_EQ(rows.size(), 2u * 2);  // of the four comparisons of two requests those of greedy text
}

TEST(LosslessStreams, PlansForOneSequenceAreRefused) {
  LoadedModel loaded = tiny("cpu");
  LosslessOptions options = options_for(loaded);
  const int layers = loaded.model.config().num_layers;
  options.drafters = {{"streaming", {make_plan("streaming", {layers, kPageSize, 96})}}};
  std::vector<StreamRow> rows;
  expect_error(ErrorKind::kInvalidRequest, {"plan streaming", "bench and eval"}, [&] {
    eval_lossless_streams(eval_model(loaded), prompts(loaded, 1, 70, 0), 2, options, {}, rows);
  });
}

TEST(LosslessStreams, ReportsSayWhetherAllIsIdentical) {
  const StreamRow same{.prompt = "a.txt",
                       .sampling = "greedy",
                       .drafter = "w4",
                       .draft_len = 4,
                       .tokens = 8,
                       .cached_tokens = 1024,
                       .preemptions = 1};
  std::vector<StreamRow> rows = {same, same};
  const auto json = [&](bool complete) {
    Report one = report(std::span<const StreamRow>(rows));
    one.complete = complete;
    return nlohmann::json::parse(to_json({}, one));
  };
  EXPECT_EQ(json(true)["meta"]["identical"], true);
  EXPECT_EQ(json(false)["meta"]["identical"], nullptr);  // what was not compared may differ
  EXPECT_EQ(
      json(true)["meta"]["conclusion"],
      "2 generations beside others, 2048 tokens found cached, 2 preemptions: all identical to each "
      "alone");
  rows[1].first_difference = 5;
  EXPECT_EQ(json(true)["meta"]["identical"], false);
  EXPECT_EQ(json(false)["meta"]["identical"], false);
  EXPECT_EQ(json(true)["rows"][1]["first_difference"], 5);
  EXPECT_EQ(json(true)["meta"]["conclusion"],
            "2 generations beside others, 2048 tokens found cached, 2 preemptions: 1 differ from "
            "each alone; "
            "the first at token 5 after a.txt, greedy, w4");
}

}  // namespace
}  // namespace quantspec
