// Receipts: true ones pass, and every forgery of one token, of the end, or of what was asked for is
// named; through JSON and back.
#include "engine/receipt.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/expect_error.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

class Receipts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine_ = Engine::load(bundled()).release();
    fingerprint_ = new std::string(engine_->fingerprint());
  }
  static void TearDownTestSuite() {
    delete std::exchange(engine_, nullptr);
    delete std::exchange(fingerprint_, nullptr);
  }

  static GenerateOptions greedy(int predict) {
    GenerateOptions options;
    options.predict = predict;
    options.sampling.temperature = 0;
    return options;
  }
  static GenerateOptions seeded(int predict, std::uint64_t seed) {
    GenerateOptions options;
    options.predict = predict;
    options.sampling = {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .seed = seed};
    options.spec_sampling = SpecSampling::kCoupled;
    return options;
  }
  static Receipt write(const std::string& text, const GenerateOptions& options) {
    const std::vector<TokenId> prompt = engine_->encode(text, true, engine_->ctx_size());
    const GenerateResult result = engine_->create_session()->generate(prompt, options);
    const Receipt receipt = make_receipt(*fingerprint_, *engine_, prompt, options, result);
    // What is checked is what a file says.
    return read_receipt(nlohmann::json::parse(to_json(receipt).dump()), "a file");
  }
  static Verdict check(const Receipt& receipt) { return verify(*engine_, {&receipt, 1})[0]; }

  static Engine* engine_;
  static std::string* fingerprint_;
};

Engine* Receipts::engine_ = nullptr;
std::string* Receipts::fingerprint_ = nullptr;

TEST_F(Receipts, TrueOnesPassWhateverWasAskedFor) {
  std::vector<Receipt> receipts = {write("It was a dark", greedy(40)),
                                   write("It was a dark", seeded(100, 7)),
                                   write("The captain", seeded(1, UINT64_MAX))};
  GenerateOptions options = seeded(60, 3);
  options.sampling.repeat_penalty = 1.2f;
  options.sampling.presence_penalty = 0.5f;
  options.sampling.frequency_penalty = 0.1f;
  options.sampling.min_p = 0.03f;
  options.logit_bias = {{300, -std::numeric_limits<float>::infinity()}, {301, 2.5f}};
  options.min_tokens = 10;
  receipts.push_back(write("Once upon", options));
  options.sampling.temperature = 0;
  receipts.push_back(write("Once upon", options));
  options = greedy(200);
  options.stop = {" the", "zzz"};
  receipts.push_back(write("It was a dark night, and", options));
  EXPECT_TRUE(receipts.back().stopped);
  options = greedy(200);
  options.stop_ids = {receipts[0].tokens[5]};
  receipts.push_back(write("It was a dark", options));
  EXPECT_TRUE(receipts.back().stopped);
  EXPECT_LE(receipts.back().tokens.size(), 6u);
  options = greedy(-1);  // until the context is full
  options.ignore_eos = true;
  receipts.push_back(write("It was a dark", options));
  EXPECT_GT(receipts.back().tokens.size(), 2000u);
  const auto verdicts = verify(*engine_, receipts);
  ASSERT_EQ(verdicts.size(), receipts.size());
  for (std::size_t i = 0; i < receipts.size(); ++i) {
    EXPECT_TRUE(verdicts[i].good()) << "answer " << i << " differs at " << *verdicts[i].differs;
  }
}

TEST_F(Receipts, EveryForgedTokenIsNamed) {
  for (const GenerateOptions& options : {greedy(48), seeded(48, 5)}) {
    const Receipt good = write("It was a dark and stormy night", options);
    std::vector<Receipt> forged;
    for (std::size_t i = 0; i < good.tokens.size(); ++i) {
      forged.push_back(good);
      forged.back().tokens[i] = (good.tokens[i] + 1) % engine_->config().vocab_size;
    }
    const auto verdicts = verify(*engine_, forged);
    for (std::size_t i = 0; i < forged.size(); ++i) {
      EXPECT_EQ(verdicts[i].differs, i);
      EXPECT_EQ(verdicts[i].own, good.tokens[i]);
    }
  }
}

TEST_F(Receipts, AnotherEndIsNamed) {
  Receipt receipt = write("It was a dark", greedy(40));
  receipt.tokens.resize(30);  // it ends too early
  Verdict verdict = check(receipt);
  EXPECT_EQ(verdict.differs, 30u);
  EXPECT_TRUE(verdict.own);

  receipt.options.predict = 30;
  EXPECT_TRUE(check(receipt).good());
  receipt.stopped = true;  // nothing stopped it
  verdict = check(receipt);
  EXPECT_EQ(verdict.differs, 30u);
  EXPECT_FALSE(verdict.own);

  GenerateOptions options = greedy(200);
  options.stop = {" the"};
  receipt = write("It was a dark night, and", options);
  ASSERT_TRUE(receipt.stopped);
  const std::size_t end = receipt.tokens.size();
  receipt.tokens.push_back(5);  // it goes on behind its end
  verdict = check(receipt);
  EXPECT_EQ(verdict.differs, end);
  EXPECT_FALSE(verdict.own);
}

TEST_F(Receipts, AnotherRequestIsNamed) {
  const Receipt good = write("It was a dark and stormy night", seeded(60, 5));
  EXPECT_TRUE(check(good).good());
  Receipt other = good;
  other.options.sampling.seed = 6;
  EXPECT_FALSE(check(other).good());
  other = good;
  other.prompt[2] += 1;
  EXPECT_FALSE(check(other).good());
  other = good;
  other.options.sampling.temperature = 2;
  EXPECT_FALSE(check(other).good());
}

TEST_F(Receipts, OfAnotherEngineAreRefused) {
  Receipt receipt = write("It was a dark", greedy(4));
  receipt.fingerprint = "b0";
  expect_error(ErrorKind::kInvalidRequest, {"another engine", "b0"}, [&] { check(receipt); });
  receipt = write("It was a dark", greedy(4));
  receipt.tokens[1] = engine_->config().vocab_size;
  expect_error(ErrorKind::kInvalidRequest, {"is proposed"}, [&] { check(receipt); });
}

TEST_F(Receipts, WhatIsNoneIsRefused) {
  const nlohmann::json good = to_json(write("It was a dark", greedy(4)));
  for (const auto& [name, value] : good.items()) {
    nlohmann::json changed = good;
    changed.erase(name);
    expect_error(ErrorKind::kCorruptFile, {"here", name}, [&] { read_receipt(changed, "here"); });
    changed[name] = nlohmann::json{{"an", "object"}};
    EXPECT_THROW(read_receipt(changed, "here"), Error) << name;
  }
  const auto refused = [&](const char* name, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[name] = value;
    expect_error(ErrorKind::kCorruptFile, {"here"}, [&] { read_receipt(changed, "here"); });
  };
  refused("version", 2);
  refused("tokens", nlohmann::json::array());
  refused("tokens", {1, 2, 3, 4, 5});  // of at most four
  refused("tokens", {1.5});
  refused("prompt", {UINT64_MAX});
  refused("prompt", {INT64_MIN});
  refused("stop", {""});
  refused("logit_bias", {{1}});
  refused("max_tokens", -1);
}

}  // namespace
}  // namespace quantspec
