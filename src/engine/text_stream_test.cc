#include "engine/text_stream.h"

#include <gtest/gtest.h>

namespace quantspec {
namespace {

// Token i adds these bytes.
class Pieces : public Tokenizer {
 public:
  explicit Pieces(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<TokenId> encode(std::string_view, bool) const override { return {}; }
  std::vector<TokenId> encode(std::string_view, bool, std::span<const TextRange>) const override {
    return {};
  }
  std::vector<TextRange> special_tokens_in(std::string_view) const override { return {}; }
  std::string token_bytes(TokenId id, bool&) const override { return pieces_.at(id); }
  int vocab_size() const override { return static_cast<int>(pieces_.size()); }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return std::nullopt; }
  bool is_special(TokenId) const override { return false; }
  std::string name(TokenId) const override { return {}; }
  bool marks_every_bad_byte() const override { return true; }

 private:
  std::vector<std::string> pieces_;
};

struct Shown {
  std::vector<std::string> texts = {};  // of each event
  std::vector<std::optional<float>> log_probs = {};
  std::vector<bool> more_text = {};
  std::size_t wants = 1000;  // events

  TokenCallback callback() {
    return [this](const TokenEvent& event) {
      texts.emplace_back(event.text);
      log_probs.push_back(event.log_prob);
      more_text.push_back(event.more_text);
      return texts.size() < wants;
    };
  }
};

using Texts = std::vector<std::string>;

TEST(TextStream, HoldsBackWhatMayBeginAStopStringAndTellsEveryTokenAtOnce) {
  const Pieces pieces({"Once", " up", "on", " a", " time"});
  TextStream stream(pieces, {.stop = {" upside"}});
  Shown shown;
  for (const TokenId id : {0, 1, 2}) {
    EXPECT_EQ(stream.push({.id = id, .log_prob = -0.5f * id}, shown.callback()), std::nullopt);
  }
  EXPECT_EQ(shown.texts, (Texts{"Once", "", " upon"}));
  EXPECT_EQ(shown.log_probs, (std::vector<std::optional<float>>{0.0f, -0.5f, -1.0f}));
  EXPECT_EQ(stream.text(), "Once upon");
}

// In one token, over two, over three, and with text behind it.
TEST(TextStream, AStopStringEndsTheTextWhereverTokensBegin) {
  const Pieces pieces({"ab", "STOP", "ST", "OP", "S", "TO", "P rest", "x STOP y"});
  const std::vector<std::vector<TokenId>> ways = {{0, 1}, {0, 2, 3}, {0, 4, 5, 6}, {0, 7}};
  for (const auto& way : ways) {
    TextStream stream(pieces, {.stop = {"STOP"}});
    Shown shown;
    std::optional<StopReason> reason;
    for (const TokenId id : way) {
      ASSERT_EQ(reason, std::nullopt);
      reason = stream.push({.id = id}, shown.callback());
    }
    EXPECT_EQ(reason, StopReason::kStop);
    EXPECT_EQ(stream.text(), way.back() == 7 ? "abx " : "ab");
    EXPECT_EQ(stream.tokens(), way);
    EXPECT_EQ(shown.texts.size(), way.size());
    stream.finish(shown.callback());  // there is nothing more
    EXPECT_EQ(shown.texts.size(), way.size());
  }
}

TEST(TextStream, CharactersAreShownWholeAlsoInsideAStopString) {
  const Pieces pieces({"a\xe2", "\x82", "\xac", "\xe2\x82", "b"});
  TextStream stream(pieces, {.stop = {"\xe2\x82\xac"
                                      "b"}});
  Shown shown;
  for (const TokenId id : {0, 1, 2, 3, 2, 4}) {
    const auto reason = stream.push({.id = id}, shown.callback());
    EXPECT_EQ(reason, id == 4 ? std::optional(StopReason::kStop) : std::nullopt);
  }
  EXPECT_EQ(shown.texts, (Texts{"a", "", "", "", "\xe2\x82\xac", ""}));
}

TEST(TextStream, WhatIsHeldBackComesAtTheEndWithTheLastToken) {
  const Pieces pieces({"a", "ST", "\xe2\x82"});
  TextStream stream(pieces, {.stop = {"STOP"}});
  Shown shown;
  for (const TokenId id : {0, 1}) stream.push({.id = id, .log_prob = 0.0f}, shown.callback());
  stream.finish(shown.callback());
  EXPECT_EQ(shown.texts, (Texts{"a", "", "ST"}));
  EXPECT_EQ(shown.more_text, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(shown.log_probs[2], std::nullopt);  // no further token
  EXPECT_EQ(stream.tokens(), (std::vector<TokenId>{0, 1}));
  TextStream half(pieces, {});
  half.push({.id = 2}, {});
  half.finish({});
  EXPECT_EQ(half.text(), "\xef\xbf\xbd\xef\xbf\xbd");  // U+FFFD for each byte
}

TEST(TextStream, TokensThatEndTheTextHaveNone) {
  const Pieces pieces({"a", "ST", "</s>", "!"});
  for (const TokenId end : {2, 3}) {
    TextStream stream(pieces, {.eos = {2}, .stop_ids = {3}, .stop = {"STOP"}});
    Shown shown;
    EXPECT_EQ(stream.push({.id = 1}, shown.callback()), std::nullopt);
    EXPECT_EQ(stream.push({.id = end}, shown.callback()),
              end == 2 ? StopReason::kEos : StopReason::kStop);
    EXPECT_EQ(shown.texts, (Texts{"", "ST"}));
    EXPECT_EQ(stream.tokens(), (std::vector<TokenId>{1, end}));
  }
}

TEST(TextStream, StopStringsAreLookedForFromTheLeastTokensOn) {
  const Pieces pieces({"a", "STOP", "</s>"});
  for (const int least : {0, 1, 2, 3}) {
    TextStream stream(pieces, {.eos = {2}, .stop = {"STOP", "aS"}, .min_tokens = least});
    Shown shown;
    EXPECT_EQ(stream.push({.id = 0}, shown.callback()), std::nullopt);
    const auto end = stream.push({.id = 1}, shown.callback());
    EXPECT_EQ(end, least < 3 ? std::optional(StopReason::kStop) : std::nullopt);
    EXPECT_EQ(stream.text(), least == 3 ? "aSTOP" : least == 2 ? "a" : "");
  }
}

TEST(TextStream, TheCallerMayCancel) {
  const Pieces pieces({"a", "b"});
  TextStream stream(pieces, {});
  Shown shown{.wants = 2};
  EXPECT_EQ(stream.push({.id = 0}, shown.callback()), std::nullopt);
  EXPECT_EQ(stream.push({.id = 1}, shown.callback()), StopReason::kCancelled);
}

}  // namespace
}  // namespace quantspec
