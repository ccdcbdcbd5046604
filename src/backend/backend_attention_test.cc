// attention of every backend against the reference, and against itself: a row alone and in company.
// K and V are values that fp16 holds, so that storage rounds nothing.
#include <algorithm>
#include <map>
#include <optional>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

struct Case {
  int num_heads;
  KvShape shape;
  int pages;
  int first_position;  // at or after the end of the pages
  int rows;

  int full_count() const { return first_position + rows - pages * shape.page_size; }
};

std::string text(const Case& c) {
  return fmt::format("{} heads, {} kv heads, head_dim {}, page {}, {} pages, {} rows at {}",
                     c.num_heads, c.shape.num_kv_heads, c.shape.head_dim, c.shape.page_size,
                     c.pages, c.rows, c.first_position);
}

// What a test does to the data before a backend sees it.
struct Data {
  // The pages are `distinct` ones, again and again; 0: each is one of its own.
  Data(const Case& c, std::uint64_t seed, int distinct = 0)
      : c(c), distinct(distinct > 0 ? distinct : c.pages) {
    const std::size_t unit = std::size_t(c.shape.page_size) * c.shape.head_dim;
    for (int i = 0; i < this->distinct * c.shape.num_kv_heads; ++i) {
      page_keys.push_back(normal_floats(unit, seed + 10 * i));
      page_values.push_back(normal_floats(unit, seed + 10 * i + 1));
    }
    for (int i = 0; i < c.full_count() * c.shape.num_kv_heads; ++i) {
      keys.push_back(half_floats(c.shape.head_dim, seed + 10 * i + 2));
      values.push_back(half_floats(c.shape.head_dim, seed + 10 * i + 3));
    }
    q = normal_floats(std::size_t(c.rows) * c.num_heads * c.shape.head_dim, seed + 4);
  }
  // One of its rows alone.
  Data row(int row) const {
    Data one = *this;
    one.c.first_position += row;
    one.c.rows = 1;
    one.keys.resize(one.c.full_count() * c.shape.num_kv_heads);
    one.values.resize(one.keys.size());
    const std::ptrdiff_t size = std::ssize(q) / c.rows;
    one.q.assign(q.begin() + row * size, q.begin() + (row + 1) * size);
    return one;
  }

  Case c;
  int distinct;
  std::vector<Floats> page_keys, page_values;  // [distinct * kv heads]
  std::vector<Floats> keys, values;            // [positions from the pages on, kv heads]
  Floats q;
};

// A sequence's pages and ring in the memory of one backend. The pages hold two layers, of which the
// second is used; slots that no position fills stay NaN.
class TestCache {
 public:
  static constexpr int kLayer = 1;

  TestCache(Backend& backend, const Data& data)
      : shape_(data.c.shape),
        pages_(backend, shape_, data.distinct),
        table_(backend, repeated(pages_.list(), data.c.pages)),
        ring_(backend, shape_, 2 * shape_.page_size) {
    const int kv_heads = shape_.num_kv_heads;
    for (int i = 0; i < data.distinct * kv_heads; ++i) {
      const CanonicalUnit unit = encoded(shape_, data.page_keys[i], data.page_values[i]);
      backend.import_unit(shape_, kLayer, i % kv_heads, unit.upper.data(), unit.lower.data(),
                          pages_.list()[i / kv_heads]);
    }
    // All positions of a head at once: of many heads copies take longer than all else.
    const int first = data.c.pages * shape_.page_size, count = data.c.full_count();
    for (int head = 0; head < kv_heads; ++head) {
      Floats keys, values;
      for (int i = head; i < std::ssize(data.keys); i += kv_heads) {
        keys.insert(keys.end(), data.keys[i].begin(), data.keys[i].end());
        values.insert(values.end(), data.values[i].begin(), data.values[i].end());
      }
      ring_.write(head, first, keys.data(), values.data(), count);
    }
  }
  KvView view(KvRead read) const {
    const int first_full = static_cast<int>(table_.size()) * shape_.page_size;
    return {.pages = {table_.data(), table_.size()},
            .full = ring_.get(),
            .first_full = first_full,
            .layer = kLayer,
            .read = read};
  }
  bool intact() const { return pages_.intact() && table_.intact() && ring_.intact(); }

 private:
  static std::vector<PagePlanes> repeated(const std::vector<PagePlanes>& pages, int count) {
    std::vector<PagePlanes> table;
    for (int i = 0; i < count; ++i) table.push_back(pages[i % pages.size()]);
    return table;
  }

  KvShape shape_;
  TestPages pages_;
  Guarded<PagePlanes> table_;
  TestFullKv ring_;
};

// All sequences in one call, their rows one after the other.
Floats attend_all(Backend& backend, const std::vector<Data>& sequences, KvRead read,
                  bool of_rounds = false) {
  std::vector<std::unique_ptr<TestCache>> caches;
  std::vector<SequenceRows> rows;
  Floats q;
  int first_row = 0;
  for (const Data& data : sequences) {
    caches.push_back(std::make_unique<TestCache>(backend, data));
    rows.push_back({first_row, data.c.rows, data.c.first_position, caches.back()->view(read)});
    q.insert(q.end(), data.q.begin(), data.q.end());
    first_row += data.c.rows;
  }
  const Case& c = sequences.front().c;
  std::optional<TestRounds> rounds;
  if (of_rounds) rounds.emplace(backend, rows, c.shape, read == KvRead::kBoth);
  const Guarded<float> in(backend, q);
  Guarded<float> out(backend, q.size());
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.shape.head_dim));
  backend.attention({in.data(), out.data(), c.num_heads, c.shape, scale, rows});
  EXPECT_TRUE(out.intact());
  for (const auto& cache : caches) EXPECT_TRUE(cache->intact());
  EXPECT_TRUE(!rounds || rounds->intact());
  return out.values();
}

class AttentionOps : public OpTest {
 protected:
  void expect_near(const std::vector<Data>& sequences, const std::string& what) {
    for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
      const Floats actual = attend_all(*backend_, sequences, read);
      const Floats expected = attend_all(*reference_, sequences, read);
      EXPECT_TRUE(attention_near(actual, expected, read, tolerances_))
          << what << ", read " << int(read);
    }
  }
  // Each row alone has the bits that it has in company.
  void expect_same_bits_alone(const Data& all, KvRead read) {
    const Floats together = attend_all(*backend_, {all}, read);
    EXPECT_TRUE(std::ranges::all_of(together, [](float x) { return std::isfinite(x); }));
    for (int row = 0; row < all.c.rows; ++row) {
      const Data one = all.row(row);
      const Floats alone = attend_all(*backend_, {one}, read);
      EXPECT_TRUE(same_bits(alone.data(), &together[row * alone.size()], alone.size()))
          << text(all.c) << ", row " << row << ", read " << int(read);
    }
  }
};

KvShape shape_of(int kv_heads, int head_dim, int page_size) {
  return {2, kv_heads, head_dim, page_size};
}

TEST_P(AttentionOps, EveryHeadShapeIsNearTheReference) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const int group : {1, 3, 4}) {
      for (const int page_size : {32, 64, 128}) {
        const Case c{2 * group, shape_of(2, head_dim, page_size), 2, 3 * page_size + 5, 5};
        expect_near({Data(c, 1)}, text(c));
      }
    }
  }
}

TEST_P(AttentionOps, EveryNumberOfRowsIsNearTheReference) {
  for (const int rows : {1, 2, 3, 5, 8, 9, 16, 17}) {
    for (const int group : {1, 3, 4}) {
      const Case c{group, shape_of(1, 64, 64), 3, 4 * 64 + 7, rows};
      expect_near({Data(c, 2)}, text(c));
    }
  }
}

// Groups of Qwen2.5's 5 and 7 query heads, and up to 16: columns beside a whole number of tiles.
TEST_P(AttentionOps, EveryGroupIsNearTheReference) {
  for (const int group : {2, 5, 6, 7, 8, 12, 16}) {
    for (const int rows : {1, 4, 17}) {
      const Case c{2 * group, shape_of(2, 64, 64), 2, 3 * 64 + 5, rows};
      expect_near({Data(c, 15)}, text(c));
    }
  }
}

TEST_P(AttentionOps, EveryNumberOfPagesIsNearTheReference) {
  for (int pages = 0; pages <= 10; ++pages) {
    const Case c{6, shape_of(2, 80, 32), pages, (pages + 1) * 32 + 3, 2};
    expect_near({Data(c, 3)}, text(c));
  }
}

// The ring holds 1 to 2 G positions, and starts at either half.
TEST_P(AttentionOps, EveryPlaceInTheRingIsNearTheReference) {
  constexpr int kPage = 32;
  for (const int pages : {0, 1, 2}) {
    for (int count = 1; count <= 2 * kPage; count += count < 4 || count > 60 ? 1 : 7) {
      const int rows = std::min(count, 3);
      const Case c{4, shape_of(1, 64, kPage), pages, pages * kPage + count - rows, rows};
      expect_near({Data(c, 4)}, text(c));
    }
  }
}

TEST_P(AttentionOps, TheFirstTokenReadsItsOwnValue) {
  const Case c{3, shape_of(1, 96, 32), 0, 0, 1};
  const Data data(c, 5);
  const Floats out = attend_all(*backend_, {data}, KvRead::kBoth);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], data.values[0][i % 96], 1e-3);
}

std::vector<Data> unequal_sequences() {
  const KvShape shape = shape_of(2, 128, 64);
  return {Data({6, shape, 0, 0, 1}, 10), Data({6, shape, 7, 8 * 64 + 60, 4}, 11),
          Data({6, shape, 1, 100, 9}, 12), Data({6, shape, 0, 17, 17}, 13),
          Data({6, shape, 3, 4 * 64, 2}, 14)};
}

TEST_P(AttentionOps, UnequalSequencesAreNearTheReference) {
  expect_near(unequal_sequences(), "unequal sequences");
}

TEST_P(AttentionOps, ASequenceAloneHasTheSameBits) {
  const std::vector<Data> sequences = unequal_sequences();
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    const Floats all = attend_all(*backend_, sequences, read);
    std::size_t at = 0;
    for (const Data& data : sequences) {
      const Floats one = attend_all(*backend_, {data}, read);
      EXPECT_TRUE(same_bits(one.data(), &all[at], one.size()))
          << text(data.c) << ", read " << int(read);
      at += one.size();
    }
  }
}

// Beside each other drafts have fewer splits than alone on a GPU, whose teams then have several
// parts. Of contexts of about one length, and where one is so long that it has as many splits as
// any may. Of one column tile, and of more columns than a block has.
TEST_P(AttentionOps, DraftsOfLongContextsAreNearThoseOfEachAlone) {
  const bool gpu = GetParam() == "cuda";
  constexpr int kPage = 64;
  const KvShape shape = shape_of(gpu ? 8 : 2, 128, kPage);
  for (const std::vector<int>& all_pages :
       {std::vector{90, 100, 110, 95, 90}, {90, 300, 40, 9, 3, 0, 12, 3, 6, 3, 3, 9}}) {
    for (const int rows : {1, 17}) {
      std::vector<Data> sequences;
      for (const int gpu_pages : all_pages) {
        const int pages = gpu ? gpu_pages : gpu_pages / 10;
        const int own = gpu && sequences.empty() ? 0 : rows;  // as rounds may have, on a GPU
        const Case c{2 * shape.num_kv_heads, shape, pages, (pages + 1) * kPage, own};
        sequences.emplace_back(c, 70 + pages, 3);
      }
      const Floats all = attend_all(*backend_, sequences, KvRead::kUpper);
      std::size_t at = 0;
      for (const Data& data : sequences) {
        if (data.c.rows == 0) continue;
        const Floats one = attend_all(*backend_, {data}, KvRead::kUpper);
        const Floats together(all.begin() + at, all.begin() + at + one.size());
        EXPECT_TRUE(attention_near(together, one, KvRead::kUpper, tolerances_)) << text(data.c);
        at += one.size();
      }
    }
  }
}

// More than a launch on a GPU has. Positions and pages as a cache has them.
TEST_P(AttentionOps, ASequenceAmongManyHasTheBitsItHasAlone) {
  constexpr int kPage = 32, kSequences = 70;
  std::vector<Data> sequences;
  for (int i = 0; i < kSequences; ++i) {
    const int position = 5 * i % 150, pages = first_full_position(position, kPage) / kPage;
    const int rows = std::min(1 + i % 3, kPage - position % kPage);
    sequences.emplace_back(Case{2, shape_of(1, 64, kPage), pages, position, rows}, 40 + i);
  }
  expect_near(sequences, "many sequences");
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    const Floats all = attend_all(*backend_, sequences, read);
    const Floats of_rounds = attend_all(*backend_, sequences, read, true);
    EXPECT_TRUE(same_bits(all.data(), of_rounds.data(), all.size()));
    std::size_t at = 0;
    for (const Data& data : sequences) {
      const Floats one = attend_all(*backend_, {data}, read);
      EXPECT_TRUE(same_bits(one.data(), &all[at], one.size())) << text(data.c);
      at += one.size();
    }
  }
}

// Short on average, and on a GPU, which has many heads for few splits, enough of them for blocks
// that stay. One is so long that a block that stays looks pages up again; one has no page.
TEST_P(AttentionOps, ABatchOfLongAndShortHasTheBitsOfEachAlone) {
  const bool gpu = GetParam() == "cuda";
  struct Kind {
    int head_dim, page_size, rows;
  };
  // Of one tile of columns, two, three, two blocks of three and of two; other heads and pages.
  for (const auto& [dim, page, rows] :
       {Kind{64, 64, 1}, Kind{64, 64, 4}, Kind{64, 64, 5}, Kind{64, 64, 11}, Kind{64, 64, 20},
        Kind{80, 64, 7}, Kind{96, 64, 9}, Kind{128, 128, 9}, Kind{128, 128, 5}, Kind{128, 128, 14},
        Kind{128, 128, 2}}) {
    SCOPED_TRACE(testing::Message() << dim << " channels, " << rows << " rows");
    const KvShape shape = shape_of(gpu ? 33 : 2, dim, page);
    std::vector<Data> sequences;
    // On a GPU teams of the longest of 64 have more parts than UnitTable has places, and splits
    // have parts for all teams on average; with pages of 128 they have not.
    const int most = !gpu ? 30 : page == 64 ? 1100 : 150;
    std::vector<int> all_pages{3, most, 39, 9, 6, 3, 0, 12, 3, 6, 3, 3, 9, 3};
    all_pages.resize(gpu ? 30 : 14, 3);  // so many that their context is short on average
    for (const int pages : all_pages) {
      // A round need not have rows of each sequence, on a GPU.
      const int own = gpu && pages == 12 ? 0 : pages == 6 ? std::max(1, rows - 8) : rows;
      const Case c{2 * shape.num_kv_heads, shape, pages, (pages + 1) * page + pages % 50, own};
      sequences.emplace_back(c, 60 + pages, 3);
    }
    const Floats all = attend_all(*backend_, sequences, KvRead::kBoth);
    std::map<int, Floats> alone;  // by pages, from which all else follows
    std::size_t at = 0;
    for (const Data& data : sequences) {
      if (data.c.rows == 0) continue;
      Floats& one = alone[data.c.pages];
      if (one.empty()) one = attend_all(*backend_, {data}, KvRead::kBoth);
      EXPECT_TRUE(same_bits(one.data(), &all[at], one.size())) << text(data.c);
      at += one.size();
    }
  }
}

// Positions and pages as a cache has them.
TEST_P(AttentionOps, RoundsSayTheSamePositions) {
  constexpr int kPage = 64;
  std::vector<Data> sequences;
  for (const int position : {0, 17, 2 * kPage - 6, 2 * kPage, 8 * kPage + 30}) {
    const int pages = first_full_position(position, kPage) / kPage;
    sequences.emplace_back(Case{6, shape_of(2, 128, kPage), pages, position, 5}, position);
  }
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    const Floats a = attend_all(*backend_, sequences, read);
    const Floats b = attend_all(*backend_, sequences, read, true);
    EXPECT_TRUE(same_bits(a.data(), b.data(), a.size()));
  }
}

// The same positions, asked for in one op or one by one: what verifying and plain decoding do.
TEST_P(AttentionOps, ARowAloneHasTheSameBits) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int group : {1, 3}) {
      const KvShape shape = shape_of(2, head_dim, 32);
      for (const int rows : {2, 5, 17}) {
        const Data all({2 * group, shape, 3, 4 * 32 + 9, rows}, 20);
        expect_same_bits_alone(all, KvRead::kUpper);
        expect_same_bits_alone(all, KvRead::kBoth);
      }
    }
  }
}

// Blocks of every width, heads enough for few splits.
TEST_P(AttentionOps, ARowOfManyColumnsAloneHasTheSameBits) {
  for (const Case& c : {Case{4, shape_of(1, 128, 64), 3, 4 * 64 + 9, 8},
                        Case{32, shape_of(8, 128, 64), 3, 4 * 64 + 9, 8},
                        Case{16, shape_of(4, 64, 64), 3, 4 * 64 + 9, 5},
                        Case{32, shape_of(8, 80, 64), 3, 4 * 64 + 9, 3},
                        Case{8, shape_of(2, 256, 64), 3, 4 * 64 + 9, 8},
                        Case{12, shape_of(4, 96, 64), 3, 4 * 64 + 9, 7},
                        Case{16, shape_of(4, 96, 64), 3, 4 * 64 + 9, 7}}) {
    expect_same_bits_alone(Data(c, 21), KvRead::kBoth);
    expect_near({Data(c, 21)}, text(c));
  }
}

// Every split has something, and great scores raise the exponents of some and not of others.
TEST_P(AttentionOps, ARowOfALongContextAloneHasTheSameBits) {
  for (const Case& c : {Case{8, shape_of(2, 64, 64), 140, 141 * 64 + 9, 6},
                        Case{4, shape_of(1, 128, 64), 280, 281 * 64 + 9, 5}}) {
    Data all(c, 21, 70);
    for (float& q : all.q) q *= 8.0f;
    expect_same_bits_alone(all, KvRead::kBoth);
  }
}

// Every warp has a part after its first, and of the last three cases' target more than there are
// lanes: with 132 multiprocessors 64 heads leave a target 2 splits, 128 one, of up to 8 teams; a
// draft has twice as many.
TEST_P(AttentionOps, PartsThatFollowOneAnotherAreNearTheReference) {
  if (GetParam() != "cuda") GTEST_SKIP() << "about the warps of a GPU, and slow";
  for (const Case& c : {Case{64, shape_of(64, 64, 64), 80, 81 * 64 + 9, 5},
                        Case{64, shape_of(64, 128, 128), 40, 41 * 128 + 9, 1},
                        Case{64, shape_of(64, 256, 64), 40, 41 * 64 + 9, 2},
                        Case{128, shape_of(128, 64, 64), 272, 273 * 64 + 9, 1},
                        Case{512, shape_of(128, 64, 64), 272, 273 * 64 + 9, 8},
                        Case{128, shape_of(128, 64, 32), 272, 273 * 32 + 9, 2}}) {
    const Data all(c, 23, 3);
    expect_near({all}, text(c));
    if (c.rows > 1) expect_same_bits_alone(all, KvRead::kBoth);
  }
}

TEST_P(AttentionOps, ALongContextIsNearTheReference) {
  const Case c{2, shape_of(2, 64, 64), 90, 91 * 64 + 5, 1};
  expect_near({Data(c, 22)}, text(c));
}

TEST_P(AttentionOps, ThreadsDoNotChangeBits) {
  const auto single = make_test_backend(GetParam(), 1);
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    const Floats a = attend_all(*backend_, unequal_sequences(), read);
    const Floats b = attend_all(*single, unequal_sequences(), read);
    EXPECT_TRUE(same_bits(a.data(), b.data(), a.size()));
  }
}

// What all keys have in common cancels in a softmax: also where queries are rounded, and between
// pages and what comes behind them, which values tell apart here.
TEST_P(AttentionOps, WhatKeysHaveInCommonCancels) {
  const Case c{4, shape_of(2, 128, 64), 3, 4 * 64 + 9, 4};
  Data data(c, 32);
  const auto add = [](std::vector<Floats>& all, int channels, float what) {
    for (Floats& x : all) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (static_cast<int>(i % 128) < channels) x[i] = round_to_half(x[i] + what);
      }
    }
  };
  add(data.page_keys, 4, 100.0f);
  add(data.keys, 4, 100.0f);
  add(data.page_values, 128, 2.0f);
  add(data.values, 128, -2.0f);
  for (std::size_t i = 0; i < data.q.size(); ++i) {
    if (i % 128 < 4) data.q[i] += 5.0f;
  }
  expect_near({data}, text(c));
}

TEST_P(AttentionOps, LargeScoresAreNearTheReference) {
  const Case c{4, shape_of(2, 64, 32), 3, 4 * 32 + 3, 4};
  Data data(c, 30);
  for (float& q : data.q) q *= 40.0f;  // scores of +-200: one key takes all
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    const Floats out = attend_all(*backend_, {data}, read);
    const Floats expected = attend_all(*reference_, {data}, read);
    EXPECT_TRUE(same_special(out, expected));
    // Rounding a query by 2^-8 of its largest element moves scores of 200 by a part of 1.
    EXPECT_LT(nmse(out, expected), read == KvRead::kBoth ? 1e-2 : 5e-2);
  }
}

TEST_P(AttentionOps, NanAndInfinityReachTheSamePlaces) {
  const float nan = std::nanf("");
  const Case c{4, shape_of(2, 128, 32), 3, 4 * 32 + 3, 4};
  const Data clean(c, 31);
  std::vector<Data> cases(6, clean);
  cases[0].q[1 * 4 * 128 + 5] = nan;                       // row 1, head 0
  cases[1].q[2 * 4 * 128 + 3 * 128] = INFINITY;            // row 2, head 3
  cases[2].page_keys[2][7] = nan;                          // page 1, kv head 0
  cases[3].page_values[3][9 * 128 + 1] = INFINITY;         // page 1, kv head 1
  cases[4].keys[(c.full_count() - 2) * 2][5] = nan;        // unseen by the first rows, kv head 0
  cases[5].values[(c.full_count() - 1) * 2 + 1][5] = nan;  // seen by the last row alone, kv head 1
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
      const Floats out = attend_all(*backend_, {cases[i]}, read);
      const Floats expected = attend_all(*reference_, {cases[i]}, read);
      EXPECT_TRUE(same_special(out, expected)) << "case " << i << ", read " << int(read);
      EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](float x) { return x != x; }));
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(AttentionOps);

}  // namespace
}  // namespace quantspec
