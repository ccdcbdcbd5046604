#include "eval/report.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "eval/eval.h"

namespace quantspec {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(Reports, AreMarkdownAndJsonOfTheSameRows) {
  LosslessRow row{"text | 1", "greedy", "w4", std::nullopt, 80, std::nullopt, 0.5, 2.5};
  LosslessRow other = row;
  other.first_difference = 7;
  const std::vector<LosslessRow> rows = {row, other};
  const OrderedJson meta = {{"measurement", "lossless"}, {"tokens", 80}, {"contexts", {64, 128}}};
  const auto json = nlohmann::json::parse(to_json(meta, report(rows)));
  EXPECT_EQ(json["meta"]["tokens"], 80);
  EXPECT_EQ(json["meta"]["complete"], true);
  EXPECT_EQ(json["meta"]["conclusion"], report(rows).conclusion.text());
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["kind"], "lossless");
  EXPECT_TRUE(json["rows"][0]["first_difference"].is_null());
  EXPECT_EQ(json["rows"][1]["first_difference"], 7);
  EXPECT_EQ(json["rows"][0]["draft_len"], "auto");
  const std::string markdown = to_markdown(meta, report(rows));
  EXPECT_TRUE(markdown.starts_with("measurement: lossless; tokens: 80; contexts: 64,128\n"));
  EXPECT_NE(markdown.find("| differs |"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("text \\| 1"), std::string::npos) << markdown;
  EXPECT_EQ(markdown.find("first_difference"), std::string::npos) << markdown;
}

TEST(Reports, AreJsonWhateverBytesAPathHas) {
  const std::vector<LosslessRow> rows = {
      {"b\xFF.txt", "greedy", "w4", 4, 8, std::nullopt, 0.5, 2.5}};
  const auto json = nlohmann::json::parse(to_json({{"dataset", "text:\xC3"}}, report(rows)));
  EXPECT_EQ(json["meta"]["dataset"], "text:\xEF\xBF\xBD");
  EXPECT_EQ(json["rows"][0]["prompt"], "b\xEF\xBF\xBD.txt");
}

TEST(Reports, LosslessEndsInOneSentence) {
  const LosslessRow greedy{"a.txt", "greedy", "w4", 4, 80, std::nullopt, 0.5, 2.5};
  LosslessRow coupled = greedy;
  coupled.sampling = "coupled";
  std::vector<LosslessRow> rows = {greedy, coupled};
  EXPECT_EQ(report(rows).conclusion.text(),
            "2 generations of 80 tokens (greedy and coupled): all identical");
  EXPECT_TRUE(to_markdown({}, report(rows)).ends_with(": all identical\n"));
  rows[1].first_difference = 7;
  EXPECT_EQ(report(rows).conclusion.text(),
            "2 generations of 80 tokens (greedy and coupled): 1 differ from plain decoding; the "
            "first at token 7 after a.txt, coupled, w4 with draft length 4");
}

TEST(Reports, AreMarkedWhereTheyAreIncomplete) {
  const std::vector<LosslessRow> rows = {{"a", "greedy", "w4", 4, 8, std::nullopt, 0.5, 2.5}};
  Report half = report(rows);
  EXPECT_FALSE(half.empty());
  EXPECT_EQ(to_markdown({}, half).find("INCOMPLETE"), std::string::npos);
  half.complete = false;
  EXPECT_NE(to_markdown({}, half).find("INCOMPLETE"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json({}, half))["meta"]["complete"], false);
  EXPECT_TRUE(report(std::span<const LosslessRow>()).empty());
}

TEST(Reports, FitIntoAHundredColumns) {
  const std::string long_name(150, 'n');
  const LosslessRow row{long_name, "greedy", "quantspec+sparse+w8", std::nullopt, 80, 12345,
                        0.5,       2.5};
  OrderedJson meta;
  for (int i = 0; i < 20; ++i) meta["key" + std::to_string(i)] = "some value";
  const std::string markdown = to_markdown(meta, report({&row, 1}));
  int cut = 0;
  for (std::size_t first = 0; first < markdown.size();) {
    const std::size_t end = markdown.find('\n', first);
    const std::string line = markdown.substr(first, end - first);
    if (line.starts_with('|') || line.starts_with("key")) {
      EXPECT_LE(line.size(), 100u) << line;
    }
    cut += line.starts_with("| ..nnn");
    first = end + 1;
  }
  EXPECT_EQ(cut, 1) << markdown;
}

TEST(Reports, SayInWordsWhatWasChosen) {
  SensitivityResult result;
  result.prompts = 2;
  result.base = Plan::draft(3, WeightRead::kUpper);
  result.base_outcome.name = "quantspec";
  EXPECT_NE(report(result).conclusion.text().find("No plan was chosen"), std::string::npos);
  result.chosen = result.base;
  result.chosen->name = "layers";
  EXPECT_NE(report(result).conclusion.text().find("The chosen plan is the uniform one, quantspec"),
            std::string::npos);
  EXPECT_NE(
      report(result).conclusion.text().find("Measured on 2 prompts, verified on as many others"),
      std::string::npos);
  result.chosen->layers[1].weights = WeightRead::kBoth;
  result.chosen->head = WeightRead::kTarget;
  EXPECT_NE(report(result).conclusion.text().find(
                "quantspec, in layer 1, the head. It was not verified."),
            std::string::npos);
}

TEST(Reports, SayWhereTheChosenPlanIsWorse) {
  SensitivityResult result;
  result.prompts = 2;
  result.base = Plan::draft(3, WeightRead::kUpper);
  result.chosen = Plan::draft(3, WeightRead::kBoth);
  result.base_outcome.name = "quantspec";
  result.chosen_outcome.name = "layers";
  result.base_outcome.measured = {.tokens = 64, .kl = {0.049, 0}, .acceptance = {0.883, 0}};
  result.chosen_outcome.measured = {.tokens = 64, .kl = {0.0512, 0}, .acceptance = {0.8812, 0}};
  result.base_outcome.draft_bytes = result.draft_budget = 20'000'000;
  result.chosen_outcome.draft_bytes = 19'500'000;
  result.acceptance_change = {-0.0018, 0.0011};
  result.kl_change = {0.0022, 0.0004};
  const auto plan_rows = [&] {
    const auto json = nlohmann::json::parse(to_json({}, report(result)));
    return std::pair(json["rows"][0], json["rows"][1]);
  };
  EXPECT_NE(report(result).conclusion.text().find(
                "the chosen plan is WORSE than quantspec: acceptance 0.8830 becomes 0.8812 "
                "(-0.0018 ± 0.0011), KL in nats 0.0490 becomes 0.0512 (+0.0022 ± 4.00e-04), of "
                "20.00 MB a draft step reads 19.50. Draft by quantspec, or let more prompts choose "
                "(number of prompts 4)."),
            std::string::npos)
      << report(result).conclusion.text();
  EXPECT_TRUE(to_markdown({}, report(result)).ends_with(report(result).conclusion.text() + "\n"));
  EXPECT_EQ(plan_rows().second["worse"], true);
  EXPECT_EQ(plan_rows().second["acceptance_change"], -0.0018);
  EXPECT_TRUE(plan_rows().first["worse"].is_null());

  result.acceptance_change.error = 0.002;
  EXPECT_NE(
      report(result).conclusion.text().find(
          "no difference beyond the error: acceptance 0.8830 becomes 0.8812 (-0.0018 ± 0.0020)"),
      std::string::npos)
      << report(result).conclusion.text();
  EXPECT_EQ(plan_rows().second["worse"], false);
  result.acceptance_change.error = 0.0011;

  result.draft_budget -= 1;  // the base was not to be had
  EXPECT_EQ(report(result).conclusion.text().find("WORSE"), std::string::npos);
  EXPECT_EQ(plan_rows().second["worse"], false);
  result.draft_budget += 1;

  result.acceptance_change = {0.0018, std::numeric_limits<double>::quiet_NaN()};
  result.chosen_outcome.measured.acceptance.value = 0.8848;
  EXPECT_TRUE(report(result).conclusion.text().ends_with(
      "On those others acceptance 0.8830 becomes 0.8848 (+0.0018), KL in nats 0.0490 becomes "
      "0.0512 (+0.0022 ± 4.00e-04), of 20.00 MB a draft step reads 19.50."))
      << report(result).conclusion.text();
  EXPECT_EQ(plan_rows().second["worse"], false);
  result.chosen_outcome.measured = {};
  EXPECT_TRUE(plan_rows().second["worse"].is_null());
}

}  // namespace
}  // namespace quantspec
