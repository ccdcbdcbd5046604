// Files of tokenizers that are made to fill the memory or to take for ever, and very large ones.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/expect_error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/small_tokenizer.h"

namespace quantspec {
namespace {

using Ids = std::vector<TokenId>;

Json sequence(const char* list_key, const Json& step, int count) {
  return {{"type", "Sequence"}, {list_key, std::vector<Json>(count, step)}};
}

Json replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json byte_level(bool with_space) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", with_space}, {"use_regex", false}};
}

Json split_at(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

// The file is refused when it is loaded.
void expect_refused(const Json& file, const std::vector<std::string>& mentions) {
  expect_error(ErrorKind::kUnsupportedModel, mentions, [&] { make(file); });
}

// The file is loaded; this text is refused.
void expect_text_refused(const Json& file, const std::string& text,
                         const std::vector<std::string>& mentions) {
  const auto tokenizer = make(file);
  expect_error(ErrorKind::kUnsupportedModel, mentions, [&] { tokenizer->encode(text, false); });
}

// Each of these filled the memory, or took years.
TEST(HostileTokenizer, StepsThatMakeTooMuchOfATextAreRefused) {
  const Stopwatch clock;
  const std::string letters(100'000, 'a');
  Json file = small_file();
  file["normalizer"] = sequence("normalizers", replace("a", "aa"), 40);
  expect_text_refused(file, letters, {"dir/tokenizer.json: normalizer.normalizers[", "100 bytes"});
  EXPECT_EQ(make(file)->encode("b", false), Ids{1});
  file["normalizer"] = replace("a", std::string(1'000'000, 'b'));
  expect_text_refused(file, letters, {"dir/tokenizer.json: normalizer: "});

  file["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(10'000, 'b')}};
  std::string parted;
  for (int i = 0; i < 100'000; ++i) parted += "a<end>";
  expect_text_refused(file, parted, {"dir/tokenizer.json: normalizer: "});
  EXPECT_FALSE(make(file)->encode("a", false).empty());

  file = small_file();
  file["pre_tokenizer"] = sequence("pretokenizers", byte_level(false), 40);
  expect_text_refused(file, "\u00e9" + letters.substr(0, 100), {"pre_tokenizer.pretokenizers["});
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", std::string(1000, 'b')}, {"split", false}};
  expect_text_refused(file, std::string(1'000'000, ' '), {"dir/tokenizer.json: pre_tokenizer: "});
  file["pre_tokenizer"] = sequence("pretokenizers", split_at("[a ]"), 20);
  for (Json& step : file["pre_tokenizer"]["pretokenizers"]) step = {{"type", "Sequence"}};
  for (Json& step : file["pre_tokenizer"]["pretokenizers"]) {
    step["pretokenizers"] = {byte_level(true), split_at(".")};
  }
  expect_text_refused(file, letters.substr(0, 100), {"pre_tokenizer.pretokenizers["});

  file = small_file();
  file["added_tokens"][0]["normalized"] = true;
  file["normalizer"] = sequence("normalizers", replace("e", "ee"), 40);
  expect_refused(file, {"dir/tokenizer.json: normalizer.normalizers["});
  EXPECT_LT(clock.seconds(), 20);
}

// What grows most in known tokenizers: U+FDFA is 18 characters in NFKD, and a byte level makes two
// bytes of each of theirs.
TEST(HostileTokenizer, WhatUnicodeAsksForIsTaken) {
  Json file = small_file();
  file["normalizer"] = {{"type", "NFKD"}};
  file["pre_tokenizer"]["pretokenizers"] = {split_at("."), byte_level(true)};
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\uFDFA";
  EXPECT_NO_THROW(make(file)->encode(text, false));
}

TEST(HostileTokenizer, TooManyStepsAreRefused) {
  Json file = small_file();
  for (const auto& [part, list_key, step] :
       {std::tuple{"normalizer", "normalizers", replace("x", "y")},
        {"pre_tokenizer", "pretokenizers", byte_level(false)},
        {"post_processor", "processors", byte_level(false)},
        {"decoder", "decoders", replace("x", "y")}}) {
    file[part] = sequence(list_key, step, 63);
    EXPECT_NO_THROW(make(file)) << part;
    file[part] = sequence(list_key, step, 20'000);
    expect_refused(file, {"dir/tokenizer.json: ", part, "[63]", "supported: 64"});
    file[part] = sequence(list_key, sequence(list_key, {}, 0), 20'000);
    expect_refused(file, {"dir/tokenizer.json: ", part, "[63]", "supported: 64"});
    file[part] = small_file()[part];
  }
  file["normalizer"] = replace("x", "y");
  for (int depth = 0; depth < 90; ++depth)
    file["normalizer"] = sequence("normalizers", file["normalizer"], 1);
  expect_refused(file, {"dir/tokenizer.json: normalizer.normalizers[0].normalizers[0]", "64"});
}

TEST(HostileTokenizer, LongStringsToLookForAreRefused) {
  Json file = small_file();
  const std::string text(2000, 'a');
  file["normalizer"] = replace(text, "b");
  expect_refused(file, {"normalizer.pattern.String", "2000 bytes", "1024"});
  file = small_file();
  file["decoder"] = replace(text, "b");
  expect_refused(file, {"decoder.pattern.String", "2000 bytes", "1024"});
  file = small_file();
  file["pre_tokenizer"] = split_at("a");
  file["pre_tokenizer"]["pattern"] = {{"String", text}};
  expect_refused(file, {"pre_tokenizer.pattern.String", "2000 bytes", "1024"});
}

// 300 references to 100,000 ids, and a path of 30,000 characters before each of 100,000 ids, were
// gigabytes.
TEST(HostileTokenizer, LongTemplatesAreRefused) {
  const Json text = {{"Sequence", {{"id", "A"}}}};
  const Stopwatch clock;
  for (const std::string& name : {std::string("<end>"), std::string(30'000, 's')}) {
    const Json token = {{"SpecialToken", {{"id", name}}}};
    Json file = small_file();
    file["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", std::vector<Json>(300, token)},
                              {"special_tokens", {{name, {{"ids", Ids(100'000, 7)}}}}}};
    file["post_processor"]["single"].push_back(text);
    expect_refused(file, {"dir/tokenizer.json: post_processor.single[0]", "1024"});
    file["post_processor"]["special_tokens"][name]["ids"] = Ids{7};
    EXPECT_EQ(make(file)->encode("", true), Ids(300, 7));
    file["post_processor"] = sequence("processors", file["post_processor"], 4);
    expect_refused(file, {"dir/tokenizer.json: post_processor.processors[3].single[124]", "1024"});
  }
  EXPECT_LT(clock.seconds(), 20);
}

TEST(HostileTokenizer, DecodersThatMakeTooMuchAreRefused) {
  Json file = small_file();
  file["decoder"] = sequence("decoders", replace("a", std::string(10, 'a')), 2);
  EXPECT_EQ(make(file)->decode(Ids{2}), std::string(100, 'a') + 'b');
  file["decoder"] = sequence("decoders", replace("a", std::string(10, 'a')), 40);
  expect_refused(file, {"dir/tokenizer.json: decoder.decoders[2]", "100"});
}

// PCRE2's own limits see none of these: they took hours.
TEST(HostileTokenizer, RegularExpressionsThatTakeTooLongAreRefused) {
  const Stopwatch clock;
  const std::string letters(200'000, 'a');
  Json file = small_file();
  for (const char* regex : {"(a+)+[bc]", "a++[bc]", "a*a*[bc]", "a*a*a*[bc]", "(a|b|ab)*[cd]",
                            "(?:a|a)*[bc]", "(?=(a+))(?:a|b)[cd]", "(?=a*)", "(?<=a)a*[bc]"}) {
    SCOPED_TRACE(regex);
    file["pre_tokenizer"] = split_at(regex);
    expect_text_refused(
        file, letters,
        {"dir/tokenizer.json: pre_tokenizer.pattern.Regex: ", "too long or too much memory"});
    EXPECT_NO_THROW(make(file)->encode("aab aac", false));
  }
  file["pre_tokenizer"] = split_at("(a+)+$");
  EXPECT_EQ(make(file)->encode(letters, false).size(), letters.size());
  file["pre_tokenizer"] = sequence("pretokenizers", split_at("a{60}[bc]"), 60);
  expect_text_refused(file, letters, {"dir/tokenizer.json: pre_tokenizer.pretokenizers["});
  file["pre_tokenizer"] = sequence("pretokenizers", split_at("a"), 60);  // many short words
  expect_text_refused(file, letters, {"dir/tokenizer.json: pre_tokenizer.pretokenizers["});
  EXPECT_LT(clock.seconds(), 30);
}

// Text of the file that a terminal would obey, or that fills a screen, is escaped and cut.
TEST(HostileTokenizer, MessagesShowTextOfTheFileAsPlainText) {
  const std::string hostile = "\x1b[2J\n" + std::string(100'000, 'x');
  Json files[8];
  for (Json& file : files) file = small_file();
  files[0]["model"]["type"] = hostile;
  files[1]["model"]["vocab"][hostile] = -1;
  files[2]["model"]["merges"][0] = {"a", hostile};
  files[3]["normalizer"]["type"] = hostile;
  files[4]["pre_tokenizer"]["type"] = hostile;
  files[5]["decoder"]["type"] = hostile;
  files[6]["post_processor"]["single"][0]["SpecialToken"]["id"] = hostile;
  files[7]["post_processor"]["type"] = hostile;
  for (const Json& file : files) {
    try {
      make(file);
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("\\u001b[2J\\nxxx"), std::string::npos) << what;
      EXPECT_LT(what.size(), 400u);
    }
  }
}

// --- large files --------------------------------------------------------------------------------

TEST(LargeTokenizer, TimeIsLinearInAddedTokens) {
  constexpr int kMany = 60'000;
  Json file = small_file();
  std::string text;
  for (int i = 0; i < kMany; ++i) {
    const std::string content = fmt::format("<|token {}|>", i);
    file["added_tokens"].push_back(
        {{"id", 8 + i}, {"content", content}, {"normalized", i % 2 == 0}});
    text += content;
  }
  const Stopwatch clock;
  const auto tokenizer = make(file);
  EXPECT_EQ(tokenizer->encode(text, false).size(), std::size_t{kMany});
  EXPECT_LT(clock.seconds(), 30);

  file["added_tokens"].push_back({{"id", 9}, {"content", std::string(1 << 24, 'x')}});
  expect_refused(file, {"dir/tokenizer.json: added_tokens: ", "supported: 16777216"});
}

TEST(LargeTokenizer, TimeIsLinearInMerges) {
  constexpr int kMany = 500;
  Json file = small_file();
  Json vocabulary, merges;
  const auto add = [&](const std::string& token) { vocabulary[token] = vocabulary.size(); };
  for (int i = 0; i < kMany; ++i) {
    add(fmt::format("l{}", i));
    add(fmt::format("r{}", i));
    for (int j = 0; j < kMany; ++j) {
      add(fmt::format("l{}r{}", i, j));
      merges.push_back(fmt::format("l{} r{}", i, j));
    }
  }
  file["model"]["vocab"] = vocabulary;
  file["model"]["merges"] = merges;
  file["added_tokens"][0]["id"] = vocabulary.size();
  file["post_processor"] = nullptr;
  const std::string text = file.dump();
  const Stopwatch clock;
  EXPECT_NO_THROW(make_json_tokenizer(text, "f", {}));
  EXPECT_LT(clock.seconds(), 40);
}

// Merges whose pairs of ids, as one number, all leave the same remainder: in a hash table of
// numbers as they are they are one list, and to fill it took minutes.
TEST(LargeTokenizer, NobodyCanMakeMergesCollide) {
  constexpr std::uint64_t kMany = 170'000;
  std::unordered_map<std::uint64_t, int> table;
  for (std::uint64_t i = 0; i < kMany; ++i) table[i] = 0;
  const std::uint64_t buckets = table.bucket_count();
  constexpr std::uint64_t kFirst = kMaxTokenId / 2;
  std::string vocabulary, merges;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    const std::uint64_t left = kFirst + i;
    const std::uint64_t right = (buckets - (left << 32) % buckets) % buckets;
    vocabulary += fmt::format("\"l{}\":{},\"r{}\":{},\"l{}r{}\":{},", i, left, i, right, i, i,
                              kFirst + kMany + i);
    merges += fmt::format(",\"l{} r{}\"", i, i);
  }
  vocabulary.pop_back();
  const std::string file = fmt::format(
      "{{\"model\":{{\"vocab\":{{{}}},\"merges\":[{}]}},\"decoder\":{{\"type\":"
      "\"ByteLevel\"}}}}",
      vocabulary, merges.substr(1));
  const Stopwatch clock;
  EXPECT_NO_THROW(make_json_tokenizer(file, "f", {}));
  EXPECT_LT(clock.seconds(), 20);
}

}  // namespace
}  // namespace quantspec
