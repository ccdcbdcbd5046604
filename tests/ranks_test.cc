// Ranks that share a model say what one rank says: logits and tokens, to the bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <thread>

#include "comm/comm.h"
#include "model/share.h"
#include "model/test_support.h"
#include "tests/model_support.h"
#include "tests/ranks_support.h"

namespace quantspec::testing {
namespace {

struct Said {
  std::vector<float> decoded;  // logits of every token of a text that decoding reads
  std::vector<float> drafted;  // and of a draft that follows
  std::vector<float> logits;   // after the text as a prompt
  std::vector<TokenId> tokens;
};

// How a model is made and asked.
struct Case {
  const char* name;
  WeightFormat format;
  const char* backend;
  int prompt;  // tokens
  std::vector<int> ranks = {2, 4};
  int context_ranks = 1;
  int kv_heads = 4;

  ModelConfig config() const {
    ModelConfig config = ranks.back() == 8 && context_ranks == 1
                             ? made_config(16, 8, 256, 4608)
                             : made_config(8, kv_heads, 256, 2304);
    config.num_layers = 2;
    config.qkv_bias = config.output_bias = config.qk_norm = config.tied_head = true;
    return config;
  }
  std::unique_ptr<WeightSource> source() const {
    return std::make_unique<MadeSource>(config(), format);
  }
  bool on_gpu() const { return std::string(backend) == "cuda"; }
  // Whether they draft so, too: where shares are cut between the blocks of what drafts read. The
  // processor has larger ones where it makes them of elements. Where GPUs share contexts, drafts
  // attend in other splits.
  bool drafts_as_one() const { return on_gpu() ? context_ranks == 1 : !format.dense(); }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Reads a text by target passes of up to 17 rows, then drafts.
void decode(const Model& model, PagePool& pool, std::span<const TokenId> text,
            const std::vector<Plan>& drafts, Said& said) {
  const auto vocab = static_cast<std::size_t>(model.config().vocab_size);
  KvCache cache(model.backend(), pool, static_cast<int>(text.size()) + 1, kv_options(drafts));
  const auto pass = [&](std::span<const TokenId> tokens, const Plan& plan,
                        std::vector<float>& logits) {
    const SequenceInput input{tokens, &cache};
    const std::size_t before = logits.size();
    logits.resize(before + tokens.size() * vocab);
    model.forward({&input, 1}, plan, std::span(logits).subspan(before));
  };
  const Plan target = Plan::target(model.config().num_layers);
  for (int rows = 1; !text.empty(); rows = rows % 17 + 1) {
    const int most = std::min(cache.max_rows(), static_cast<int>(text.size()));
    const auto tokens = text.first(std::min(rows, most));
    cache.reserve(static_cast<int>(tokens.size()));
    pass(tokens, target, said.decoded);
    cache.settle(static_cast<int>(tokens.size()));
    text = text.subspan(tokens.size());
  }
  cache.reserve(1);
  const TokenId next = 3;
  for (const Plan& draft : drafts) pass({&next, 1}, draft, said.drafted);
}

Said say(const Case& c, const ModelConfig& config, std::unique_ptr<WeightSource> source,
         int draft_len, Communicator* ranks, const RankGroups& groups = {},
         std::optional<int> device = {}) {
  const auto backend = make_backend({.name = c.backend,
                                     .num_threads = ranks != nullptr ? 2 : 1,
                                     .device = device,
                                     .ranks = ranks,
                                     .groups = groups});
  Weights weights(config, std::move(source), *backend);
  weights.make_draft_planes(*backend, WeightRead::kBoth);
  const Model model(config, std::move(weights), *backend, c.prompt + 212);
  PagePool pool(*backend, kv_shape(config, 32));
  Decoder decoder(model);
  DecodingOptions options;
  options.sampling.temperature = 0.8f;
  options.sampling.seed = 7;
  options.spec_sampling = SpecSampling::kCoupled;
  options.draft_len = draft_len;
  options.plans.push_back(Plan::draft(config.num_layers, WeightRead::kUpper));
  std::vector<TokenId> prompt(c.prompt);
  for (int i = 0; i < c.prompt; ++i) prompt[i] = (i * i + 7 * i + 3) % config.vocab_size;

  Said said;
  decode(model, pool, prompt, options.plans, said);
  said.logits.resize(config.vocab_size);
  KvCache cache(*backend, pool, c.prompt, {});
  model.prefill(prompt, cache, said.logits);
  constexpr int kTokens = 60;
  Sequence sequence(model, pool, c.prompt + kTokens, options, kv_options(options.plans));
  said.tokens.push_back(decoder.prefill(sequence, prompt));
  while (std::ssize(said.tokens) < kTokens) {
    const auto step = decoder.step(sequence, kTokens - static_cast<int>(said.tokens.size()));
    said.tokens.insert(said.tokens.end(), step.tokens.begin(), step.tokens.end());
  }
  return said;
}

// What so many ranks say, each in a thread.
std::vector<Said> say_as_ranks(const Case& c, int size, int draft_len) {
  std::vector<Said> said(size);
  SharedRanks all(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_NO_THROW(as_rank(all, rank, [&](Communicator& ranks) {
        const RankGroups groups = rank_groups(c.config(), *c.source(), size, c.context_ranks);
        Share share = share_of(c.config(), c.source(), rank, size, groups);
        said[rank] = say(c, share.config, std::move(share.source), draft_len, &ranks, groups,
                         device_of(c.backend, rank));
      }));
    });
  }
  threads.clear();
  return said;
}

class Ranks : public ::testing::TestWithParam<Case> {};

TEST_P(Ranks, SayWhatOneSays) {
  const Case& c = GetParam();
  if (c.on_gpu() && !has_gpu()) GTEST_SKIP() << "no GPU";
  const Said one = say(c, c.config(), c.source(), 0, nullptr);
  EXPECT_GT(std::set<TokenId>(one.tokens.begin(), one.tokens.end()).size(), 5u);
  for (const int size : c.ranks) {
    for (const int draft_len : {0, 4}) {
      const std::vector<Said> said = say_as_ranks(c, size, draft_len);
      for (int rank = 0; rank < size; ++rank) {
        SCOPED_TRACE(::testing::Message()
                     << "rank " << rank << " of " << size << ", " << draft_len << " drafted");
        EXPECT_EQ(said[rank].decoded, one.decoded);
        EXPECT_EQ(said[rank].drafted, c.drafts_as_one() ? one.drafted : said[0].drafted);
        EXPECT_EQ(said[rank].logits, one.logits);
        EXPECT_EQ(said[rank].tokens, one.tokens);
      }
    }
  }
}

constexpr WeightFormat kQ4K{.bits = 4, .group = 32, .block = 256, .has_offset = true};
constexpr WeightFormat kQ80{.bits = 8, .group = 32, .block = 32, .zero = 128};
INSTANTIATE_TEST_SUITE_P(
    Models, Ranks,
    ::testing::Values(
        Case{"fp32", dense_format(DType::kF32), "cpu", 300},
        Case{"bf16", dense_format(DType::kBF16), "cpu", 300},
        Case{"eight_bits", sliced_format(kFineGroup), "cpu", 300}, Case{"Q4_K", kQ4K, "cpu", 300},
        Case{"reference", dense_format(DType::kF32), "reference", 20},
        // Longer than what one rank attends to grain by grain.
        Case{"fp32_long", dense_format(DType::kF32), "cpu", 1900, {2, 4}},
        Case{"contexts_of_2", dense_format(DType::kBF16), "cpu", 1300, {2, 4}, 2},
        Case{"contexts_of_4", kQ4K, "cpu", 1300, {4, 8}, 4},
        // Two shares of the weights, four ranks; one share, and 8.
        Case{"contexts_2_kv_heads", kQ4K, "cpu", 700, {2, 4}, 2, 2},
        Case{"contexts_1_kv_head", kQ4K, "cpu", 700, {8}, 8, 1},
        Case{"contexts_reference", dense_format(DType::kF32), "reference", 150, {2, 4}, 2},
        Case{"cuda_fp32", dense_format(DType::kF32), "cuda", 300},
        Case{"cuda_bf16", dense_format(DType::kBF16), "cuda", 300},
        Case{"cuda_eight_bits", sliced_format(128), "cuda", 300},
        Case{"cuda_Q4_K", kQ4K, "cuda", 300}, Case{"cuda_Q8_0", kQ80, "cuda", 300},
        Case{"cuda_fp32_of_8", dense_format(DType::kF32), "cuda", 150, {8}},
        Case{"cuda_Q4_K_of_8", kQ4K, "cuda", 150, {8}},
        // Four shares of the weights, two contexts; two shares, four ranks; one share, and 4.
        Case{"cuda_contexts_of_2", dense_format(DType::kBF16), "cuda", 1300, {2, 4}, 2, 8},
        Case{"cuda_contexts_2_kv_heads", kQ4K, "cuda", 1300, {2, 4}, 2, 2},
        Case{"cuda_contexts_1_kv_head", kQ80, "cuda", 1300, {4}, 4, 1},
        // Where one GPU attends in 33 splits: so long that each has several turns.
        Case{"cuda_contexts_4_kv_heads", kQ4K, "cuda", 2500, {2, 4}, 2, 4}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quantspec::testing
