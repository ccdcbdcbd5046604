#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "backend/backend.h"
#include "backend/params/pass.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "base/test_folder.h"
#include "engine/test_support.h"
#include "kv_cache/prompt_tails.h"
#include "model/blank_source.h"
#include "model/model_files.h"
#include "model/share.h"
#include "model/weight_source.h"
#include "speculative/speculative.h"
#include "tests/gguf_support.h"

namespace quantspec {
namespace {

TEST(MemoryPlan, AContextThatCannotFitIsRefusedNamingTheLargestThatDoes) {
  EngineOptions options = bundled();
  options.ctx_size = 200'000'000;
  try {
    Engine::load(options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("context size "), std::string::npos) << error.what();
  }
}

// What is said of a context by how much memory there is.
class ChoosesContext : public ::testing::Test {
 protected:
  int choose(std::size_t available) {
    warnings_.clear();
    return choose_context(options_, config_, *backend_, *source_, available, warnings_);
  }
  std::size_t needed(DraftWeights weights, int context) {
    EngineOptions options = options_;
    options.draft_weights = weights;
    return MemoryPlanner(options, config_, *backend_, *source_).plan(context).total();
  }
  void refused(std::size_t available, const std::vector<std::string>& mentions) {
    expect_error(ErrorKind::kOutOfMemory, mentions, [&] { choose(available); });
  }

  EngineOptions options_ = bundled();
  ModelConfig config_ = load_config(options_.model);
  std::unique_ptr<WeightSource> source_ = open_model(options_.model)->weights();
  std::unique_ptr<Backend> backend_ = make_backend({"cpu", 1});
  std::vector<Message> warnings_;
};

TEST_F(ChoosesContext, TheModelsOwnWhereItFits) {
  options_.ctx_size = 0;
  EXPECT_EQ(choose(std::size_t{1} << 40), config_.max_positions);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(ChoosesContext, TheLongestThatFitsWhereNobodyAskedForOne) {
  options_.ctx_size = 0;
  const std::size_t available = needed(DraftWeights::kAuto, 10'000);
  const int context = choose(available);
  EXPECT_GT(context, 5'000);
  EXPECT_LT(context, 10'000);
  EXPECT_LE(needed(DraftWeights::kAuto, context), available - available / 16);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].text().find(
                fmt::format("the context is {} of the model's {}", context, config_.max_positions)),
            std::string::npos)
      << warnings_[0].text();
}

TEST_F(ChoosesContext, ThatWasAskedForIsTakenOrRefused) {
  options_.ctx_size = 9984;  // whole pages
  const std::size_t available = needed(DraftWeights::kAuto, 9984);
  EXPECT_EQ(choose(available), 9984);
  refused(available - 1, {"a context of 9984", "the largest that fits is context size 9983"});
}

TEST_F(ChoosesContext, OtherDraftWeightsAreNamedWhereTheyWouldFit) {
  for (const int asked : {0, 4096}) {
    options_.ctx_size = asked;
    refused(needed(DraftWeights::kUpper, 127), {"draft weights 4 with context size 127 or less"});
    refused(needed(DraftWeights::kFull, 127), {"draft weights full with context size 127 or less"});
    const std::size_t weights = Weights::target_bytes_for(config_, *source_, *backend_);
    refused(weights, {"not even the weights fit", fmt::format("{:.0f} MB", weights / 1e6)});
  }
}

TEST_F(ChoosesContext, ASlidingWindowEndsIt) {
  config_.sliding_window = 4096;
  options_.ctx_size = 0;
  EXPECT_EQ(choose(std::size_t{1} << 40), 4096);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].text().find("sliding-window"), std::string::npos);
  options_.ctx_size = 4097;
  expect_error(ErrorKind::kUnsupportedModel, {"context size 4096"},
               [&] { choose(std::size_t{1} << 40); });
}

// Of a longer context: rotation angles, and what a sequence has of every token or page. Scratch is
// bounded by the chunk.
TEST_F(ChoosesContext, RotationAnglesAndTablesAreInThePlan) {
  options_.sequences = 3;
  options_.plan = "quantspec+sparse";
  const MemoryPlanner planner(options_, config_, *backend_, *source_);
  const std::size_t tokens = 1 << 16, pages = tokens / kv_shape(config_, 0).page_size;
  EXPECT_EQ(Model::angle_bytes(config_, tokens), tokens * config_.head_dim * sizeof(float));
  const std::size_t layers = config_.num_layers, heads = config_.num_kv_heads;
  const std::size_t masses = pages * heads * layers * sizeof(float);
  const std::size_t lists = pages * heads * layers * sizeof(int);
  const std::size_t bounds = pages * heads * sizeof(float);
  const std::size_t each =
      tokens * sizeof(TokenId) + pages * sizeof(PagePlanes) + masses + lists + bounds;
  EXPECT_EQ(planner.plan(tokens).prefill_bytes - planner.plan(0).prefill_bytes,
            Model::angle_bytes(config_, tokens) + 3 * each);
}

TEST_F(ChoosesContext, EverySequenceHasARingAndLogits) {
  options_.plan = "quantspec";
  const auto plan = [&](int sequences) {
    options_.sequences = sequences;
    return MemoryPlanner(options_, config_, *backend_, *source_).plan(4096);
  };
  const MemoryPlan one = plan(1), eight = plan(8);
  EXPECT_EQ(eight.ring_bytes, 8 * one.ring_bytes);
  const std::size_t rows = 3 * kMaxDraftLen + 2;  // of drafts, of verification, and kept of those
  const std::size_t each = sizeof(float) * rows * config_.vocab_size + Sequence::bytes_for(4096) +
                           4096 / kv_shape(config_, 0).page_size * sizeof(PagePlanes);
  EXPECT_EQ(eight.prefill_bytes, one.prefill_bytes + 7 * each);
  EXPECT_EQ(eight.kv_bytes, one.kv_bytes);
}

// What lookups know of every sequence's text, and of its owner's others.
TEST_F(ChoosesContext, LookupsAreInThePlan) {
  options_.sequences = 3;
  const auto prefill = [&](const char* plan, int history) {
    options_.plan = plan;
    options_.lookup_history = history;
    return MemoryPlanner(options_, config_, *backend_, *source_).plan(4096).prefill_bytes;
  };
  for (const auto& [plan, same] : {std::pair{"auto", "auto+nolookup"},
                                   {"lookup", "quantspec"},
                                   {"quantspec+lookup", "quantspec"}}) {
    const std::size_t without = prefill(same, 0);
    EXPECT_EQ(prefill(plan, 0), without + 3 * Sequence::lookup_bytes(4096, 0)) << plan;
    EXPECT_EQ(prefill(plan, 999), without + 3 * Sequence::lookup_bytes(4096, 999)) << plan;
  }
  EXPECT_GT(Sequence::lookup_bytes(4096, 0), 4096u * 100);
  EXPECT_LT(Sequence::lookup_bytes(4096, 0), 4096u * 130);
}

// Of ranks each has sums and logits for the others, and has theirs.
TEST(MemoryPlan, WhatRanksTellEachOtherIsInThePlan) {
  const TestFolder folder;
  folder.write("config.json",
               R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4096,
                   "intermediate_size": 14336, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "vocab_size": 128000,
                   "max_position_embeddings": 8192})");
  const ModelConfig whole = load_config(folder.path());
  const Share own = share_of(whole, std::make_unique<BlankSource>(), 1, 4);
  const auto backend = make_backend({"cpu", 1});
  const auto all_but_pages = [&](int sequences) {
    EngineOptions options;
    options.plan = "quantspec";
    options.sequences = sequences;
    return MemoryPlanner(options, own.config, *backend, *own.source).plan(1024).prefill_bytes;
  };
  const std::size_t each = Decoder::bytes_for(own.config, *backend, 3) -
                           Decoder::bytes_for(own.config, *backend, 2) + Sequence::bytes_for(1024) +
                           1024 / 128 * sizeof(PagePlanes);
  const std::size_t told = sizeof(float) * (kMaxDraftLen + 1) * (32000 + 128000);
  EXPECT_EQ(all_but_pages(3) - all_but_pages(2), each + told);
  const std::size_t logits = sizeof(float) * (kMaxDraftLen + 1) * 128000;
  EXPECT_EQ(Model::pass_bytes(whole, *backend, kv_shape(whole, 0), 3, 0), logits);
}

// Pages of all requests and of cached prefixes, and the host's memory.
class SizesPools : public ChoosesContext {
 protected:
  static constexpr std::size_t kPlenty = std::size_t{1} << 40;
  SizesPools() { options_.sequences = 3; }
  MemoryPlan plan(std::size_t available, std::size_t on_host = kPlenty) {
    return MemoryPlanner(options_, config_, *backend_, *source_).plan(kContext, available, on_host);
  }
  static constexpr int kContext = 4096;
  const std::size_t one_ = kContext / 128 * kv_shape(config_, 0).page_bytes();  // context
};

TEST_F(SizesPools, ByTheMemoryThereIs) {
  const MemoryPlan plain = MemoryPlanner(options_, config_, *backend_, *source_).plan(kContext);
  const std::size_t others = plain.total() - plain.kv_bytes;
  EXPECT_EQ(plan(kPlenty).page_memory_bytes, 2 * 3 * one_);  // no more can be of use
  // Of the host's memory half of what is left; what one context takes, always.
  const std::size_t some = plan(others + 5 * one_).page_memory_bytes;
  EXPECT_LE(some, 5 * one_ / 2);
  EXPECT_GT(some, 5 * one_ / 2 - kv_shape(config_, 0).page_bytes());
  EXPECT_EQ(plan(plain.total()).page_memory_bytes, one_);
  EXPECT_EQ(plan(kPlenty).host_cache_bytes, 0u);
  EXPECT_EQ(plan(kPlenty).total(), plain.total());
}

TEST_F(SizesPools, AsTheOptionsSayOrNotAtAll) {
  options_.page_memory = 2 * one_ + 1;
  options_.host_cache = one_ + 1;
  EXPECT_EQ(plan(kPlenty).page_memory_bytes, 2 * one_);
  EXPECT_EQ(plan(kPlenty).host_cache_bytes, one_);
  expect_error(ErrorKind::kOutOfMemory, {"page memory", "are available for pages"},
               [&] { plan(Weights::target_bytes_for(config_, *source_, *backend_) + one_); });
  const std::size_t enough = plan(kPlenty).total() + one_ + options_.host_cache.value();
  EXPECT_EQ(plan(enough).host_cache_bytes, one_);
  expect_error(ErrorKind::kOutOfMemory, {"host cache", "are available for it"},
               [&] { plan(enough - one_); });  // which is the memory of pages, too
  options_.page_memory = one_ / 2;
  expect_error(ErrorKind::kInvalidRequest,
               {fmt::format("page memory {}", one_ / 2), "context size 2048 or less works"},
               [&] { plan(kPlenty); });
  options_.kv_store = KvStore::kFull;
  expect_error(ErrorKind::kInvalidRequest, {"full has no pages", "KV cache hierarchical works"},
               [&] { plan(kPlenty); });
  options_.page_memory = 0;
  options_.host_cache.reset();
  EXPECT_EQ(plan(kPlenty).page_memory_bytes, 0u);
}

TEST_F(SizesPools, OfADeviceNearlyAllAndSomeOfItsHost) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  backend_ = make_backend({"cuda"});
  const MemoryPlan plain = MemoryPlanner(options_, config_, *backend_, *source_).plan(kContext);
  const std::size_t others = plain.total() - plain.kv_bytes, available = others + 4 * one_;
  const std::size_t pages = plan(available).page_memory_bytes;
  EXPECT_LE(pages, std::max(one_, 4 * one_ - std::min(4 * one_, available / 16)));
  EXPECT_EQ(plan(kPlenty).page_memory_bytes, 2 * 3 * one_);
  EXPECT_EQ(plan(kPlenty).host_cache_bytes, 2 * 3 * one_);  // all pages
  const std::size_t lookups = 3 * Sequence::lookup_bytes(kContext, 0);
  EXPECT_EQ(plan(kPlenty, lookups + 8 * one_).host_cache_bytes, one_);  // a share
  options_.host_cache = 0;
  EXPECT_EQ(plan(kPlenty).host_cache_bytes, 0u);
}

// All that an engine allocates, for requests of many drafts at once by every kind of plan, with
// log-probabilities, is in the plan, and little else is.
class AllocatesWhatIsPlanned : public ::testing::TestWithParam<std::pair<std::string, KvStore>> {};

TEST_P(AllocatesWhatIsPlanned, AndLittleLess) {
  const auto& [backend_name, store] = GetParam();
  if (backend_name == "cuda" && !cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  EngineOptions options = bundled();
  options.backend = backend_name;
  options.kv_store = store;
  options.sequences = 3;
  options.ctx_size = 4096;
  options.tail_memory = options.host_cache = 0;
  const bool paged = store == KvStore::kHierarchical;
  // A host's are taken as they are used, twice as many each time.
  if (paged) options.page_memory = 64 * kv_shape(load_config(options.model), 0).page_bytes();
  std::atomic<int> ended = 0;
  const auto engine = Engine::load(options);
  const Model& model = engine->model();
  const Backend& backend = model.backend();
  for (int i = 0; i < options.sequences; ++i) {
    std::string prompt;
    for (int j = 0; j < 300; ++j) prompt += fmt::format("The {}th clock. ", i + j);
    GenerateOptions wanted = greedy(60, kMaxDraftLen);
    wanted.log_probs = true;
    engine->submit(prompt, wanted, {.on_end = [&](Outcome outcome) {
                     EXPECT_FALSE(outcome.error);
                     ended.fetch_add(1);
                     ended.notify_one();
                   }});
  }
  for (int now = ended; now < options.sequences; now = ended) ended.wait(now);

  const MemoryPlanner planner(options, model.config(), backend, model.weights().source());
  const MemoryPlan plan = planner.plan(options.ctx_size);
  std::size_t planned = plan.total() - plan.kv_bytes + options.page_memory;
  if (!backend.is_apart_from_host()) {  // of a host, what takes no buffer is not counted
    planned -= plan.weights_bytes + options.sequences * Sequence::lookup_bytes(4096, 0) +
               backend.scratch_bytes(Model::prefill_sizes(model.config(), backend.prefill_rows()));
  }
  const std::size_t held = backend.allocated_bytes() + backend.taken_bytes();
  EXPECT_LE(held, planned);
  EXPECT_GT(held, planned - planned / 10);
}

INSTANTIATE_TEST_SUITE_P(Backends, AllocatesWhatIsPlanned,
                         ::testing::Values(std::pair{"cpu", KvStore::kHierarchical},
                                           std::pair{"cpu", KvStore::kFull},
                                           std::pair{"cuda", KvStore::kHierarchical},
                                           std::pair{"cuda", KvStore::kFull}),
                         [](const auto& info) {
                           const bool full = info.param.second == KvStore::kFull;
                           return info.param.first + (full ? "_full" : "_hierarchical");
                         });

// What rounds and prompts take of a GPU's memory beside what they are given.
TEST(MemoryPlan, WhatADeviceTakesForItselfIsInThePlan) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  EngineOptions options = bundled();
  options.backend = "cuda";
  options.sequences = 2;
  options.ctx_size = 8192;
  const auto engine = Engine::load(options);
  const Model& model = engine->model();
  const Backend& backend = model.backend();
  const std::size_t loaded = backend.taken_bytes();
  std::string prompt;
  for (int i = 0; i < 300; ++i) prompt += fmt::format("The {}th clock. ", i);
  engine->create_session()->generate(prompt, greedy(40, kMaxDraftLen));
  const KvShape shape = engine->pool().shape();
  const std::size_t planned =
      Model::pass_bytes(model.config(), backend, shape, 2, options.ctx_size / shape.page_size) +
      backend.scratch_bytes(Model::prefill_sizes(model.config(), backend.prefill_rows()));
  EXPECT_GT(backend.taken_bytes(), loaded);
  EXPECT_LE(backend.taken_bytes(), planned);
  EXPECT_GT(backend.taken_bytes(), planned / 2);  // rounds of many rows take more
  const MemoryPlanner planner(options, model.config(), backend, model.weights().source());
  EXPECT_LT(planned, planner.plan(options.ctx_size).prefill_bytes);
}

// Masses of pages are told by a draft that chooses among them by masses; by bounds it needs those.
TEST(MemoryPlan, OfADeviceHasMassesOfPagesWhereDraftsChooseByThem) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  const auto backend = make_backend({"cuda"});
  const auto source = open_model(bundled().model)->weights();
  const ModelConfig config = load_config(bundled().model);
  const auto prefill = [&](const char* plan, int context_ranks) {
    EngineOptions options = bundled();
    options.plan = plan;
    ModelConfig of_rank = config;
    of_rank.context_ranks = context_ranks;
    return MemoryPlanner(options, of_rank, *backend, *source).plan(1 << 17).prefill_bytes;
  };
  EXPECT_EQ(prefill("auto+nolookup", 1), prefill("quantspec+sparse", 1));
  EXPECT_GT(prefill("quantspec+sparse", 1), prefill("quantspec", 1) + 4 * (1 << 17) / 64 * 8);
  EXPECT_GT(prefill("quantspec+bounds", 1), prefill("quantspec", 1));
  EXPECT_LT(prefill("quantspec+bounds", 1), prefill("quantspec+sparse", 1));
  EXPECT_EQ(prefill("auto+nolookup", 4), prefill("quantspec", 4));
}

// No part of the sum may overflow for what config.json may say at most.
TEST(MemoryPlan, TheLargestModelThereMayBeIsCounted) {
  const TestFolder folder;
  folder.write("config.json",
               R"({"model_type": "llama", "num_hidden_layers": 4096, "hidden_size": 4194304,
                   "intermediate_size": 4194304, "num_attention_heads": 4096, "head_dim": 256,
                   "vocab_size": 16777216, "max_position_embeddings": 268435456})");
  const ModelConfig config = load_config(folder.path());
  EngineOptions options;
  for (const char* name : {"cpu", "reference"}) {
    const auto backend = make_backend({name, 1});
    const MemoryPlan plan =
        MemoryPlanner(options, config, *backend, BlankSource()).plan(kMaxContext);
    const double hidden = config.hidden_size, layers = config.num_layers;
    const double kv_width = 4096.0 * 256, tokens = kMaxContext;
    const double weights =
        layers * (4 * hidden * kv_width + 3 * hidden * hidden) + hidden * config.vocab_size;
    EXPECT_NEAR(static_cast<double>(plan.draft_weights_bytes) / weights, 1.03, 0.05) << name;
    EXPECT_EQ(static_cast<double>(plan.kv_fp16_bytes), 4 * layers * kv_width * tokens);
    EXPECT_NEAR(static_cast<double>(plan.kv_bytes) / (2 * layers * kv_width * tokens), 1.03, 0.05);
    // Of a chunk of a prompt, x; of the rows of a slice, x, hidden, q and attention, and between
    // norm and output; of the thread, a tile's 256 columns of weights and 144 rows, or where
    // products are in bf16 about as much; K and V of a layer.
    const double chunk = backend->prefill_chunk(), rows = backend->prefill_rows();
    const auto counted = Model::prefill_bytes(config, *backend, kv_shape(config, 0), kMaxContext);
    if (name == std::string("cpu")) {
      const bool in_bf16 = backend->description().find("bf16") != std::string::npos;
      const double floats =
          chunk * hidden + rows * (4 * hidden + 4 * kv_width) + (256 + 144) * hidden;
      EXPECT_NEAR(static_cast<double>(counted) / (4 * floats + 4 * chunk * kv_width), 1,
                  in_bf16 ? 0.01 : 0.001);
    }
    EXPECT_GT(plan.total(), plan.kv_bytes);
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
  const MemoryPlanner planner(bundled(), report.config, *backend, BlankSource());
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
  const auto source = open_model(bundled().model)->weights();
  const double bf16 = 46'900'000;
  EXPECT_NEAR(Weights::draft_bytes_for(report.config, *source, *backend, WeightRead::kUpper) / bf16,
              0.289, 0.005);
  EXPECT_NEAR(Weights::draft_bytes_for(report.config, *source, *backend, WeightRead::kBoth) / bf16,
              0.539, 0.005);
  EXPECT_EQ(Weights::draft_bytes_for(report.config, *source, *backend, WeightRead::kTarget), 0u);
}

TEST(ModelReport, HasTheCostOfEveryTargetThatThereCanBe) {
  const auto costs = report_model(bundled(), {}).weights;
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[0].target, TargetWeights::kCheckpoint);
  EXPECT_EQ(costs[1].target, TargetWeights::k8Bits);
  EngineOptions options = bundled();
  for (const WeightCost& cost : costs) {
    options.target_weights = cost.target;
    for (const auto& [drafts, bytes] : {std::pair{DraftWeights::kFull, std::size_t{0}},
                                        {DraftWeights::kUpper, cost.upper_bytes},
                                        {DraftWeights::kAuto, cost.both_bytes}}) {
      options.draft_weights = drafts;
      const MemoryPlan plan = report_model(options, std::vector{512}).plans[0].second;
      EXPECT_EQ(plan.weights_bytes, cost.target_bytes);
      EXPECT_EQ(plan.draft_weights_bytes, bytes);
    }
  }
}

// What is in codes is no target of 8 bits, and drafts read it without a store.
TEST(ModelReport, OfATargetInCodesHasOneCostAndRefusesOtherChoices) {
  const testing::GgufModelFile file(testing::q4_k_m_like());
  EngineOptions options = bundled();
  options.model = file.path;
  const auto costs = report_model(options, {}).weights;
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].both_bytes, 0u);
  options.target_weights = TargetWeights::k8Bits;
  expect_error(ErrorKind::kInvalidRequest, {"target weights 8: ", "model.gguf is in Q4_K + Q6_K"},
               [&] { report_model(options, {}); });
  options.target_weights = TargetWeights::kCheckpoint;
  options.draft_store = "draft.qsd";
  expect_error(ErrorKind::kInvalidRequest,
               {"draft store draft.qsd: is for targets in bf16", "blk.0.attn_q.weight in Q4_K"},
               [&] { report_model(options, {}); });
}

// Of the rest 8 bits can be made.
TEST(ModelReport, OfATargetInCodesInPartHasBoth) {
  testing::GgufModel model = testing::q4_k_m_like();
  model.types.down = GgmlType::kBF16;
  const testing::GgufModelFile file(model);
  EngineOptions options = bundled();
  options.model = file.path;
  const auto costs = report_model(options, {}).weights;
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_LT(costs[1].target_bytes, costs[0].target_bytes);
  EXPECT_GT(costs[0].both_bytes, costs[0].upper_bytes);
  EXPECT_EQ(costs[1].both_bytes, 0u);
}

}  // namespace
}  // namespace quantspec
