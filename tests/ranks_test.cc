// Ranks that share a model say what one rank says: logits and tokens, to the bit.

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "comm/comm.h"
#include "model/share.h"
#include "model/test_support.h"
#include "tests/model_support.h"

namespace quantspec::testing {
namespace {

struct Said {
  std::vector<float> logits;  // after the prompt
  std::vector<TokenId> tokens;
};

// How a model is made and asked.
struct Case {
  const char* name;
  WeightFormat format;
  const char* backend;
  int prompt;  // tokens

  ModelConfig config() const {
    ModelConfig config = made_config(8, 4, 256, 2304);
    config.num_layers = 2;
    config.qkv_bias = config.output_bias = config.qk_norm = config.tied_head = true;
    return config;
  }
  std::unique_ptr<WeightSource> source() const {
    return std::make_unique<MadeSource>(config(), format);
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Said say(const Case& c, const ModelConfig& config, std::unique_ptr<WeightSource> source,
         int draft_len, Communicator* ranks) {
  const auto backend =
      make_backend({.name = c.backend, .num_threads = ranks != nullptr ? 2 : 1, .ranks = ranks});
  Weights weights(config, std::move(source), *backend);
  weights.make_draft_planes(*backend, WeightRead::kBoth);
  const Model model(config, std::move(weights), *backend, 512);
  PagePool pool(*backend, kv_shape(config, 0));
  Decoder decoder(model);
  DecodingOptions options;
  options.sampling.temperature = 0.8f;
  options.sampling.seed = 7;
  options.spec_sampling = SpecSampling::kCoupled;
  options.draft_len = draft_len;
  options.plans.push_back(Plan::draft(config.num_layers, WeightRead::kUpper));
  std::vector<TokenId> prompt(c.prompt);
  for (int i = 0; i < c.prompt; ++i) prompt[i] = (i * i + 7 * i + 3) % config.vocab_size;

  Said said{std::vector<float>(config.vocab_size), {}};
  KvCache cache(*backend, pool, c.prompt, {});
  model.prefill(prompt, cache, said.logits);
  constexpr int kTokens = 40;
  Sequence sequence(model, pool, c.prompt + kTokens, options, kv_options(options.plans));
  said.tokens.push_back(decoder.prefill(sequence, prompt));
  while (std::ssize(said.tokens) < kTokens) {
    const auto step = decoder.step(sequence, kTokens - static_cast<int>(said.tokens.size()));
    said.tokens.insert(said.tokens.end(), step.tokens.begin(), step.tokens.end());
  }
  return said;
}

class Ranks : public ::testing::TestWithParam<Case> {};

TEST_P(Ranks, SayWhatOneSays) {
  const Case& c = GetParam();
  const Said one = say(c, c.config(), c.source(), 0, nullptr);
  EXPECT_GT(std::set<TokenId>(one.tokens.begin(), one.tokens.end()).size(), 5u);
  for (const int size : {2, 4}) {
    for (const int draft_len : {0, 4}) {
      SharedRanks all(size);
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
          EXPECT_NO_THROW(as_rank(all, rank, [&](Communicator& ranks) {
            Share share = share_of(c.config(), c.source(), rank, size);
            const Said said = say(c, share.config, std::move(share.source), draft_len, &ranks);
            EXPECT_EQ(said.logits, one.logits) << "rank " << rank << " of " << size;
            EXPECT_EQ(said.tokens, one.tokens)
                << "rank " << rank << " of " << size << ", " << draft_len << " drafted";
          }));
        });
      }
    }
  }
}

constexpr WeightFormat kQ4K{.bits = 4, .group = 32, .block = 256, .has_offset = true};
INSTANTIATE_TEST_SUITE_P(
    Models, Ranks,
    ::testing::Values(Case{"fp32", dense_format(DType::kF32), "cpu", 300},
                      Case{"bf16", dense_format(DType::kBF16), "cpu", 300},
                      Case{"eight_bits", sliced_format(kFineGroup), "cpu", 300},
                      Case{"Q4_K", kQ4K, "cpu", 300},
                      Case{"reference", dense_format(DType::kF32), "reference", 20}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quantspec::testing
