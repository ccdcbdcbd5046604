// What a prompt leaves in the cache is a function of its tokens (section 4 of docs/design.md): of
// the calls that read it, and of what was decoded between them, nothing is seen.

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/subject.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kPage = 32;
constexpr int kChunk = 4 * kPage;
constexpr int kCapacity = 6 * kChunk;

Tokens tiny_text(int count, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
  return tokens;
}

class PromptExactness : public ::testing::TestWithParam<Subject> {
 protected:
  int vocab() const { return model_.model.config().vocab_size; }
  KvCache make_cache(KvOptions options = {}) {
    options.chunk = kChunk;
    return KvCache(*model_.backend, model_.pool, kCapacity, options);
  }

  // The logits after the prompt, then those of every row that decodes `more`.
  std::vector<float> read(KvCache& cache, std::span<const TokenId> prompt,
                          std::span<const TokenId> more) {
    std::vector<float> logits(vocab());
    model_.model.prefill(prompt, cache, logits);
    std::vector<float> all = logits;
    const Plan target = Plan::target(model_.model.config().num_layers);
    for (const TokenId token : more) {
      cache.reserve(1);
      const SequenceInput input{{&token, 1}, &cache};
      model_.model.forward({&input, 1}, target, logits);
      cache.settle(1);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  // What slices as long as can be compute, all together.
  double all_products(std::span<const TokenId> prompt) {
    KvCache cache = make_cache();
    Buffer logits = model_.backend->allocate(vocab() * sizeof(float));
    double products = 0;
    for (Model::Prefill prefill(model_.model, prompt, cache, logits.as<float>());
         !prefill.done();) {
      products += prefill.products(std::numeric_limits<int>::max());
      prefill.step();
    }
    return products;
  }

  SubjectFile file_{GetParam()};
  LoadedModel model_ = file_.load(2, kPage);
};

// Lengths around the borders of pages and chunks.
TEST_P(PromptExactness, AnySplitIntoCallsLeavesTheSameBits) {
  const Tokens text = tiny_text(kCapacity, vocab(), 1);
  const std::span<const TokenId> all(text);
  std::mt19937 random(7);
  for (const int length :
       {kChunk - 1, kChunk, kChunk + 1, 2 * kChunk + kPage, 3 * kChunk, 4 * kChunk + 77}) {
    KvCache whole = make_cache();
    const std::vector<float> expected = read(whole, all.first(length), all.subspan(length, 70));
    const bool slow = GetParam().slow();
    for (int trial = 0; trial < (slow ? 1 : 4); ++trial) {
      KvCache cache = make_cache();
      for (int end = 0; length - end > 1;) {
        const int rest = length - 1 - end, part = 1 + static_cast<int>(random() % rest);
        // What was decoded between the calls is read again as a prompt.
        const int decoded = static_cast<int>(random() % std::min(50, rest - part + 1));
        end += part;
        read(cache, all.first(end), all.subspan(end, decoded));
        end += decoded;
      }
      ASSERT_TRUE(read(cache, all.first(length), all.subspan(length, 70)) == expected)
          << length << " tokens, trial " << trial;
    }
  }
}

// Slices of a prompt with the passes of another sequence between them.
TEST_P(PromptExactness, PassesBetweenSlicesLeaveNoTrace) {
  const Tokens text = tiny_text(3 * kChunk, vocab(), 2), other_text = tiny_text(300, vocab(), 3);
  const std::span<const TokenId> all(text);
  for (const int length : {2 * kChunk, 2 * kChunk + 50}) {
    KvCache whole = make_cache();
    const std::vector<float> expected = read(whole, all.first(length), all.subspan(length, 40));

    KvCache cache = make_cache(), other = make_cache();
    read(other, std::span(other_text).first(100), {});
    Buffer logits = model_.backend->allocate(vocab() * sizeof(float));
    const Plan target = Plan::target(model_.model.config().num_layers);
    std::vector<float> row(vocab());
    Model::Prefill prefill(model_.model, all.first(length), cache, logits.as<float>());
    double products = 0;
    for (int slices = 0; !prefill.done(); ++slices) {
      const int most_rows = 1 + slices * 37 % 200;
      EXPECT_LE(prefill.products(1), prefill.products(most_rows));
      products += prefill.products(most_rows);
      prefill.step(most_rows);
      other.reserve(1);
      const SequenceInput input{{&other_text[100 + slices % 200], 1}, &other};
      model_.model.forward({&input, 1}, target, row);
      other.settle(1);
      EXPECT_GE(prefill.share(), 0);
      EXPECT_LE(prefill.share(), 1);
    }
    std::vector<float> actual(vocab());
    model_.backend->download(actual.data(), logits.data(), logits.size());
    for (int i = 0; i < 40; ++i) {
      cache.reserve(1);
      const SequenceInput input{all.subspan(length + i, 1), &cache};
      model_.model.forward({&input, 1}, target, row);
      cache.settle(1);
      actual.insert(actual.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(actual == expected) << length << " tokens";
    EXPECT_NEAR(products / all_products(all.first(length)), 1, 1e-9);  // however it is cut
  }
}

// A second prompt after generated text gives what one prompt of the whole text gives.
TEST_P(PromptExactness, GenerationGoesOnAsFromOneLongerPrompt) {
  const Tokens text = tiny_text(700, vocab(), 4);
  const std::span<const TokenId> all(text);
  for (const int draft_len : {0, 5}) {
    DecodingOptions options = model_.greedy(draft_len);
    options.sampling.repeat_penalty = 1.3f;
    KvOptions kv = kv_options(options.plans);
    kv.chunk = kChunk;
    Sequence twice(model_.model, model_.pool, kCapacity, options, kv);
    Sequence once(model_.model, model_.pool, kCapacity, options, kv);
    const auto generate = [&](Sequence& sequence, std::size_t until) {
      while (sequence.tokens().size() < until) {
        model_.decoder.step(sequence, static_cast<int>(until - sequence.tokens().size()));
      }
    };
    model_.decoder.prefill(twice, all.first(210));
    generate(twice, 330);
    model_.decoder.prefill(twice, all.subspan(210, 40));
    const Tokens before(twice.tokens().begin(), twice.tokens().end() - 1);
    generate(twice, 500);
    model_.decoder.prefill(once, before);
    generate(once, 500);
    EXPECT_EQ(twice.tokens(), once.tokens()) << "draft length " << draft_len;
  }
}

// One chunk is in flight in a model.
TEST_P(PromptExactness, APromptCannotBeginInsideAnothersChunk) {
  const Tokens text = tiny_text(100, vocab(), 5);
  KvCache a = make_cache(), b = make_cache();
  Buffer logits = model_.backend->allocate(vocab() * sizeof(float));
  {
    Model::Prefill first(model_.model, text, a, logits.as<float>());
    first.step();
    EXPECT_TRUE(first.inside_chunk());
    Model::Prefill second(model_.model, text, b, logits.as<float>());
    EXPECT_THROW(second.step(), Error);
  }
  EXPECT_EQ(a.length(), 0);  // abandoned
  read(b, text, {});
  EXPECT_EQ(b.length(), 100);
}

INSTANTIATE_TEST_SUITE_P(Backends, PromptExactness, ::testing::ValuesIn(subjects()),
                         [](const auto& info) { return subject_name(info.param); });

}  // namespace
}  // namespace quantspec::testing
