#include "engine/engine.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/test_folder.h"
#include "engine/memory_plan.h"
#include "engine/request_loop.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

// An empty folder but for links to these files of the bundled model.
std::filesystem::path folder_of(const char* name, const std::vector<const char*>& files) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / name;
  fs::remove_all(folder);
  fs::create_directory(folder);
  for (const char* file : files) fs::create_symlink(bundled().model / file, folder / file);
  return folder;
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
  int drafted = 0, rejected = 0;
  const GenerateResult result =
      engine_->create_session()->generate(kPrompt, greedy(40, 8), [&](const TokenEvent& event) {
        streamed += event.text;
        tokens.push_back(event.id);
        drafted += event.drafted;
        rejected += static_cast<int>(event.rejected.size());
        if (!event.rejected.empty()) {  // the target's own stands where the draft's would have
          EXPECT_FALSE(event.drafted);
          EXPECT_NE(event.rejected.front(), event.id);
        }
        return true;
      });
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.tokens.size(), 40u);
  EXPECT_EQ(std::vector<TokenId>(tokens.begin(), tokens.begin() + 40), result.tokens);
  EXPECT_EQ(drafted, result.speculation.accepted);
  EXPECT_EQ(drafted + rejected, result.speculation.drafted);
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

TEST(DraftSpecs, AreReadAsTheyAreTyped) {
  const auto read = [](std::string_view spec) {
    const DraftSpec wanted = read_draft_spec(spec);
    return std::pair(std::string(wanted.plan), wanted.looks_up);
  };
  using Read = std::pair<std::string, bool>;
  EXPECT_EQ(read("auto"), Read("auto", true));
  EXPECT_EQ(read("auto+lookup"), Read("auto", true));
  EXPECT_EQ(read("auto+nolookup"), Read("auto", false));
  EXPECT_EQ(read_draft_spec("auto+lookup").auto_name(), "auto");
  EXPECT_EQ(read_draft_spec("auto+nolookup").auto_name(), "auto+nolookup");
  EXPECT_EQ(read("lookup"), Read("", true));
  EXPECT_EQ(read("quantspec+w8"), Read("quantspec+w8", false));
  EXPECT_EQ(read("quantspec+w8+lookup"), Read("quantspec+w8", true));
  EXPECT_EQ(read("plan:a+lookup.json"), Read("plan:a+lookup.json", false));
  for (const char* const none : {"", "+lookup"}) EXPECT_THROW(read_draft_spec(none), Error) << none;
}

TEST_F(EngineTest, PlansLookUpAsTheirNamesSay) {
  const auto names = [](const std::vector<Plan>& plans) {
    std::vector<std::string> names;
    for (const Plan& plan : plans) names.push_back(plan.name);
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(engine_->plans("lookup")), Names{"lookup"});
  EXPECT_EQ(names(engine_->plans("quantspec+lookup")), (Names{"quantspec", "lookup"}));
  EXPECT_EQ(names(engine_->plans("auto")).back(), "lookup");
  EXPECT_NE(names(engine_->plans("auto+nolookup")).back(), "lookup");
  for (const char* const refused : {"lookup+w8", "auto+w8", "quantspec+lookup+w8"}) {
    EXPECT_THROW(engine_->plans(refused), Error) << refused;
  }
}

// A text that the model begins to repeat. What counts lookups, here and below, fixes the draft
// length: the rule that chooses one goes by the clock, and may look nothing up.
TEST_F(EngineTest, TextIsTheSameWithLookups) {
  const GenerateResult plain = run(greedy(200, 0));
  EngineOptions options = bundled();
  options.plan = "lookup";
  const auto engine = Engine::load(options);
  int looked_up = 0;
  const GenerateResult result =
      engine->create_session()->generate(kPrompt, greedy(200, 8), [&](const TokenEvent& event) {
        looked_up += event.looked_up;
        EXPECT_TRUE(event.drafted || !event.looked_up);
        return true;
      });
  EXPECT_EQ(result.text, plain.text);
  EXPECT_GT(looked_up, 20);
  EXPECT_EQ(looked_up, result.speculation.looked_up_accepted);
  EXPECT_EQ(result.speculation.drafted, result.speculation.looked_up);
  const GenerateResult chosen = engine->create_session()->generate(kPrompt, greedy(200));
  EXPECT_EQ(chosen.text, plain.text);
  EXPECT_FALSE(chosen.drafts_off);
  // As in a cache without pages.
  options.kv_store = KvStore::kFull;
  EXPECT_EQ(Engine::load(options)->create_session()->generate(kPrompt, greedy(60)).tokens.size(),
            60u);
}

// Right, wrong in places, and about something else.
TEST_F(EngineTest, TextIsTheSameWithAPrediction) {
  EngineOptions engine_options = bundled();
  engine_options.plan = "lookup";
  const auto engine = Engine::load(engine_options);
  const auto generate = [&](const GenerateOptions& options) {
    return engine->create_session()->generate(kPrompt, options);
  };
  const GenerateResult plain = generate(greedy(120, 0));
  GenerateOptions options = greedy(120, 8);
  options.prediction = plain.tokens;
  const GenerateResult right = generate(options);
  EXPECT_EQ(right.tokens, plain.tokens);
  EXPECT_GT(right.speculation.looked_up_accepted, 20);
  for (std::size_t i = 20; i < options.prediction.size(); i += 25) options.prediction[i] = 7;
  const GenerateResult changed = generate(options);
  EXPECT_EQ(changed.tokens, plain.tokens);
  EXPECT_GT(changed.speculation.looked_up_accepted, 10);
  options.prediction = {5, 6, 7, 8, 9};
  EXPECT_EQ(generate(options).tokens, plain.tokens);
  options.prediction = {engine->config().vocab_size};
  EXPECT_THROW(generate(options), Error);
  options.prediction = plain.tokens;
  EXPECT_THROW(Engine::load([] {
                 EngineOptions none = bundled();
                 none.plan = "quantspec";
                 return none;
               }())
                   ->create_session()
                   ->generate(kPrompt, options),
               Error);
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

// Each text is what it is alone, whoever else generates.
TEST_F(EngineTest, ThreadsShareTheEngine) {
  const std::vector<std::string> prompts = {"It was a dark night", "The old man said", "In spring"};
  std::vector<std::string> alone, together(prompts.size());
  for (const std::string& prompt : prompts) alone.push_back(run(greedy(60), prompt).text);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) together[i] = run(greedy(60), prompts[i]).text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST_F(EngineTest, OneSessionIsForOneCallAtATime) {
  const auto session = engine_->create_session();
  int refused = 0;
  const std::string text =
      session
          ->generate(kPrompt, greedy(20),
                     [&](const TokenEvent&) {
                       expect_error(ErrorKind::kInvalidRequest, {"generating already"},
                                    [&] { session->generate(kPrompt, greedy(5)); });
                       return ++refused < 100;
                     })
          .text;
  EXPECT_GE(refused, 20);
  EXPECT_EQ(text, run(greedy(20)).text);
}

TEST_F(EngineTest, CallbacksMayUseOtherSessions) {
  const std::string alone = run(greedy(10), "In spring").text;
  std::vector<std::string> inner;
  const auto ask = [&] {
    if (inner.size() >= 2) return;
    inner.push_back(engine_->create_session()->generate("In spring", greedy(10)).text);
  };
  GenerateOptions options = greedy(20);
  options.progress = [&](std::string_view, double) { ask(); };
  const std::string outer = engine_->create_session()
                                ->generate(kPrompt, options,
                                           [&](const TokenEvent&) {
                                             ask();
                                             return true;
                                           })
                                .text;
  EXPECT_EQ(inner, (std::vector{alone, alone}));
  EXPECT_EQ(outer, run(greedy(20)).text);
}

TEST_F(EngineTest, PlansThatGatherTokensAreForMeasurements) {
  for (const char* name : {"streaming", "snapkv+w4", "retrieval"}) {
    expect_error(ErrorKind::kInvalidRequest,
                 {fmt::format("plan {}: drafts that gather tokens", name), "bench and eval"}, [&] {
                   EngineOptions options = bundled();
                   options.plan = name;
                   options.draft_budget = 256;
                   Engine::load(options);
                 });
  }
}

// What was read once is found, by the session that read it and by others, but for those of another
// salt; and nothing of that shows in the text.
TEST(Engine, DraftsThatCannotBeAreRefusedBeforeLoading) {
  const auto refused = [](const std::vector<std::string>& words, auto change) {
    EngineOptions options = bundled();
    change(options);
    options.progress = [](std::string_view, double) { ADD_FAILURE() << "something was loaded"; };
    expect_error(ErrorKind::kInvalidRequest, words, [&] { Engine::load(options); });
  };
  using O = EngineOptions;
  refused({"quantspec+sparse", "full precision has none"},
          [](O& o) { o.plan = "quantspec+sparse", o.kv_store = KvStore::kFull; });
  refused({"draft budget 256", "sparse plans"},
          [](O& o) { o.draft_weights = DraftWeights::kUpper, o.draft_budget = 256; });
  refused({"plan auto", "draft budget 10", "or more"}, [](O& o) { o.draft_budget = 10; });
  refused({"plan streaming", "bench and eval"}, [](O& o) { o.plan = "streaming"; });
}

TEST(Engine, StartsWhenItIsToldTo) {
  const auto engine = Engine::load(bundled());
  EXPECT_EQ(engine->requests(), nullptr);
  engine->start();
  ASSERT_NE(engine->requests(), nullptr);
  EXPECT_EQ(engine->requests()->statistics().rounds, 0u);
  engine->start();
  EXPECT_FALSE(engine->create_session()->generate("Once", {.predict = 2}).text.empty());
}

TEST_F(EngineTest, PrefixesAreReadOnce) {
  const int chunk = engine_->model().backend().prefill_chunk();
  std::string words = "It was";
  for (int i = 0; i < chunk / 2 + 200; ++i) words += " a dark night,";
  const std::vector<TokenId> prompt = engine_->encode(words, true, engine_->ctx_size());
  const std::span begin = std::span(prompt).first(chunk + 260);
  const auto salted = [](const char* salt) {
    GenerateOptions options = greedy(20);
    options.salt = salt;
    return options;
  };
  const GenerateResult warmer = engine_->create_session()->generate(begin, salted("mine"));
  const GenerateResult warm = engine_->create_session()->generate(begin, salted("mine"));
  EXPECT_EQ(warm.cached_tokens, (chunk + 259) / 16 * 16);  // and a part of the next chunk

  const auto session = engine_->create_session();
  const GenerateResult cold = session->generate(begin, salted("another's"));
  EXPECT_EQ(cold.cached_tokens, 0);
  EXPECT_EQ(cold.tokens, warmer.tokens);
  EXPECT_EQ(cold.tokens, warm.tokens);
  const GenerateResult second =
      session->generate(std::vector<TokenId>(50, 17), salted("another's"));
  EXPECT_EQ(second.cached_tokens, (chunk + 260) / 16 * 16);
  std::vector<TokenId> text(begin.begin(), begin.end());
  text.insert(text.end(), cold.tokens.begin(), cold.tokens.end());
  text.insert(text.end(), 50, 17);
  EXPECT_EQ(second.tokens, engine_->create_session()->generate(text, salted("alone")).tokens);
}

TEST_F(EngineTest, TheNumberOfSequencesIsChecked) {
  for (const int sequences : {-1, 257}) {
    EngineOptions options = bundled();
    options.sequences = sequences;
    expect_error(ErrorKind::kInvalidRequest, {"sequences at once", "1 to 256"},
                 [&] { Engine::load(options); });
  }
}

TEST_F(EngineTest, AMuchTooLongPromptIsRefusedSoon) {
  std::string text;
  while (text.size() < 200'000'000) text += "A word, and another one; 12,345 of them. ";
  const Stopwatch clock;
  expect_error(ErrorKind::kInvalidRequest, {"more than 2048 tokens", "context size"},
               [&] { run(greedy(5), text); });
  EXPECT_LT(clock.seconds(), 10);  // all of it would take minutes
}

// A copy of the bundled model that may be changed.
class ChangedModel : public testing::Test {
 protected:
  ChangedModel() {
    std::filesystem::copy(bundled().model, folder_.path());
    options_.model = folder_.path();
  }
  Json config() const { return parse_json_file(folder_ / "config.json"); }
  void set_config(const Json& json) const { folder_.write("config.json", json.dump()); }

  const TestFolder folder_;
  EngineOptions options_ = bundled();
};

// Of backends that read the checkpoint in every pass; a GPU has a copy of its own.
class MappedModel : public ChangedModel {
 protected:
  MappedModel() { options_.backend = "cpu"; }
};

TEST_F(MappedModel, ACheckpointThatShrinksEndsTheTextWithAnError) {
  MappedFile::survive_losses();
  const auto engine = Engine::load(options_);
  const auto session = engine->create_session();
  int tokens = 0;
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "became shorter"}, [&] {
    session->generate(kPrompt, greedy(50), [&](const TokenEvent&) {
      if (++tokens == 5) std::filesystem::resize_file(folder_ / "model.safetensors", 100'000);
      return true;
    });
  });
  EXPECT_LT(tokens, 50);
}

TEST_F(MappedModel, ACheckpointThatIsWrittenToIsReported) {
  const auto engine = Engine::load(options_);
  EXPECT_NO_THROW(engine->create_session()->generate(kPrompt, greedy(5)));
  const auto file = folder_ / "model.safetensors";
  std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now());
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "was written to"},
               [&] { engine->create_session()->generate(kPrompt, greedy(5)); });
}

TEST_F(ChangedModel, OneThatIsWrittenToWhileItLoadsIsRefused) {
  options_.progress = [&](std::string_view stage, double) {
    if (stage != "quantize") return;
    const auto file = folder_ / "model.safetensors";
    std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now());
  };
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "was written to"},
               [&] { Engine::load(options_); });
}

TEST_F(ChangedModel, WithoutAContextTheLongestThatFitsIsTaken) {
  Json json = config();
  json["max_position_embeddings"] = kMaxContext;
  set_config(json);
  std::ostringstream log;
  const auto logger = std::make_shared<spdlog::logger>(
      "quantspec", std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  spdlog::drop("quantspec");
  spdlog::register_logger(logger);
  options_.ctx_size = 0;
  const auto engine = Engine::load(options_);
  EXPECT_NE(log.str().find("; context size takes another"), std::string::npos) << log.str();
  name_fields_in_log([](Field) { return std::string_view("--flag"); });
  Engine::load(options_);
  EXPECT_NE(log.str().find("; --flag takes another"), std::string::npos) << log.str();
  name_fields_in_log(plain_name);
  spdlog::drop("quantspec");
  EXPECT_GT(engine->ctx_size(), 2048);
  EXPECT_LT(engine->ctx_size(), kMaxContext);
  EXPECT_NE(log.str().find(fmt::format("the context is {} of the model's {} tokens",
                                       engine->ctx_size(), kMaxContext)),
            std::string::npos)
      << log.str();
  EXPECT_EQ(engine->create_session()->generate(kPrompt, greedy(10)).tokens.size(), 10u);
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

TEST_F(ChangedModel, AReportSaysWhatEndsTheContext) {
  EXPECT_FALSE(report_model(options_, {}).limited_by_window);
  Json json = config();
  json["model_type"] = "mistral";
  json["architectures"] = {"MistralForCausalLM"};
  json["sliding_window"] = 128;
  set_config(json);
  const ModelReport report = report_model(options_, {});
  EXPECT_EQ(report.largest_context, 128);
  EXPECT_TRUE(report.limited_by_window);
}

}  // namespace
}  // namespace quantspec
