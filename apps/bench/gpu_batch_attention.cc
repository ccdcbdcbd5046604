// Decode attention of batches: one op over several sequences, each with pages of its own.
#include <fmt/core.h>

#include <iterator>
#include <numeric>

#include "apps/bench/gpu_contexts.h"
#include "backend/params/order.h"

namespace quantspec {

namespace {

struct Batch {
  std::string name;
  std::vector<int> tokens;  // of each sequence
  Contexts::Pages pages = Contexts::Pages::kOwn;
};

// Drawn once, uniform by logarithm, from 8 to 128.
constexpr int kRaggedPages[] = {20, 19, 44, 14, 11, 49,  74, 38, 9,  47, 105, 11, 11, 22, 25, 73,
                                15, 11, 38, 30, 25, 117, 22, 40, 27, 10, 11,  19, 28, 15, 13, 31};

Batch uniform(int sequences, int tokens) {
  return {fmt::format("{}x{}", sequences, tokens), std::vector<int>(sequences, tokens)};
}

Batch ragged() {
  constexpr int kSequences = std::size(kRaggedPages), kMeanTokens = 4096;
  static_assert(std::accumulate(std::begin(kRaggedPages), std::end(kRaggedPages), 0) * kPageSize ==
                kSequences * kMeanTokens);
  Batch batch{fmt::format("{}x{} ragged", kSequences, kMeanTokens), {}};
  for (const int pages : kRaggedPages) batch.tokens.push_back(pages * kPageSize);
  return batch;
}

Batch sharing(Batch batch) {
  batch.name += " shared";
  batch.pages = Contexts::Pages::kShared;
  return batch;
}

std::string name_in(const AttentionShape& shape, const Batch& batch, KvRead read) {
  return fmt::format("{} {} {}", shape.name, batch.name, name_of(read));
}

// The first row of the shortest, of the longest and of the last sequence, in the batch and alone.
void check_batch(GpuLab& lab, const AttentionShape& shape, const Batch& batch, Contexts& contexts,
                 Results& results) {
  const auto ends = std::ranges::minmax_element(batch.tokens);
  const auto index = [&](auto at) { return static_cast<int>(at - batch.tokens.begin()); };
  const int checked[] = {index(ends.min), index(ends.max), contexts.size() - 1};
  const auto check_read = [&](KvRead read, int count) {
    const int rows = contexts.size() * count;
    Queries queries(lab, rows);
    queries.poison();
    queries.run(QueryRound(lab, contexts, read, count), 0, OpOrder::kAfter);
    const std::vector<float> all = queries.out(rows);
    for (const int sequence : checked) {
      const int row = sequence * count;
      queries.poison();
      queries.run(QueryRound(lab, contexts, read, 1, sequence, 1), 0, OpOrder::kAfter, row);
      const std::vector<float> alone = queries.out(1);
      const std::span in_batch = std::span(all).subspan(row * kRowFloats, kRowFloats);
      const std::string name =
          fmt::format("{}, {} quer{}, sequence {}", name_in(shape, batch, read), count,
                      count == 1 ? "y" : "ies", sequence);
      if (read == KvRead::kUpper) {
        results.add_check(name + ", alone and in the batch", relative_error(in_batch, alone), 1e-2);
      } else {
        results.add_check(name + ", the bits of a row alone and in the batch",
                          bit_error(in_batch, alone), 0);
      }
    }
  };
  check_read(KvRead::kUpper, 1);
  check_read(KvRead::kBoth, 1);
  check_read(KvRead::kBoth, 4);
}

void time_batch(GpuLab& lab, const AttentionShape& shape, const Batch& batch, Contexts& contexts,
                Results& results) {
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth, KvRead::kFull}) {
    for (const int count : {1, 4, 5, 8}) {
      if (read != KvRead::kBoth && count > 1) continue;
      if (read == KvRead::kFull && batch.pages == Contexts::Pages::kShared) continue;
      Measurement measured =
          time_queries(lab, contexts, read, count, name_in(shape, batch, read), results);
      measured.group = "decode attention, batches";
      results.add(std::move(measured));
    }
  }
}

}  // namespace

void measure_batches(GpuLab& lab, Results& results) {
  const auto measure = [&](const AttentionShape& shape, const std::vector<Batch>& batches) {
    for (const Batch& batch : batches) {
      Contexts contexts(lab, shape.kv_heads, batch.tokens, batch.pages);
      if (batch.name == ragged().name) check_batch(lab, shape, batch, contexts, results);
      time_batch(lab, shape, batch, contexts, results);
    }
  };
  const auto& [mha, gqa] = kAttentionShapes;
  measure(gqa, {uniform(4, 4096), uniform(8, 4096), uniform(20, 4096), uniform(32, 4096),
                uniform(16, 8192), uniform(8, 16384), ragged(), sharing(uniform(32, 4096)),
                uniform(64, 4096), uniform(4, 32768), uniform(8, 32768), uniform(16, 32768)});
  measure(mha, {uniform(8, 4096), uniform(4, 16384)});
}

}  // namespace quantspec
