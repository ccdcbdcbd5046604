// The cache against a plain model of itself: a list of the K and V that were written. Whatever the
// sequence of operations, pages must be the scalar codec's bytes of that list and never change, and
// the ring must hold its tail.

#include "kv_cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/params/view.h"
#include "base/dtype.h"
#include "base/error.h"

namespace quantspec {
namespace {

using Bytes = std::vector<std::byte>;

// K and V of one position: [layers, kv heads, head_dim] each. Values are fp16-representable, so
// that every backend's full precision holds them exactly.
struct Token {
  std::vector<float> keys;
  std::vector<float> values;
};

class CacheModel {
 public:
  CacheModel(const std::string& backend, KvShape shape, int capacity, unsigned seed)
      : shape_(shape),
        backend_(make_backend({backend, 1})),
        pool_(*backend_, shape),
        host_(*backend_, shape, 32 * pool_.page_bytes()),
        cache_(*backend_, pool_, capacity, {.chunk = 2 * shape.page_size}),
        random_(seed) {}

  KvCache& cache() { return cache_; }
  int uniform(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  // A round: `rows` are written and the first `kept` of them stay.
  void decode(int rows, int kept) {
    cache_.reserve(rows);
    verify_rule();
    const int first = cache_.length();
    for (int i = 0; i < rows; ++i) tokens_.push_back(random_token());
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      write(layer, cache_.view(layer, {KvRead::kBoth}).full, first, first + rows);
    }
    cache_.settle(kept);
    tokens_.resize(first + kept);
  }

  // A prompt of `count` tokens after what is there. Passes over a prompt give other K and V than
  // those of decoding, so all that is read again is new.
  void prefill(int count) {
    const int length = cache_.length() + count;
    const int begin = cache_.begin_prompt(length);
    ASSERT_EQ(begin % cache_.chunk(), 0);
    ASSERT_EQ(begin, prompt_ / cache_.chunk() * cache_.chunk());
    tokens_.resize(begin);
    pages_.resize(std::min<std::size_t>(pages_.size(), begin / shape_.page_size));
    Bytes scratch(KvCache::chunk_scratch_bytes(shape_, *backend_, cache_.chunk()));
    while (cache_.length() < length) {
      const int first = cache_.length();
      KvCache::Chunk chunk(cache_, std::min(cache_.chunk(), length - first), scratch.data());
      const int end = first + chunk.num_tokens();
      while (std::ssize(tokens_) < end) tokens_.push_back(random_token());
      for (int page = 0; page < first / shape_.page_size; ++page) {
        verify_page(page, [&](int layer) { return chunk.view(layer); });
      }
      for (int layer = 0; layer < shape_.num_layers; ++layer) {
        const KvView view = chunk.view(layer);
        ASSERT_EQ(view.first_full, first);
        ASSERT_EQ(view.pages.size(), static_cast<std::size_t>(first / shape_.page_size));
        write(layer, view.full, first, end);
        chunk.end_layer(layer);
      }
      chunk.finish();
    }
    cache_.end_prompt();
    prompt_ = length;
  }

  void clear() {
    cache_.clear();
    tokens_.clear();
    pages_.clear();
    prompt_ = 0;
  }

  // All but some of the prompt's whole chunks goes to the host's memory and comes back, after the
  // cache served somebody else.
  void preempt() {
    const int first = uniform(0, prompt_ / cache_.chunk()) * cache_.chunk();
    const auto shared = cache_.pages_of(0, first);
    const std::vector<PageRef> kept(shared.begin(), shared.end());
    const std::size_t slots = cache_.slots_to_save(host_, first);
    const KvCache::Saved saved = cache_.save(host_, first);
    ASSERT_EQ(host_.used(), slots);
    cache_.clear();
    const std::vector<Token> own = std::exchange(tokens_, {});
    const int prompt = std::exchange(prompt_, 0);
    const std::vector<Bytes> pages = std::exchange(pages_, {});
    for (int n = 0; n < 2 * shape_.page_size; n += shape_.page_size) {
      decode(shape_.page_size, shape_.page_size);
    }
    cache_.clear();
    tokens_ = own;
    prompt_ = prompt;
    pages_ = pages;
    if (first > 0) cache_.attach(kept);
    cache_.restore(host_, saved);
  }

  // The whole state against the list.
  void verify() {
    ASSERT_EQ(cache_.length(), static_cast<int>(tokens_.size()));
    const int num_pages = cache_.quantized() / shape_.page_size;
    // Those of whole chunks of a prompt run ahead.
    const int ahead = prompt_ / cache_.chunk() * cache_.chunk() / shape_.page_size;
    ASSERT_EQ(cache_.page_bytes(), std::max(num_pages, ahead) * shape_.page_bytes());
    for (int page = 0; page < num_pages; ++page) {
      verify_page(page, [&](int layer) { return cache_.view(layer, {KvRead::kBoth}); });
    }
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      const KvView view = cache_.view(layer, {KvRead::kUpper});
      ASSERT_EQ(view.pages.size(), static_cast<std::size_t>(num_pages));
      for (int p = cache_.quantized(); p < cache_.length(); ++p) verify_full(layer, view.full, p);
    }
  }

  void verify_rule() {
    ASSERT_EQ(cache_.quantized(), first_full_position(cache_.length(), shape_.page_size));
  }

 private:
  std::size_t vector_size() const { return shape_.units() * shape_.head_dim; }
  std::size_t offset(int layer, int head) const {
    return (static_cast<std::size_t>(layer) * shape_.num_kv_heads + head) * shape_.head_dim;
  }

  std::vector<float> random_vector() {
    std::vector<float> values(vector_size());
    const int kind = uniform(0, 9);  // now and then zeros, constants and large values
    for (float& value : values) {
      const float x = std::normal_distribution<float>(0.3f, 2.0f)(random_);
      value = kind == 0 ? 0.0f : kind == 1 ? 3.5f : kind == 2 ? 4e3f * x : x;
      value = f16_to_f32(f32_to_f16(value));
    }
    return values;
  }
  Token random_token() { return {random_vector(), random_vector()}; }

  void write(int layer, FullKv full, int first, int end) {
    for (int p = first; p < end; ++p) {
      for (int head = 0; head < shape_.num_kv_heads; ++head) {
        backend_->write_full_kv(shape_, full, head, p, 1, &tokens_[p].keys[offset(layer, head)],
                                &tokens_[p].values[offset(layer, head)]);
      }
    }
  }

  void verify_full(int layer, FullKv full, int position) {
    std::vector<float> key(shape_.head_dim), value(shape_.head_dim);
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      backend_->read_full_kv(shape_, full, head, position, 1, key.data(), value.data());
      for (int c = 0; c < shape_.head_dim; ++c) {
        ASSERT_EQ(key[c], tokens_[position].keys[offset(layer, head) + c]) << position;
        ASSERT_EQ(value[c], tokens_[position].values[offset(layer, head) + c]) << position;
      }
    }
  }

  // [page_size, head_dim] of one unit, from the list.
  std::vector<float> gather(int page, int layer, int head, std::vector<float> Token::*part) const {
    std::vector<float> rows;
    for (int t = 0; t < shape_.page_size; ++t) {
      const std::vector<float>& all = tokens_[page * shape_.page_size + t].*part;
      rows.insert(rows.end(), &all[offset(layer, head)],
                  &all[offset(layer, head)] + shape_.head_dim);
    }
    return rows;
  }

  Bytes expected_unit(int page, int layer, int head) const {
    Bytes unit(shape_.unit_bytes());
    encode_unit(shape_, gather(page, layer, head, &Token::keys).data(),
                gather(page, layer, head, &Token::values).data(), unit.data(),
                unit.data() + shape_.upper_unit_bytes());
    return unit;
  }

  template <typename ViewOf>
  void verify_page(int page, const ViewOf& view_of) {
    Bytes all;
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      const PagePlanes planes = view_of(layer).pages[page];
      for (int head = 0; head < shape_.num_kv_heads; ++head) {
        Bytes unit(shape_.unit_bytes());
        backend_->export_unit(shape_, layer, head, planes, unit.data(),
                              unit.data() + shape_.upper_unit_bytes());
        if (page >= static_cast<int>(pages_.size())) {
          ASSERT_TRUE(unit == expected_unit(page, layer, head)) << "page " << page;
        }
        all.insert(all.end(), unit.begin(), unit.end());
      }
    }
    if (page >= static_cast<int>(pages_.size())) pages_.push_back(all);
    ASSERT_TRUE(pages_[page] == all) << "page " << page << " changed after it was committed";
  }

  KvShape shape_;
  std::unique_ptr<Backend> backend_;
  PagePool pool_;
  HostPages host_;
  KvCache cache_;
  std::mt19937 random_;
  std::vector<Token> tokens_;
  std::vector<Bytes> pages_;  // what each page held when it was first seen
  int prompt_ = 0;
};

struct Case {
  const char* backend;
  KvShape shape;
};

class KvCacheTest : public testing::TestWithParam<Case> {};

TEST_P(KvCacheTest, RandomOperationsMatchThePlainModel) {
  const int page_size = GetParam().shape.page_size;
  for (unsigned seed = 0; seed < 12; ++seed) {
    CacheModel model(GetParam().backend, GetParam().shape, 12 * page_size, seed);
    for (int operation = 0; operation < 60; ++operation) {
      KvCache& cache = model.cache();
      const int kind = model.uniform(0, 19);
      const int room = cache.capacity() - cache.length();
      if (kind == 0 && room > 0) {
        ASSERT_NO_FATAL_FAILURE(model.prefill(std::min(room, model.uniform(1, 5 * page_size))));
      } else if (kind == 1 && model.uniform(0, 4) == 0) {
        model.clear();
      } else if (kind == 2) {
        ASSERT_NO_FATAL_FAILURE(model.preempt());
      } else {
        if (cache.max_rows() == 0) continue;
        const int rows = model.uniform(1, std::min(17, cache.max_rows()));
        ASSERT_NO_FATAL_FAILURE(model.decode(rows, model.uniform(0, rows)));
      }
      ASSERT_NO_FATAL_FAILURE(model.verify()) << "seed " << seed << " operation " << operation;
    }
  }
}

TEST_P(KvCacheTest, EveryLengthAroundThePageBoundaries) {
  const int page_size = GetParam().shape.page_size;
  for (const int length : {1, page_size - 1, page_size, page_size + 1, 2 * page_size - 1,
                           2 * page_size, 2 * page_size + 1, 3 * page_size, 5 * page_size - 1}) {
    CacheModel by_prefill(GetParam().backend, GetParam().shape, 6 * page_size, 1);
    by_prefill.prefill(length);
    ASSERT_NO_FATAL_FAILURE(by_prefill.verify());
    ASSERT_NO_FATAL_FAILURE(by_prefill.verify_rule());

    CacheModel by_steps(GetParam().backend, GetParam().shape, 6 * page_size, 2);
    for (int n = 0; n < length; ++n) by_steps.decode(1, 1);
    by_steps.cache().reserve(1);
    ASSERT_NO_FATAL_FAILURE(by_steps.verify());
    ASSERT_NO_FATAL_FAILURE(by_steps.verify_rule());
  }
}

TEST_P(KvCacheTest, RollbackLeavesThePagesAlone) {
  const int page_size = GetParam().shape.page_size;
  CacheModel model(GetParam().backend, GetParam().shape, 6 * page_size, 3);
  model.prefill(3 * page_size - 2);
  ASSERT_NO_FATAL_FAILURE(model.verify());
  const int length = model.cache().length();
  for (int round = 0; round < 5; ++round) {
    model.decode(2, 0);
    ASSERT_NO_FATAL_FAILURE(model.verify());
  }
  EXPECT_EQ(model.cache().length(), length);
  EXPECT_EQ(model.cache().max_rows(), 2);
  EXPECT_EQ(model.cache().committed(), 2 * page_size);
}

INSTANTIATE_TEST_SUITE_P(Backends, KvCacheTest,
                         testing::Values(Case{"reference", {2, 2, 32, 32}},
                                         Case{"cpu", {2, 2, 32, 32}}, Case{"cpu", {1, 3, 64, 64}},
                                         Case{"cpu", {1, 1, 128, 128}},
                                         Case{"cpu", {1, 1, 256, 32}}));

struct CacheFixture : testing::Test {
  std::unique_ptr<Backend> backend = make_backend({"reference", 1});
  PagePool pool{*backend, {1, 1, 16, 32}};
  KvCache cache{*backend, pool, 100};
};

void append(KvCache& cache, int rows) {
  cache.reserve(rows);
  cache.settle(rows);
}

TEST_F(CacheFixture, RefusesAForwardThatSpansAPageBoundary) {
  append(cache, 30);
  EXPECT_EQ(cache.max_rows(), 2);
  EXPECT_THROW(cache.reserve(3), Error);
  EXPECT_EQ(cache.length(), 30);
}

TEST_F(CacheFixture, RefusesToForgetWhatIsFinal) {
  for (int n = 0; n < 64; n += 32) append(cache, 32);
  cache.reserve(1);
  EXPECT_EQ(cache.quantized(), 32);
  EXPECT_EQ(cache.committed(), 64);
  EXPECT_THROW(cache.truncate(63), Error);
  EXPECT_THROW(cache.truncate(65), Error);
  cache.truncate(64);
}

TEST_F(CacheFixture, SettlesOnlyWhatIsReserved) {
  EXPECT_THROW(cache.settle(1), Error);
  cache.reserve(3);
  cache.settle(2);
  EXPECT_EQ(cache.reserved(), 1);
  EXPECT_THROW(cache.settle(2), Error);
  cache.truncate(1);
  EXPECT_EQ(cache.reserved(), 0);
}

TEST_F(CacheFixture, AFullContextIsTheCallersError) {
  try {
    cache.begin_prompt(101);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    EXPECT_NE(std::string(error.what()).find("context size"), std::string::npos);
  }
}

TEST_F(CacheFixture, AnAbandonedChunkLeavesTheCacheEmpty) {
  std::vector<std::byte> scratch(KvCache::chunk_scratch_bytes(pool.shape(), *backend, 1024));
  cache.begin_prompt(80);
  { KvCache::Chunk chunk(cache, 80, scratch.data()); }
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.page_bytes(), 0u);
}

TEST_F(CacheFixture, AFullPrecisionCacheNeverMakesAPage) {
  KvCache full(*backend, pool, 90, {KvStore::kFull});
  const KvView view = full.view(0, {KvRead::kUpper});
  EXPECT_EQ(view.full.capacity, 96);
  EXPECT_EQ(full.max_rows(), 90);
  std::vector<float> key(16), value(16), read(16);
  for (int n = 0; n < 90; ++n) {
    append(full, 1);
    key.assign(16, static_cast<float>(n));
    backend->write_full_kv(full.shape(), view.full, 0, n, 1, key.data(), key.data());
  }
  EXPECT_EQ(full.quantized(), 0);
  EXPECT_EQ(full.committed(), 0);
  for (int n = 0; n < 90; ++n) {
    backend->read_full_kv(full.shape(), view.full, 0, n, 1, read.data(), value.data());
    EXPECT_EQ(read[0], n);
  }
}

TEST_F(CacheFixture, PagesGoBackToThePool) {
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    const PageRef page = pool.allocate();
    if (first == nullptr) first = page.planes().upper;
    EXPECT_EQ(page.planes().upper, first);
  }
}

}  // namespace
}  // namespace quantspec
