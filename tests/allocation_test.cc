// A round of decoding allocates nothing: its threads would wait for the allocator, and fragments
// would add up over a long text. What a round needs is made with the sequence, the decoder and the
// page pool. This binary counts every `operator new` and every Buffer (aligned_alloc, mmap), on all
// threads, while Decoder::step() runs.
//
// Allowed in rounds, and tested to be no more than this: a slab of pages when the pool has none
// left (PagePool), and the backend's scratch where it grows with the context or the longest round.
// Not counted: text. Turning tokens into strings (Session, StreamDecoder) is outside of the rounds.

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <ostream>
#include <string>
#include <vector>

#include "tests/model_support.h"

namespace {

std::atomic<int> news{0};
std::atomic<int> buffers{0};

void* counted_new(std::size_t bytes) {
  ++news;
  if (void* data = std::malloc(bytes == 0 ? 1 : bytes)) return data;
  throw std::bad_alloc();
}
void* counted_new(std::size_t bytes, std::align_val_t alignment) {
  ++news;
  if (void* data = memalign(static_cast<std::size_t>(alignment), bytes)) return data;
  throw std::bad_alloc();
}

}  // namespace

// The other forms of new and delete call these.
void* operator new(std::size_t bytes) { return counted_new(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_new(bytes, alignment);
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  ++buffers;
  return memalign(alignment, bytes);
}
extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  ++buffers;
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kPageSize = 32;
constexpr int kPrompt = 8 * kPageSize;
constexpr int kDecoded = 8 * kPageSize;  // the last page is left to the round that would follow
constexpr int kBudget = 3 * kPageSize;   // of sparse plans: fewer than there are pages

// What rounds allocated.
struct Allocations {
  int rounds = 0;
  int pages = 0;  // committed
  int news = 0;
  int buffers = 0;
  int allocating_rounds = 0;
  int most_in_a_round = 0;
};

// Decodes kDecoded tokens after a prompt and counts.
Allocations decode(Decoder& decoder, Sequence& sequence, const Tokens& prompt) {
  sequence.clear();
  decoder.prefill(sequence, prompt);
  Allocations counted;
  const int end = static_cast<int>(prompt.size()) + kDecoded;
  for (int left; (left = end - static_cast<int>(sequence.tokens().size())) > 0;) {
    const int quantized = sequence.cache().quantized();
    const int news_before = news, buffers_before = buffers;
    decoder.step(sequence, left);
    const int round_news = news - news_before, round_buffers = buffers - buffers_before;
    ++counted.rounds;
    counted.pages += sequence.cache().quantized() > quantized;
    counted.news += round_news;
    counted.buffers += round_buffers;
    counted.allocating_rounds += round_news + round_buffers > 0;
    counted.most_in_a_round = std::max(counted.most_in_a_round, round_news + round_buffers);
  }
  return counted;
}

struct Sampling {
  const char* name;
  SamplingParams params;
  SpecSampling mode = SpecSampling::kRejection;
  LogitBiases biases = {};
};

void PrintTo(const Sampling& sampling, std::ostream* out) { *out << sampling.name; }

std::vector<Sampling> samplings() {
  SamplingParams greedy, warm, cut, nucleus, penalized, penalized_greedy, counted;
  greedy.temperature = 0;
  cut.top_k = 20;
  cut.top_p = 0.9f;
  cut.min_p = 0.01f;
  nucleus.top_p = 0.9f;
  penalized.repeat_penalty = 1.2f;
  penalized_greedy = penalized;
  penalized_greedy.temperature = 0;
  penalized_greedy.repeat_last_n = -1;
  counted.presence_penalty = 0.5f;
  counted.frequency_penalty = 0.5f;
  return {{"greedy", greedy},
          {"temperature", warm},
          {"temperature coupled", warm, SpecSampling::kCoupled},
          {"top-k top-p min-p", cut},
          {"top-p coupled", nucleus, SpecSampling::kCoupled},
          {"repeat penalty", penalized},
          {"greedy repeat penalty", penalized_greedy},
          {"counts and biases",
           counted,
           SpecSampling::kRejection,
           {.always = {{5, 1}, {7, -1}}, .ends = {2}, .min_tokens = 9}}};
}

std::vector<Plan> plans_named(const std::string& spec, const Model& model) {
  const PlanContext context{model.config().num_layers, kPageSize, kBudget};
  if (spec == "lookup") return {Plan::lookup()};
  if (spec != "auto") return {make_plan(spec, context)};
  std::vector<Plan> plans = auto_plans(context);
  plans.push_back(Plan::lookup());
  return plans;
}

struct Loaded : LoadedModel {
  explicit Loaded(const std::string& name)
      : LoadedModel(testdata("models") / name, cpu_backends().back(), 2, kPageSize),
        prompt(kPrompt) {
    for (int i = 0; i < kPrompt; ++i) prompt[i] = (i * i + 7 * i + 3) % model.config().vocab_size;
  }

  Sequence sequence(const DecodingOptions& options) {
    return Sequence(model, pool, kPrompt + kDecoded, options,
                    with_rivals(kv_options(options.plans), *backend, pool.shape()));
  }

  // What rounds allocate once there has been a generation like it with the longest rounds.
  Allocations in_steady_state(DecodingOptions options) {
    const std::optional<int> draft_len = options.draft_len;
    if (draft_len != 0) options.draft_len = kMaxDraftLen;
    Sequence sequence = this->sequence(options);
    decode(decoder, sequence, prompt);
    options.draft_len = draft_len;
    sequence.set_options(options);
    return decode(decoder, sequence, prompt);
  }

  Tokens prompt;
};

void expect_none(const Allocations& counted) {
  EXPECT_EQ(counted.news, 0) << "in " << counted.allocating_rounds << " of " << counted.rounds;
  EXPECT_EQ(counted.buffers, 0) << "in " << counted.allocating_rounds << " of " << counted.rounds;
  EXPECT_EQ(counted.pages, kDecoded / kPageSize - 1);
}

TEST(Allocation, IsCounted) {
  const int news_before = news, buffers_before = buffers;
  const auto vector = std::make_unique<std::vector<float>>(100);
  const Buffer small(100), large(std::size_t{4} << 20);
  EXPECT_EQ(news - news_before, 2);
  EXPECT_EQ(buffers - buffers_before, 2);
}

class EverySampling : public ::testing::TestWithParam<Sampling> {};

TEST_P(EverySampling, RoundsAllocateNothing) {
  Loaded model("llama-gqa3");
  for (const std::string spec : {"quantspec", "quantspec+sparse", "lookup", "auto"}) {
    for (const std::optional<int> draft_len : {std::optional(0), std::optional(4), {}}) {
      SCOPED_TRACE(spec + ", draft length " + std::to_string(draft_len.value_or(-1)));
      expect_none(model.in_steady_state({.sampling = GetParam().params,
                                         .spec_sampling = GetParam().mode,
                                         .draft_len = draft_len,
                                         .plans = plans_named(spec, model.model),
                                         .biases = GetParam().biases}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Allocation, EverySampling, ::testing::ValuesIn(samplings()),
                         [](const auto& test) { return test_name(test.param.name); });

TEST(Allocation, RoundsOfNoPlanAllocate) {
  Loaded model("llama-gqa3");
  for (const std::string spec : {"weights-only", "kv-only+bounds", "streaming", "snapkv",
                                 "retrieval", "layer-skip:1", "quantspec+w8"}) {
    SCOPED_TRACE(spec);
    expect_none(model.in_steady_state({{}, {}, 4, plans_named(spec, model.model)}));
  }
}

// Their angles depend on the length of the sequence.
TEST(Allocation, RoundsOfModelsWithDynamicRopeAllocateNothing) {
  for (const std::string name : {"llama-dynamic-d96", "llama-longrope-d96"}) {
    SCOPED_TRACE(name);
    Loaded model(name);
    expect_none(model.in_steady_state({{}, {}, 4, plans_named("quantspec", model.model)}));
  }
}

// With pages in the pool, the first generation's rounds allocate the backend's scratch alone: it
// grows in the first round, and by a quarter or more when a context has outgrown it.
TEST(Allocation, FirstRoundsOnlyGrowTheScratchOfTheBackend) {
  Loaded model("llama-gqa3");
  model.pool.reserve((kPrompt + kDecoded) / kPageSize);
  Sequence sequence = model.sequence({{}, {}, 4, plans_named("quantspec", model.model)});
  const Allocations counted = decode(model.decoder, sequence, model.prompt);
  EXPECT_LE(counted.allocating_rounds, 3);
  EXPECT_GT(counted.rounds, 50);
}

// A pool without pages takes a slab as large as all before it.
TEST(Allocation, TheRoundsThatNeedASlabAreFew) {
  Loaded model("llama-gqa3");
  const DecodingOptions options{{}, {}, 0, {}};
  Sequence holds_its_pages = model.sequence(options);
  decode(model.decoder, holds_its_pages, model.prompt);
  Sequence sequence = model.sequence(options);
  const Allocations counted = decode(model.decoder, sequence, model.prompt);
  EXPECT_EQ(counted.pages, kDecoded / kPageSize - 1);
  EXPECT_EQ(counted.allocating_rounds, 1);
  EXPECT_LE(counted.most_in_a_round, 4);  // the slab, what counts it, the pool's three lists
}

}  // namespace
}  // namespace quantspec::testing
