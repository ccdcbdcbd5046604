#include "bench/render.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/json.h"
#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

// Two contexts, of one row that drafts nothing and one whose fields are all there.
BenchReport report() {
  BenchReport report;
  report.meta.head = {.measurement = "bench",
                      .version = "1.2.3",
                      .commit = "f00d-dirty",
                      .model = "a model",
                      .dataset = "text:x"};
  report.meta.head.contexts = {100, 200};
  report.meta.left_out = {{100, "streaming", "too long"}};
  for (const int context : {100, 200}) {
    BenchRow plain;
    plain.context = context;
    plain.plan = kPlainInt8;
    plain.draft_len = 0;
    plain.predicted_ms_per_token = 1;
    BenchRow row = plain;
    row.plan = "layer-skip:1,3-4+sparse+w8";
    row.draft_len = std::nullopt;
    row.draft_len_mean = 2.5;
    row.draft_budget = 4096;
    row.chosen_plan = "it";
    row.decode_tokens_per_second = {1234.5, 1000, 2000, {2000, 1000, 1234.5}};
    row.acceptance_rate =
        Spread{0.5, 0.25, 0.75, {0.75, std::numeric_limits<double>::quiet_NaN(), 0.25}};
    row.acceptance_per_token = Spread{0.625, 0.25, 0.75};
    row.accepted_per_position = {0.5, 0.25};
    row.memory = {1, 2, 4, 8, 32, 64};
    row.gathered_bytes = 16;
    row.tokens_hash = 0xabc;
    report.rows.push_back(plain);
    report.rows.push_back(row);
  }
  return report;
}

std::string rendered(BenchFormat format) {
  const BenchReport report = quantspec::bench::report();
  const auto rows = std::span(report.rows);
  return bench_head(format, report.meta) + bench_rows(format, rows.first(2), true) +
         bench_rows(format, rows.last(2), false) + bench_tail(format, true);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Json, IsMetaAndRows) {
  const quantspec::Json json = parse_json(rendered(BenchFormat::kJson), "it");
  EXPECT_EQ(json["meta"]["version"], "1.2.3");
  EXPECT_EQ(json["meta"]["commit"], "f00d-dirty");
  EXPECT_EQ(json["meta"]["contexts"], (std::vector{100, 200}));
  EXPECT_EQ(json["meta"]["left_out"][0]["why"], "too long");
  ASSERT_EQ(json["rows"].size(), 4u);
  const quantspec::Json& row = json["rows"][3];
  EXPECT_EQ(row["context"], 200);
  EXPECT_EQ(row["draft_len"], "auto");
  EXPECT_EQ(row["acceptance_rate_max"], 0.75);
  EXPECT_EQ(row["decode_tokens_per_second_values"], (std::vector<double>{2000, 1000, 1234.5}));
  EXPECT_EQ(row["acceptance_rate_values"].size(), 3u);
  EXPECT_TRUE(row["acceptance_rate_values"][1].is_null());  // a run that drafted nothing
  EXPECT_EQ(row["peak_bytes"], 63);
  EXPECT_EQ(row["tokens_hash"], "0000000000000abc");
  EXPECT_EQ(json["rows"][0]["draft_len"], 0);
  EXPECT_TRUE(json["rows"][0]["acceptance_rate"].is_null());
  EXPECT_TRUE(json["rows"][0]["acceptance_rate_values"].is_null());
  EXPECT_TRUE(json["rows"][0]["draft_budget"].is_null());
}

TEST(Json, HasNothingButWhatTheDocumentationNames) {
  std::ifstream file(std::string(QUANTSPEC_SOURCE_DIR) + "/docs/bench.md");
  std::stringstream docs;
  docs << file.rdbuf();
  const quantspec::Json json = parse_json(rendered(BenchFormat::kJson), "it");
  for (const quantspec::Json& object : {json["meta"], json["rows"][0]}) {
    for (const auto& [key, value] : object.items()) {
      std::string name = key;
      for (const std::string end : {"_min", "_max", "_values"}) {
        if (name.ends_with(end)) name.resize(name.size() - end.size());
      }
      EXPECT_NE(docs.str().find("`" + name + "`"), std::string::npos) << key;
    }
  }
}

TEST(Jsonl, IsALineForTheMetaAndEachRow) {
  const auto lines = lines_of(rendered(BenchFormat::kJsonl));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(parse_json(lines[0], "it").contains("meta"));
  const quantspec::Json all = parse_json(rendered(BenchFormat::kJson), "it");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(parse_json(lines[i + 1], "it"), all["rows"][i]);
}

// A path need not be UTF-8.
TEST(Json, IsValidWhateverBytesAPathHas) {
  BenchReport report = quantspec::bench::report();
  report.meta.head.dataset = "text:b\xFFoks";
  report.rows.front().plan = "plan:\xC3.json";
  const auto rows = std::span(report.rows).first(1);
  const std::string json = bench_head(BenchFormat::kJson, report.meta) +
                           bench_rows(BenchFormat::kJson, rows, true) +
                           bench_tail(BenchFormat::kJson, true);
  const quantspec::Json read = parse_json(json, "it");
  EXPECT_EQ(read["meta"]["dataset"], "text:b\xEF\xBF\xBDoks");
  EXPECT_EQ(read["rows"][0]["plan"], "plan:\xEF\xBF\xBD.json");
  const auto lines = lines_of(bench_head(BenchFormat::kJsonl, report.meta) +
                              bench_rows(BenchFormat::kJsonl, rows, true));
  EXPECT_EQ(parse_json(lines[0], "it")["meta"], read["meta"]);
  EXPECT_EQ(parse_json(lines[1], "it"), read["rows"][0]);
}

TEST(Csv, HasOneHeadAndAsManyCellsInEveryRow) {
  const auto lines = lines_of(rendered(BenchFormat::kCsv));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(lines[0].starts_with("context,plan,draft_len,"));
  EXPECT_EQ(std::ranges::count(lines[0], ','), std::ranges::count(lines[1], ','));
  EXPECT_EQ(std::ranges::count(lines[0], ',') + 1, std::ranges::count(lines[2], ','));
  EXPECT_TRUE(lines[2].starts_with("100,\"layer-skip:1,3-4+sparse+w8\",auto,"));
  EXPECT_NE(lines[2].find(",0.5;0.25,"), std::string::npos);
  EXPECT_NE(lines[2].find(",1234.5,1000.0,2000.0,2000.0;1000.0;1234.5,"), std::string::npos);
  EXPECT_NE(lines[2].find(",0.75;;0.25,"), std::string::npos);  // what is null is empty
}

TEST(Markdown, FitsATerminal) {
  const std::string text = rendered(BenchFormat::kMarkdown);
  // The plan's name is 26 characters long, and its budget 5.
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_NE(text.find("- quantspec 1.2.3, commit f00d-dirty, "), std::string::npos);
  EXPECT_NE(text.find("## 200 tokens of context, temperature 0"), std::string::npos);
  EXPECT_NE(text.find("| layer-skip:1,3-4+sparse+w8@4096 |"), std::string::npos);
  EXPECT_NE(text.find("1000-2000"), std::string::npos);
  EXPECT_NE(text.find("|  0.500 | 0.625 |"), std::string::npos);  // of the drafted; per token
  EXPECT_NE(text.find("- plan all leaves out: at 100 tokens streaming (too long)\n"),
            std::string::npos);
  EXPECT_EQ(text.find("in doubt"), std::string::npos);
}

TEST(Markdown, OfPlansWithShortNamesFits80Columns) {
  BenchReport report = quantspec::bench::report();
  for (BenchRow& row : report.rows) {
    if (row.draft_budget) row.plan = "snapkv", row.draft_budget = 1024;
  }
  for (const std::string& line : lines_of(markdown_rows(std::span(report.rows).first(2)))) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(Markdown, BreaksWhatIsLong) {
  BenchMeta meta;
  for (const char* plan : {"streaming", "snapkv", "retrieval", "quantspec+sparse"}) {
    meta.left_out.push_back({100, plan, "from 128 to 399 tokens fit a context of 400"});
  }
  const std::string text = markdown_head(meta);
  EXPECT_NE(text.find("- plan all leaves out: at 100 tokens streaming, snapkv, retrieval,\n"
                      "  quantspec+sparse (from 128 to 399 tokens fit a context of 400)\n"),
            std::string::npos)
      << text;
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Markdown, SaysWhereTheMachineIsInDoubt) {
  BenchMeta meta;
  meta.machine = {"this", 10e9, 1e12, 1e9, 10.1e9};
  EXPECT_NE(markdown_head(meta).find("- in doubt: all threads read 10.0 GB/s, one alone 10.1"),
            std::string::npos);
}

}  // namespace
}  // namespace quantspec::bench
