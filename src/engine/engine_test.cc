#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "backend/backend.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "base/json.h"
#include "engine/memory_plan.h"

namespace quantspec {
namespace {

EngineOptions bundled(DraftWeights draft_weights = DraftWeights::kAuto) {
  EngineOptions options;
  options.model = std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m";
  options.num_threads = 2;
  options.ctx_size = 2048;
  options.draft_weights = draft_weights;
  return options;
}

// An empty folder but for links to these files of the bundled model.
std::filesystem::path folder_of(const char* name, const std::vector<const char*>& files) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / name;
  fs::remove_all(folder);
  fs::create_directory(folder);
  for (const char* file : files) fs::create_symlink(bundled().model / file, folder / file);
  return folder;
}

GenerateOptions greedy(int predict, std::optional<int> draft_len = std::nullopt) {
  GenerateOptions options;
  options.predict = predict;
  options.sampling.temperature = 0;
  options.draft_len = draft_len;
  options.ignore_eos = true;
  return options;
}

constexpr const char* kPrompt = "It was a dark night, and the wind";

class EngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = Engine::load(bundled()).release(); }
  static void TearDownTestSuite() { delete engine_; }
  static GenerateResult run(const GenerateOptions& options, std::string_view prompt = kPrompt) {
    return engine_->create_session()->generate(prompt, options);
  }
  static ErrorKind kind_of_error(const GenerateOptions& options, std::string_view prompt) {
    try {
      run(options, prompt);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.kind();
    }
    ADD_FAILURE() << "no error";
    return ErrorKind::kInternal;
  }
  static Engine* engine_;
};
Engine* EngineTest::engine_ = nullptr;

TEST_F(EngineTest, StreamsTheTextThatItReturns) {
  std::string streamed;
  std::vector<TokenId> tokens;
  int drafted = 0;
  const GenerateResult result =
      engine_->create_session()->generate(kPrompt, greedy(40), [&](const TokenEvent& event) {
        streamed += event.text;
        tokens.push_back(event.id);
        drafted += event.drafted;
        return true;
      });
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.tokens.size(), 40u);
  EXPECT_EQ(std::vector<TokenId>(tokens.begin(), tokens.begin() + 40), result.tokens);
  EXPECT_EQ(drafted, result.speculation.accepted);
  EXPECT_EQ(result.stop_reason, StopReason::kLength);
  // In the middle of a text, a first space is kept.
  EXPECT_EQ(result.text, " " + engine_->tokenizer().decode(result.tokens));
  EXPECT_GT(result.timings.decode_tokens_per_second, 0);
}

TEST_F(EngineTest, TextIsTheSameForEveryDraftLength) {
  const GenerateResult plain = run(greedy(60, 0));
  EXPECT_EQ(plain.speculation.drafted, 0);
  for (const int draft_len : {1, 4, 16}) EXPECT_EQ(run(greedy(60, draft_len)).text, plain.text);
}

TEST_F(EngineTest, AStopStringInsideAnAcceptedRunEndsTheText) {
  const std::string whole = run(greedy(80, 8)).text;
  const std::string stop = whole.substr(whole.size() / 2, 7);
  GenerateOptions options = greedy(80, 8);
  options.stop = {stop};
  const GenerateResult result = run(options);
  EXPECT_EQ(result.stop_reason, StopReason::kStop);
  EXPECT_EQ(result.text, whole.substr(0, whole.find(stop)));
}

TEST_F(EngineTest, ASessionContinuesAfterAStopAsIfNothingMoreHadBeenDecoded) {
  // The same two turns with and without speculation: what was dropped at the stop leaves no trace.
  std::vector<std::string> texts;
  for (const int draft_len : {0, 12}) {
    auto session = engine_->create_session();
    GenerateOptions options = greedy(80, draft_len);
    options.stop = {","};
    std::string text = session->generate(kPrompt, options).text;
    for (int turn = 0; turn < 8; ++turn) {
      text += "|" + session->generate(" and then the old man said,", options).text;
    }
    texts.push_back(text);
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(Engine, EosInsideAnAcceptedRunEndsTheTextUnlessIgnored) {
  // The bundled model, told by generation_config.json that a text ends with its first comma.
  const auto folder =
      folder_of("quantspec-eos", {"config.json", "model.safetensors", "tokenizer.model"});
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [2, 8124]})";
  EngineOptions options = bundled();
  options.model = folder;
  const auto engine = Engine::load(options);
  const std::string ignored = engine->create_session()->generate(kPrompt, greedy(60, 8)).text;
  GenerateOptions until_eos = greedy(60, 8);
  until_eos.ignore_eos = false;
  const GenerateResult result = engine->create_session()->generate(kPrompt, until_eos);
  EXPECT_EQ(result.stop_reason, StopReason::kEos);
  EXPECT_EQ(result.tokens.back(), 8124);
  EXPECT_EQ(result.text, ignored.substr(0, ignored.find(',')));
  EXPECT_LT(result.text.size(), ignored.size());
  std::filesystem::remove_all(folder);
}

TEST_F(EngineTest, TheCallerCanCancel) {
  int tokens = 0;
  const GenerateResult result = engine_->create_session()->generate(
      kPrompt, greedy(50), [&](const TokenEvent&) { return ++tokens < 5; });
  EXPECT_EQ(result.stop_reason, StopReason::kCancelled);
  EXPECT_EQ(result.tokens.size(), 5u);
}

TEST_F(EngineTest, TheContextEndsTheText) {
  EngineOptions options = bundled();
  options.ctx_size = 64;
  const auto engine = Engine::load(options);
  const GenerateResult result = engine->create_session()->generate(kPrompt, greedy(-1, 5));
  EXPECT_EQ(result.stop_reason, StopReason::kContext);
  EXPECT_EQ(result.prompt_tokens + result.tokens.size(), 65u);  // the last one needs no place
}

TEST_F(EngineTest, RefusesWhatCannotBeDone) {
  EXPECT_EQ(kind_of_error(greedy(0), kPrompt), ErrorKind::kInvalidRequest);
  EXPECT_EQ(kind_of_error(greedy(5, 17), kPrompt), ErrorKind::kInvalidRequest);
  EXPECT_EQ(kind_of_error(greedy(5, -1), kPrompt), ErrorKind::kInvalidRequest);
  std::string long_prompt;
  for (int i = 0; i < 3000; ++i) long_prompt += "word ";
  EXPECT_EQ(kind_of_error(greedy(5), long_prompt), ErrorKind::kInvalidRequest);
  EXPECT_THROW(engine_->create_session()->generate(std::span<const TokenId>(), greedy(5)), Error);
}

TEST_F(EngineTest, ARefusedRequestLeavesTheSessionAsItWas) {
  std::vector<std::string> texts;
  for (const bool refuse : {false, true}) {
    const auto session = engine_->create_session();
    std::string text = session->generate(kPrompt, greedy(20, 4)).text;
    if (refuse) {
      for (const TokenId token : {-1, engine_->config().vocab_size}) {
        try {
          session->generate(std::vector{TokenId{5}, token}, greedy(5));
          ADD_FAILURE() << "no error for token " << token;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
        }
      }
      EXPECT_THROW(session->generate(" and", greedy(5, 17)), Error);
    }
    texts.push_back(text + session->generate(" and then", greedy(20, 4)).text);
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_F(EngineTest, ACallbackThatThrowsLeavesTheSessionEmpty) {
  const auto session = engine_->create_session();
  const auto give_up = [](const TokenEvent&) -> bool { throw std::runtime_error("enough"); };
  EXPECT_THROW(session->generate(kPrompt, greedy(20, 4), give_up), std::runtime_error);
  EXPECT_EQ(session->generate(kPrompt, greedy(20, 4)).text, run(greedy(20, 4)).text);
}

TEST(Engine, WithoutAnEosInItsConfigAModelHasItsTokenizers) {
  const auto folder = folder_of("quantspec-no-eos", {"model.safetensors", "tokenizer.model"});
  EngineOptions options = bundled();
  Json config = parse_json_file(options.model / "config.json");
  config.erase("eos_token_id");
  std::ofstream(folder / "config.json") << config;
  options.model = folder;
  const auto engine = Engine::load(options);
  ASSERT_TRUE(engine->tokenizer().eos());
  EXPECT_EQ(engine->config().eos_tokens, std::vector{*engine->tokenizer().eos()});
  std::filesystem::remove_all(folder);
}

TEST_F(EngineTest, ReportsTheMemoryThatItUses) {
  const GenerateResult result = run(greedy(4));
  EXPECT_GT(result.memory.weights_bytes, 46'000'000u);
  EXPECT_GT(result.memory.draft_weights_bytes, 23'000'000u);
  EXPECT_LT(result.memory.draft_weights_bytes, 26'000'000u);
  EXPECT_EQ(result.memory.kv_bytes, 0u);  // a short text lies in the ring
  EXPECT_GT(result.memory.ring_bytes, 0u);
}

// What a kernel does to the wrong memory is beyond repair for every backend of the process.
TEST(EngineOnAGpu, ADeviceErrorEndsTheRequestAndNotTheProcess) {
  if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto broken = [] {
    auto engine = Engine::load(bundled());
    auto session = engine->create_session();
    const auto other = make_backend({"cuda"});
    Buffer target = other->allocate(1 << 20);
    int tokens = 0;
    const auto break_late = [&](const TokenEvent&) {  // when rounds are graphs
      if (++tokens == 60) {
        other->copy_full_kv({1, 1, 64, 32}, {reinterpret_cast<std::byte*>(4096), 64},
                            {target.data(), 64}, 0, 16);
      }
      return true;
    };
    expect_error(ErrorKind::kDevice, {"the GPU: "},
                 [&] { session->generate(kPrompt, greedy(300, 1), break_late); });
    EXPECT_GE(tokens, 60);
    expect_error(ErrorKind::kDevice, {"the GPU: "},
                 [&] { engine->create_session()->generate(kPrompt, greedy(10)); });
    session.reset();
    engine.reset();
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(broken(), testing::ExitedWithCode(0), "");
}

TEST(MemoryPlan, AContextThatCannotFitIsRefusedNamingTheLargestThatDoes) {
  EngineOptions options = bundled();
  options.ctx_size = 200'000'000;
  try {
    Engine::load(options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("--ctx-size "), std::string::npos) << error.what();
  }
}

TEST(MemoryPlan, AContextBeyondTheCapIsRefused) {
  for (const int context : {kMaxContext + 1, std::numeric_limits<int>::max(), -1}) {
    try {
      report_model(bundled(), std::vector{context});
      ADD_FAILURE() << "no error for " << context;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    }
  }
}

TEST(MemoryPlan, TheLargestContextFitsAndOneMoreTokenDoesNot) {
  const ModelReport report = report_model(bundled(), {});
  const auto backend = make_backend({"cpu", 1});
  const MemoryPlanner planner(bundled(), report.config, *backend);
  const auto total = [&](int context) { return planner.plan(context).total(); };
  const std::size_t available = 1'000'000'000;
  const int largest = planner.largest_context(available);
  EXPECT_GT(largest, 32'768);
  EXPECT_LE(total(largest), available);
  EXPECT_GT(total(largest + 1), available);
  EXPECT_EQ(planner.largest_context(1000), 0);
}

TEST(MemoryPlan, AFullPrecisionCacheTakesWhatFp16Takes) {
  EngineOptions options = bundled();
  options.kv_store = KvStore::kFull;
  const ModelReport report = report_model(options, std::vector{8192});
  const MemoryPlan& plan = report.plans[0].second;
  EXPECT_EQ(plan.kv_bytes, 0u);
  EXPECT_EQ(plan.ring_bytes, plan.kv_fp16_bytes);
}

TEST(MemoryPlan, DraftWeightsTakeAQuarterOrHalfOfTheirBf16) {
  const ModelReport report = report_model(bundled(), {});
  const auto backend = make_backend({"cpu", 1});
  const double bf16 = 46'900'000;
  EXPECT_NEAR(Weights::draft_bytes_for(report.config, *backend, WeightRead::kUpper) / bf16, 0.266,
              0.005);
  EXPECT_NEAR(Weights::draft_bytes_for(report.config, *backend, WeightRead::kBoth) / bf16, 0.516,
              0.005);
  EXPECT_EQ(Weights::draft_bytes_for(report.config, *backend, WeightRead::kFull), 0u);
}

}  // namespace
}  // namespace quantspec
