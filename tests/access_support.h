// A text of random K, V and queries in a cache, and attention over what each kv head sees of it in
// double precision: for tests of what passes see of a cache.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/params/attention.h"
#include "kv_cache/kv_cache.h"

namespace quantspec::testing {

inline constexpr int kDim = 64, kPage = 32, kKvHeads = 2, kHeads = 6, kLayers = 2;
inline constexpr KvShape kShape{kLayers, kKvHeads, kDim, kPage};

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
  using With = KvOptions (*)(KvOptions options, Backend& backend, const KvShape& shape);
  // `with`: what becomes of the options before a cache is made of them.
  Cache(const std::string& backend, const Text& text, KvOptions options, With with = nullptr)
      : text_(text),
        backend_(make_backend({backend, 1})),
        pool_(*backend_, kShape),
        cache_(*backend_, pool_, text.count,
               with == nullptr ? std::move(options) : with(std::move(options), *backend_, kShape)) {
  }

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

inline double dot(const float* a, const float* b) {
  return std::inner_product(a, a + kDim, b, 0.0);
}

// Softmax of one query head at position p over `visible`, by position.
inline std::map<int, double> probabilities(const float* q, const std::vector<int>& visible,
                                           const auto& key) {
  std::map<int, double> p;
  double most = -1e30, sum = 0;
  for (const int s : visible) most = std::max(most, p[s] = dot(q, key(s)) / std::sqrt(kDim));
  for (auto& [s, x] : p) sum += x = std::exp(x - most);
  for (auto& [s, x] : p) x /= sum;
  return p;
}

inline std::vector<int> range(int begin, int end) {
  std::vector<int> all(std::max(0, end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

// Keys and values as the pages or the full-precision part give them.
struct Seen {
  Floats keys, values;  // [positions, dim] of one kv head
  const float* key(int p) const { return &keys[p * kDim]; }
};

inline Seen as_seen(const Text& text, int layer, int head, int length, int paged, KvRead read) {
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
inline std::set<int> top(const std::vector<double>& scores, int count) {
  std::vector<int> order = range(0, static_cast<int>(scores.size()));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  return {order.begin(), order.begin() + std::min<std::size_t>(count, order.size())};
}

// Attention of one row at `position` where kv head h sees positions visible[h].
inline Floats brute_force(const Text& text, int layer, int position, int paged, KvRead read,
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

inline std::vector<int> pages_to_positions(const std::set<int>& pages, int ring_begin,
                                           int position) {
  std::vector<int> visible;
  for (const int page : pages) {
    for (int p = page * kPage; p < (page + 1) * kPage; ++p) visible.push_back(p);
  }
  for (int p = ring_begin; p <= position; ++p) visible.push_back(p);
  return visible;
}

inline double difference(const Floats& a, const Floats& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

// --- what is expected --------------------------------------------------------------------------

class AccessTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kPrompt = 421, kLength = 500;
  // fp16 K and V and integer queries on the cpu; a position more or less seen changes 0.05.
  double tolerance() const { return GetParam() == "reference" ? 1e-5 : 1.2e-2; }
  const Text text_{kLength + 1};

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
inline Visible everywhere(const std::vector<int>& positions) {
  return Visible(kLayers, std::vector(kKvHeads, positions));
}

}  // namespace quantspec::testing
