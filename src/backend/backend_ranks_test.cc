// Attention of ranks that share a model: what each computes of its query heads has the bits of one
// rank, however long the context.
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "backend/op_test_support.h"
#include "comm/comm.h"

namespace quantspec {
namespace {

// A sequence whose last rows are decoded, or read as a prompt.
struct Spec {
  int positions;
  int rows;
};
// How many ranks there are, and what they share.
struct Layout {
  int ranks;
  RankGroups groups = {};

  int shares() const { return ranks / groups.alike; }       // of the weights
  int kv_shares() const { return ranks / groups.context; }  // of the KV heads
};
struct Case {
  const char* name;
  const char* backend;
  int heads, kv_heads, head_dim, page_size;
  std::vector<Spec> sequences;
  std::vector<Layout> layouts;
  bool few_slots = false;  // on a GPU a rank, with fewer KV heads, has more for each draft
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr int kLayer = 1;

// Of all heads.
struct Sequence {
  Sequence(const Case& c, const Spec& spec, std::mt19937& random)
      : spec(spec),
        q(floats(spec.rows, c.heads * c.head_dim, random)),
        keys(floats(spec.positions, c.kv_heads * c.head_dim, random)),
        values(floats(spec.positions, c.kv_heads * c.head_dim, random)) {}
  static Floats floats(int rows, int columns, std::mt19937& random) {
    std::normal_distribution<float> normal;
    Floats x(static_cast<std::size_t>(rows) * columns);
    for (float& one : x) one = normal(random);
    return x;
  }

  Spec spec;
  Floats q, keys, values;  // [rows or positions, heads, head_dim]
};

// Columns [first, first + count) of rows of `width`.
Floats columns(const Floats& rows, int width, int first, int count) {
  Floats some;
  for (std::size_t row = 0; row < rows.size() / width; ++row) {
    const float* from = &rows[row * width + first];
    some.insert(some.end(), from, from + count);
  }
  return some;
}

// K, V and pages of one rank's KV heads.
class OwnKv {
 public:
  OwnKv(Backend& backend, const Case& c, const KvShape& shape, int first_kv_head,
        const Sequence& sequence)
      : full_(backend, shape, std::max(c.page_size, (sequence.spec.positions + 15) / 16 * 16)),
        pages_(backend, shape,
               first_full_position(position_of(sequence), shape.page_size) / shape.page_size) {
    const int dim = c.head_dim, width = c.kv_heads * dim;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      const int first = (first_kv_head + head) * dim;
      full_.write(head, 0, columns(sequence.keys, width, first, dim).data(),
                  columns(sequence.values, width, first, dim).data(), sequence.spec.positions);
    }
    const std::vector<FullKv> sources(shape.num_layers, full_.get());
    backend.quantize_pages(shape, 0, sources, 0, pages_.get());
  }
  static int position_of(const Sequence& sequence) {
    return sequence.spec.positions - sequence.spec.rows;
  }
  KvView view(const KvShape& shape, KvRead read) const {
    return {.pages = pages_.get(),
            .full = full_.get(),
            .first_full = static_cast<int>(pages_.get().size()) * shape.page_size,
            .layer = kLayer,
            .read = read};
  }

 private:
  TestFullKv full_;
  TestPages pages_;
};

// What attention gives a rank's query heads: of decoding by 4 and by 8 bits, and of prompts.
struct Out {
  std::vector<Floats> decoded, read;
};

Out attend(const Case& c, const std::vector<Sequence>& all, const Layout& layout,
           Communicator* ranks) {
  const int rank = ranks != nullptr ? ranks->rank() : 0;
  const RankGroups& groups = layout.groups;
  const auto backend =
      make_backend({.name = c.backend, .num_threads = 2, .ranks = ranks, .groups = groups});
  const int heads = c.heads / layout.shares(), share = rank / groups.alike, dim = c.head_dim;
  const int kv_heads = c.kv_heads / layout.kv_shares();
  const KvShape shape{2, kv_heads, dim, c.page_size, groups.context, rank % groups.context};
  std::vector<OwnKv> kv;
  Floats q;
  for (const Sequence& sequence : all) {
    kv.emplace_back(*backend, c, shape, rank / groups.context * kv_heads, sequence);
    const Floats own = columns(sequence.q, c.heads * dim, share * heads * dim, heads * dim);
    q.insert(q.end(), own.begin(), own.end());
  }
  Out out;
  const Guarded<float> queries(*backend, q);
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    std::vector<SequenceRows> sequences;
    int row = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int rows = all[i].spec.rows;
      sequences.push_back({row, rows, OwnKv::position_of(all[i]), kv[i].view(shape, read)});
      row += rows;
    }
    Guarded<float> result(*backend, q.size());
    backend->attention({queries.data(), result.data(), heads, shape, 0.1f, sequences});
    out.decoded.push_back(result.values());
  }
  const float* at = queries.data();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Spec& spec = all[i].spec;
    const std::size_t size = static_cast<std::size_t>(spec.rows) * heads * dim;
    Guarded<std::byte> unpacked(*backend, backend->unpacked_bytes(shape, spec.positions));
    for (const bool unpacks : {true, false}) {
      Guarded<float> result(*backend, size);
      backend->prefill_attention({at, result.data(), heads, shape, 0.1f, OwnKv::position_of(all[i]),
                                  spec.rows, kv[i].view(shape, KvRead::kBoth), unpacked.data(),
                                  unpacks});
      out.read.push_back(result.values());
    }
    at += size;
  }
  return out;
}

// Whether drafts, which need not be one rank's, attend as one rank does but for rounding.
bool alike(const Floats& own, const Floats& one) {
  double squares = 0, errors = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    squares += one[i] * one[i];
    errors += (own[i] - one[i]) * (own[i] - one[i]);
  }
  return own.size() == one.size() && errors < 1e-6 * squares;
}

class RankOps : public ::testing::TestWithParam<Case> {};

TEST_P(RankOps, AttentionHasTheBitsOfOneRank) {
  const Case& c = GetParam();
  const bool on_gpu = std::string(c.backend) == "cuda";
  if (on_gpu && !cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  std::mt19937 random(9);
  std::vector<Sequence> all;
  for (const Spec& spec : c.sequences) all.emplace_back(c, spec, random);
  const Out one = attend(c, all, {1}, nullptr);
  const int width = c.heads * c.head_dim;
  for (const Layout& layout : c.layouts) {
    const int size = layout.ranks;
    std::vector<Out> outs(size);
    SharedRanks shared(size);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
          EXPECT_NO_THROW(as_rank(shared, rank, [&](Communicator& ranks) {
            outs[rank] = attend(c, all, layout, &ranks);
          }));
        });
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      const int own_width = width / layout.shares();
      const int first = rank / layout.groups.alike * own_width;
      const auto expect = [&](const std::vector<Floats>& own, const std::vector<Floats>& whole,
                              int rounded = 0) {
        ASSERT_EQ(own.size(), whole.size());
        for (int i = 0; i < std::ssize(own); ++i) {
          const Floats one = columns(whole[i], width, first, own_width);
          EXPECT_TRUE(i < rounded ? alike(own[i], one) : own[i] == one)
              << i << " at rank " << rank << " of " << size << ", " << layout.groups.context
              << " share contexts, " << layout.groups.alike << " weights";
        }
      };
      // On GPUs drafts have other splits than one GPU's where contexts are shared, and where that
      // one has too few slots for all of a batch.
      const bool other_splits = layout.groups.context > 1 || c.few_slots;
      expect(outs[rank].decoded, one.decoded, on_gpu && other_splits ? 1 : 0);
      expect(outs[rank].read, one.read);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, RankOps,
    ::testing::Values(
        Case{"short",
             "cpu",
             8,
             4,
             64,
             32,
             {{40, 1}, {300, 9}, {700, 3}},
             {{2}, {4}, {2, {2, 1}}, {4, {2, 1}}, {4, {4, 2}}, {8, {2, 2}}}},
        // Longer than what one rank reads grain by grain, and than many runs.
        Case{"long",
             "cpu",
             4,
             4,
             256,
             32,
             {{2300, 2}, {5000, 1}, {7100, 17}},
             {{2}, {4}, {2, {2, 1}}, {4, {4, 1}}, {4, {2, 1}}, {8, {8, 2}}}},
        Case{"one_kv_head", "cpu", 4, 1, 128, 64, {{3000, 3}}, {{2, {2, 2}}, {8, {8, 8}}}},
        Case{"reference",
             "reference",
             8,
             4,
             32,
             32,
             {{40, 1}, {300, 3}, {4300, 1}},
             {{2}, {2, {2, 1}}, {4, {4, 2}}}},
        // One GPU's splits are 66, 16 and 132 where it has 132 multiprocessors.
        Case{"cuda",
             "cuda",
             8,
             2,
             64,
             64,
             {{40, 1}, {300, 9}, {715, 3}, {9000, 1}},
             {{2}, {2, {2, 1}}, {2, {2, 2}}, {4, {2, 2}}}},
        Case{"cuda_8_kv_heads",
             "cuda",
             16,
             8,
             128,
             128,
             {{100, 3}, {2300, 2}, {9000, 1}, {7100, 17}},
             {{2}, {2, {2, 1}}, {4, {2, 1}}, {4, {4, 1}}, {4, {4, 2}}},
             /*few_slots=*/true},
        Case{"cuda_1_kv_head", "cuda", 4, 1, 256, 32, {{3000, 3}}, {{2, {2, 2}}, {4, {4, 4}}}},
        // 33, 5 and 3 there: no multiple of the ranks, and fewer.
        Case{"cuda_4_kv_heads",
             "cuda",
             8,
             4,
             128,
             128,
             {{100, 3}, {9000, 1}, {7100, 17}},
             {{2, {2, 1}}, {2, {2, 2}}, {4, {2, 1}}, {4, {4, 2}}, {4, {4, 4}}}},
        Case{"cuda_26_kv_heads",
             "cuda",
             52,
             26,
             64,
             64,
             {{715, 3}, {3000, 1}},
             {{2, {2, 1}}, {4, {2, 2}}, {4, {4, 2}}}},
        Case{"cuda_44_kv_heads", "cuda", 44, 44, 64, 32, {{1200, 2}}, {{2, {2, 2}}, {4, {4, 1}}}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quantspec
