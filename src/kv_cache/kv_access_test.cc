// What a pass sees of the cache, for every access, against brute force: the visible positions are
// worked out from the definitions in kv_access.h and gathered_kv.h, and attention over them is
// computed in double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "backend/params/attention.h"
#include "base/expect_error.h"
#include "kv_cache/kv_cache.h"

namespace quantspec {
namespace {

constexpr int kDim = 64, kPage = 32, kKvHeads = 2, kHeads = 6, kLayers = 2;
constexpr KvShape kShape{kLayers, kKvHeads, kDim, kPage};

using Floats = std::vector<float>;

// K, V and queries of every position and layer, random but for some keys that attract queries.
struct Text {
  explicit Text(int length) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (auto* field : {&keys, &values}) {
      field->resize(kLayers * kKvHeads * length * kDim);
      for (float& x : *field) x = normal(random);
    }
    queries.resize(kLayers * length * kHeads * kDim);
    for (float& x : queries) x = 0.6f * normal(random);
    count = length;
  }
  const float* key(int layer, int head, int p) const {
    return &keys[(static_cast<std::size_t>(layer * kKvHeads + head) * count + p) * kDim];
  }
  const float* value(int layer, int head, int p) const {
    return &values[(static_cast<std::size_t>(layer * kKvHeads + head) * count + p) * kDim];
  }
  const float* query(int layer, int p) const {
    return &queries[(static_cast<std::size_t>(layer) * count + p) * kHeads * kDim];
  }
  Floats keys, values, queries;
  int count;
};

class Cache {
 public:
  Cache(const std::string& backend, const Text& text, KvOptions options)
      : text_(text),
        backend_(make_backend({backend, 1})),
        pool_(*backend_, kShape),
        cache_(*backend_, pool_, text.count, std::move(options)) {}

  void prefill(int length) {
    std::vector<std::byte> scratch(KvCache::chunk_scratch_bytes(kShape, *backend_, cache_.chunk()));
    for (int first = cache_.begin_prompt(length); first < length; first += cache_.chunk()) {
      KvCache::Chunk chunk(cache_, std::min(cache_.chunk(), length - first), scratch.data());
      const int end = first + chunk.num_tokens();
      for (int layer = 0; layer < kLayers; ++layer) {
        write(layer, chunk.view(layer).full, first, end - first);
        const int rows = chunk.query_rows();
        const Floats queries(text_.query(layer, end - rows),
                             text_.query(layer, end - rows) + rows * kHeads * kDim);
        chunk.end_layer(layer, queries, kHeads);
      }
      chunk.finish();
    }
    cache_.end_prompt();
  }

  // Decodes up to `length`, as rounds of a few target rows do; masses are recorded on the way.
  void decode(int length) {
    while (cache_.length() < length) {
      const int rows = std::min({5, cache_.max_rows(), length - cache_.length()});
      const int first = cache_.length();
      cache_.reserve(rows);
      for (int layer = 0; layer < kLayers; ++layer) {
        KvView view = cache_.view(layer, KvAccess::target());
        write(layer, view.full, first, rows);
        attend(layer, first, rows, view);
      }
      cache_.settle(rows);
      cache_.mass_recorded();
    }
    cache_.reserve(1);
  }

  // One draft row at the end: its attention, [heads, dim].
  Floats draft(int layer, const KvAccess& access) {
    const int position = cache_.length();
    cache_.reserve(1);
    const KvView view = cache_.view(layer, access);
    write(layer, view.full, position, 1);
    const SequenceRows row{0, 1, position, view};
    if (access.tokens == KvTokens::kByBound) {
      backend_->page_bounds({text_.query(layer, position), kHeads, kShape, {&row, 1}});
    }
    backend_->select_pages({kShape, {&row, 1}});
    return attend(layer, position, 1, view);
  }

  Floats attend(int layer, int first, int rows, const KvView& view) {
    Floats out(static_cast<std::size_t>(rows) * kHeads * kDim);
    const SequenceRows sequence{0, rows, first, view};
    backend_->attention({text_.query(layer, first),
                         out.data(),
                         kHeads,
                         kShape,
                         1.0f / std::sqrt(static_cast<float>(kDim)),
                         {&sequence, 1}});
    return out;
  }

  void write(int layer, FullKv full, int first, int count) {
    for (int head = 0; head < kKvHeads; ++head) {
      for (int p = first; p < first + count; ++p) {
        backend_->write_full_kv(kShape, full, head, p, 1, text_.key(layer, head, p),
                                text_.value(layer, head, p));
      }
    }
  }

  KvCache& cache() { return cache_; }

 private:
  const Text& text_;
  std::unique_ptr<Backend> backend_;
  PagePool pool_;
  KvCache cache_;
};

// --- the definitions -----------------------------------------------------------------------------

double dot(const float* a, const float* b) { return std::inner_product(a, a + kDim, b, 0.0); }

// Softmax of one query head at position p over `visible`, by position.
std::map<int, double> probabilities(const float* q, const std::vector<int>& visible,
                                    const auto& key) {
  std::map<int, double> p;
  double most = -1e30, sum = 0;
  for (const int s : visible) most = std::max(most, p[s] = dot(q, key(s)) / std::sqrt(kDim));
  for (auto& [s, x] : p) sum += x = std::exp(x - most);
  for (auto& [s, x] : p) x /= sum;
  return p;
}

std::vector<int> range(int begin, int end) {
  std::vector<int> all(std::max(0, end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

// Keys and values as the pages or the full-precision part give them.
struct Seen {
  Floats keys, values;  // [positions, dim] of one kv head
  const float* key(int p) const { return &keys[p * kDim]; }
};

Seen as_seen(const Text& text, int layer, int head, int length, int paged, KvRead read) {
  Seen seen{Floats(text.key(layer, head, 0), text.key(layer, head, 0) + length * kDim),
            Floats(text.value(layer, head, 0), text.value(layer, head, 0) + length * kDim)};
  std::vector<std::byte> upper(kShape.upper_unit_bytes()), lower(kShape.lower_unit_bytes());
  for (int p = 0; p < paged; p += kPage) {
    encode_unit(kShape, seen.key(p), &seen.values[p * kDim], upper.data(), lower.data());
    decode_unit(kShape, upper.data(), lower.data(), read, &seen.keys[p * kDim],
                &seen.values[p * kDim]);
  }
  return seen;
}

// The greatest `count` of scores, as a set of indices; ties to the earlier.
std::set<int> top(const std::vector<double>& scores, int count) {
  std::vector<int> order = range(0, static_cast<int>(scores.size()));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  return {order.begin(), order.begin() + std::min<std::size_t>(count, order.size())};
}

// Attention of one row at `position` where kv head h sees positions visible[h].
Floats brute_force(const Text& text, int layer, int position, int paged, KvRead read,
                   const std::vector<std::vector<int>>& visible) {
  Floats out(kHeads * kDim);
  for (int head = 0; head < kHeads; ++head) {
    const int kv_head = head / (kHeads / kKvHeads);
    const Seen seen = as_seen(text, layer, kv_head, position + 1, paged, read);
    const auto p = probabilities(text.query(layer, position) + head * kDim, visible[kv_head],
                                 [&](int s) { return seen.key(s); });
    for (int c = 0; c < kDim; ++c) {
      double sum = 0;
      for (const auto& [s, weight] : p) sum += weight * seen.values[s * kDim + c];
      out[head * kDim + c] = static_cast<float>(sum);
    }
  }
  return out;
}

std::vector<int> pages_to_positions(const std::set<int>& pages, int ring_begin, int position) {
  std::vector<int> visible;
  for (const int page : pages) {
    for (int p = page * kPage; p < (page + 1) * kPage; ++p) visible.push_back(p);
  }
  for (int p = ring_begin; p <= position; ++p) visible.push_back(p);
  return visible;
}

double difference(const Floats& a, const Floats& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

// --- tests ---------------------------------------------------------------------------------------

class Access : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kPrompt = 421, kLength = 500;
  // fp16 K and V and integer queries on the cpu; a position more or less seen changes 0.05.
  double tolerance() const { return GetParam() == "reference" ? 1e-5 : 1.2e-2; }
  const Text text_{kLength + 1};

  void expect_retrieval(int budget);
  void expect_sees(Cache& cache, const KvAccess& access,
                   const std::vector<std::vector<std::vector<int>>>& visible) {
    const int position = cache.cache().length();
    const KvRead read = access.gathers() ? KvRead::kBoth : access.read;
    for (int layer = 0; layer < kLayers; ++layer) {
      const int paged = access.gathers() ? 0 : cache.cache().quantized();
      EXPECT_LT(difference(cache.draft(layer, access),
                           brute_force(text_, layer, position, paged, read, visible[layer])),
                tolerance())
          << "layer " << layer;
    }
  }
};

using Visible = std::vector<std::vector<std::vector<int>>>;
Visible everywhere(const std::vector<int>& positions) {
  return Visible(kLayers, std::vector(kKvHeads, positions));
}

TEST_P(Access, AllPagesAndOnlyTheRing) {
  Cache cache(GetParam(), text_, {});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  expect_sees(cache, {KvRead::kUpper}, everywhere(range(0, kLength + 1)));
  expect_sees(cache, {KvRead::kBoth}, everywhere(range(0, kLength + 1)));
  expect_sees(cache, {KvRead::kUpper, KvTokens::kNone},
              everywhere(range(cache.cache().quantized(), kLength + 1)));
}

TEST_P(Access, FullLayersReadEverythingInFullPrecision) {
  Cache cache(GetParam(), text_, {.full_layers = {1}});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  const Floats actual = cache.draft(1, {KvRead::kFull});
  const auto all = std::vector(kKvHeads, range(0, kLength + 1));
  EXPECT_LT(difference(actual, brute_force(text_, 1, kLength, 0, KvRead::kBoth, all)),
            GetParam() == "reference" ? 1e-5 : 2e-3);
  // Its pages are there for drafts.
  const Floats upper =
      brute_force(text_, 1, kLength, cache.cache().quantized(), KvRead::kUpper, all);
  EXPECT_LT(difference(cache.draft(1, {KvRead::kUpper}), upper), tolerance());
  EXPECT_FALSE(cache.cache().supports(0, {KvRead::kFull}));
}

TEST_P(Access, ByMassReadsThePagesThatTheLastTargetPassAttendedTo) {
  const KvAccess access{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  expect_sees(cache, access, everywhere(range(0, kPrompt + 1)));  // no pass has been seen: all
  cache.decode(kLength - 7);
  // The last pass: its rows are the last up to 5 of the round that ended there.
  const int begin = cache.cache().length();
  cache.decode(begin + 3);
  const int pages = cache.cache().quantized() / kPage;
  Visible visible(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      const Seen seen = as_seen(text_, layer, head, begin + 3, pages * kPage, KvRead::kBoth);
      std::vector<double> mass(pages, 0.0);
      for (int p = begin; p < begin + 3; ++p) {
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          const float* q = text_.query(layer, p) + (head * kHeads / kKvHeads + i) * kDim;
          for (const auto& [s, weight] :
               probabilities(q, range(0, p + 1), [&](int s) { return seen.key(s); })) {
            if (s < pages * kPage) mass[s / kPage] += weight;
          }
        }
      }
      mass[0] = 1e9;
      visible[layer].push_back(
          pages_to_positions(top(mass, 4), pages * kPage, cache.cache().length()));
    }
  }
  EXPECT_NE(visible[0][0], visible[0][1]);  // heads choose for themselves
  expect_sees(cache, access, visible);
}

TEST_P(Access, MassesAreRecordedWhileTheyAreWanted) {
  const KvAccess access{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  const auto is_recorded = [&] {
    return cache.cache().view(0, KvAccess::target()).page_mass.data != nullptr;
  };
  EXPECT_TRUE(is_recorded());
  const int variant = cache.cache().list_variant();
  cache.cache().record_mass(false);
  EXPECT_FALSE(is_recorded());
  EXPECT_NE(cache.cache().list_variant(), variant);  // its views changed
  cache.decode(kPrompt + 5);
  expect_sees(cache, access, everywhere(range(0, kPrompt + 6)));  // nothing to choose by
  cache.cache().record_mass(true);
  EXPECT_EQ(cache.cache().list_variant(), variant);
  cache.cache().record_mass(false);
  cache.cache().clear();
  EXPECT_TRUE(is_recorded());
}

TEST_P(Access, ByBoundReadsThePagesWhoseKeysCouldMatchBest) {
  const KvAccess access{KvRead::kUpper, KvTokens::kByBound, 3 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  const int pages = cache.cache().quantized() / kPage;
  Visible visible(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> bound(pages, -1e30);
      for (int page = 0; page < pages; ++page) {
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          const float* q = text_.query(layer, kLength) + (head * kHeads / kKvHeads + i) * kDim;
          double sum = 0;
          for (int c = 0; c < kDim; ++c) {
            float least = 1e30f, most = -1e30f;
            for (int p = page * kPage; p < (page + 1) * kPage; ++p) {
              least = std::min(least, text_.key(layer, head, p)[c]);
              most = std::max(most, text_.key(layer, head, p)[c]);
            }
            sum += std::max(q[c] * least, q[c] * most);
          }
          bound[page] = std::max(bound[page], sum);
        }
      }
      bound[0] = 1e9;
      visible[layer].push_back(pages_to_positions(top(bound, 3), pages * kPage, kLength));
    }
  }
  expect_sees(cache, access, visible);
}

// A share is of the pages that are there: a sequence that grows gets more, one value serves texts
// of any length, and whoever keeps what views show is told of every change.
TEST_P(Access, AShareGrowsWithTheSequence) {
  for (const KvTokens tokens : {KvTokens::kByMass, KvTokens::kByBound}) {
    const KvAccess access{KvRead::kUpper, tokens, KvBudget::one_in(4)};
    for (const int prompt : {1, 70, kPrompt}) {
      Cache cache(GetParam(), text_, {.accesses = {access}});
      cache.prefill(prompt);
      cache.decode(prompt + 1);
      std::map<int, std::size_t> listed;  // by list_variant()
      for (int length = prompt + 1; length <= kLength; length += 5) {
        cache.decode(length);
        const std::size_t pages = cache.cache().quantized() / kPage;
        const KvView view = cache.cache().view(0, access);
        const std::size_t expected = pages < 2 ? 0 : std::max<std::size_t>(1, pages / 4);
        EXPECT_EQ(view.page_lists.size(), kKvHeads * expected) << "at " << length;
        EXPECT_EQ(view.pages.size(), pages);
        const auto [known, is_new] =
            listed.emplace(cache.cache().list_variant(), view.page_lists.size());
        EXPECT_EQ(known->second, view.page_lists.size()) << "at " << length;
      }
      EXPECT_EQ(listed.size(), prompt < kPrompt ? 4u : 1u);  // 0 to 3 pages, or 3 of them
    }
  }
}

TEST_P(Access, ByBoundReadsAShareOfThePagesThatCouldMatchBest) {
  const KvAccess share{KvRead::kUpper, KvTokens::kByBound, KvBudget::one_in(3)};
  const KvAccess tokens{KvRead::kUpper, KvTokens::kByBound, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {share, tokens}});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  ASSERT_EQ(cache.cache().quantized() / kPage, 14);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(cache.draft(layer, share), cache.draft(layer, tokens));
  }
}

TEST_P(Access, StreamingReadsTheFirstTokensAndTheLatest) {
  // Windows longer and shorter than a page, and than the text.
  for (const int budget : {200, 60, 45, 4000}) {
    const KvAccess access{KvRead::kUpper, KvTokens::kStreaming, budget};
    Cache cache(GetParam(), text_, {.accesses = {access}});
    cache.prefill(kPrompt);
    for (const int length : {kPrompt, kPrompt + 40, kLength}) {
      cache.decode(length);
      const int ring = cache.cache().quantized();
      const int window = (std::max(0, budget - 16 - kPage) + 15) / 16 * 16;
      std::vector<int> visible = range(0, std::min(16, ring));
      for (int p = std::max(16, ring - window); p <= length; ++p) visible.push_back(p);
      EXPECT_GE(static_cast<int>(visible.size()), std::min(budget, length + 1));
      expect_sees(cache, access, everywhere(visible));
    }
  }
}

TEST_P(Access, SnapKeepsWhatTheLastQueriesOfThePromptAttendedTo) {
  const KvAccess access{KvRead::kUpper, KvTokens::kSnap, 32 + 50};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  const int end = cache.cache().quantized();
  Visible chosen(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> score(kPrompt - 32, 0.0), pooled(end, 0.0);
      for (int p = kPrompt - 32; p < kPrompt; ++p) {
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          const float* q = text_.query(layer, p) + (head * kHeads / kKvHeads + i) * kDim;
          for (const auto& [s, weight] : probabilities(
                   q, range(0, p + 1), [&](int s) { return text_.key(layer, head, s); })) {
            if (s < kPrompt - 32) score[s] += weight;
          }
        }
      }
      for (int s = 0; s < end; ++s) {
        for (int d = -2; d <= 2; ++d) {
          if (s + d >= 0 && s + d < kPrompt - 32) pooled[s] += score[s + d] / 5;
        }
      }
      const std::set<int> best = top(pooled, 50);
      chosen[layer].emplace_back(best.begin(), best.end());
    }
  }
  for (const int length : {kPrompt, kLength}) {
    cache.decode(length);
    Visible visible = chosen;
    for (auto& layer : visible) {
      for (auto& head : layer) {
        for (int p = end; p <= length; ++p) head.push_back(p);  // it grows
      }
    }
    expect_sees(cache, access, visible);
  }
}

TEST_P(Access, RetrievalKeepsChunksByTheirMeanKeyAndReplacesTheWorst) {
  for (const int budget : {96, 72, 75}) expect_retrieval(budget);
}

TEST_P(Access, RetrievalOfAShortPromptKeepsWhatCameLater) {
  const KvAccess access{KvRead::kUpper, KvTokens::kRetrieval, 200};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(150);
  cache.decode(kLength);
  // 96 positions were in pages then, the next 104 filled the room, and the rest went over the 96
  // first ones from the last down, then over all.
  std::vector<int> slots = range(0, 200);
  int next = 96;
  int p = 200;
  const int end = cache.cache().quantized();
  for (int page_end = 224; page_end <= end; page_end += kPage) {
    while (p < page_end) {
      const int run = std::min(page_end - p, next);
      std::iota(slots.begin() + next - run, slots.begin() + next, p);
      p += run;
      next = next == run ? 200 : next - run;
    }
  }
  for (p = end; p <= kLength; ++p) slots.push_back(p);
  Visible visible = everywhere(slots);
  expect_sees(cache, access, visible);
}

void Access::expect_retrieval(int budget) {
  const int kept = budget / 8 * 8;
  const KvAccess access{KvRead::kUpper, KvTokens::kRetrieval, budget};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  const int end = cache.cache().quantized();
  std::vector<std::vector<std::vector<int>>> slots(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> score(end / 8, 0.0);
      for (int chunk = 0; chunk < end / 8; ++chunk) {
        Floats mean(kDim, 0.0f);
        for (int p = 8 * chunk; p < 8 * chunk + 8; ++p) {
          for (int c = 0; c < kDim; ++c) mean[c] += text_.key(layer, head, p)[c] / 8;
        }
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          score[chunk] += dot(
              text_.query(layer, kPrompt - 1) + (head * kHeads / kKvHeads + i) * kDim, mean.data());
        }
      }
      score[0] = 1e9;
      std::vector<int> order = range(0, end / 8), positions;
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return score[a] > score[b]; });
      for (int i = 0; i < kept / 8; ++i) {
        for (int p = 8 * order[i]; p < 8 * order[i] + 8; ++p) positions.push_back(p);
      }
      slots[layer].push_back(positions);
    }
  }
  const auto expect_now = [&](int length) {
    Visible visible = slots;
    for (auto& layer : visible) {
      for (auto& head : layer) {
        for (int p = cache.cache().quantized(); p <= length; ++p) head.push_back(p);
      }
    }
    expect_sees(cache, access, visible);
  };
  expect_now(kPrompt);
  cache.decode(kLength);
  // Each page that left the ring took the place of the last slots, then of those before, and again.
  int last = kept;
  for (int p = end; p < cache.cache().quantized();) {
    const int run = std::min({last, (p / kPage + 1) * kPage - p, cache.cache().quantized() - p});
    for (auto& layer : slots) {
      for (auto& head : layer) std::iota(head.begin() + last - run, head.begin() + last, p);
    }
    p += run;
    last = last == run ? kept : last - run;
  }
  expect_now(kLength);
}

TEST_P(Access, AForkGoesOnByItself) {
  const KvAccess snap{KvRead::kUpper, KvTokens::kSnap, 100};
  const KvAccess mass{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {snap, mass}});
  cache.prefill(kPrompt);
  cache.decode(kPrompt + 10);
  const Floats before = cache.draft(0, snap);
  KvCache fork = cache.cache().fork({snap});
  EXPECT_TRUE(fork.supports(0, snap));
  EXPECT_FALSE(fork.supports(0, mass));
  EXPECT_EQ(fork.length(), cache.cache().length());
  cache.decode(kLength);  // pages are shared and immutable, the rest is the fork's own
  std::swap(fork, cache.cache());
  EXPECT_EQ(cache.draft(0, snap), before);
  cache.decode(kLength);
  const Floats there = cache.draft(0, snap);
  std::swap(fork, cache.cache());
  EXPECT_EQ(cache.draft(0, snap), there);
}

TEST_P(Access, RefusesBudgetsThatAreTooSmall) {
  for (const KvTokens tokens : {KvTokens::kStreaming, KvTokens::kSnap, KvTokens::kRetrieval}) {
    const KvAccess access{KvRead::kUpper, tokens, 5};
    EXPECT_THROW(Cache(GetParam(), text_, {.accesses = {access}}), Error);
    const KvAccess share{KvRead::kUpper, tokens, KvBudget::one_in(4)};
    expect_error(ErrorKind::kInvalidRequest,
                 {"draft budget 1/4: drafts that gather tokens need their number", "2048", "works"},
                 [&] { Cache(GetParam(), text_, {.accesses = {share}}); });
  }
  EXPECT_THROW(Cache(GetParam(), text_, {.full_layers = {kLayers}}), Error);
  const KvAccess streaming{KvRead::kUpper, KvTokens::kStreaming, 100};
  EXPECT_THROW(Cache(GetParam(), text_, {KvStore::kFull, {}, {streaming}}), Error);
}

INSTANTIATE_TEST_SUITE_P(Backends, Access, ::testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quantspec
