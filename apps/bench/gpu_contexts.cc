#include "apps/bench/gpu_contexts.h"

#include <fmt/core.h>

#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/error.h"

namespace quantspec {

// --- contexts ------------------------------------------------------------------------------------

Contexts::Contexts(GpuLab& lab, int kv_heads, std::vector<int> tokens, Pages pages)
    : lab_(lab),
      tokens_(std::move(tokens)),
      pages_are_(pages),
      shape_{1, kv_heads, kHeadDim, kPageSize} {
  int all_pages = 0;
  for (int i = 0; i < size(); ++i) {
    check(pages_are_ == Pages::kOwn || tokens_[i] == tokens_[0], "sequences share all pages");
    first_page_.push_back(pages_are_ == Pages::kShared ? 0 : all_pages);
    first_full_.push_back(full_bytes_);
    all_pages = first_page_.back() + num_pages(i);
    const std::size_t bytes = lab.backend().full_kv_bytes(shape_, capacity(i));
    check(bytes == std::size_t{4} * capacity(i) * kv_heads * kHeadDim, "K and V are fp16");
    full_bytes_ += bytes;
  }
  shape_.num_layers = copies_beyond_l2(all_pages * kv_heads * shape_.upper_unit_bytes());
  full_copies_ = copies_beyond_l2(full_bytes_);
  full_ = lab.random_fp16(full_copies_ * full_bytes_);
  ring_bytes_ = lab.backend().full_kv_bytes(shape_, kRing);
  rings_ = lab.random_fp16(shape_.num_layers * size() * ring_bytes_);
  make_pages();
}

FullKv Contexts::ring(int layer, int sequence) {
  const std::size_t index = static_cast<std::size_t>(layer) * size() + sequence;
  return {rings_.data() + index * ring_bytes_, kRing};
}

FullKv Contexts::full(int copy, int sequence) {
  return {full_.data() + copy * full_bytes_ + first_full_[sequence], capacity(sequence)};
}

KvView Contexts::view(KvRead read, int i, int sequence) {
  const int layer = i % copies(read);
  if (read == KvRead::kFull) {
    return {.full = full(layer, sequence), .layer = layer, .all_full = true};
  }
  return {.pages = device_pages(sequence),
          .full = ring(layer, sequence),
          .first_full = first_full(sequence),
          .layer = layer,
          .read = read};
}

double Contexts::bytes(KvRead read, int queries) const {
  const double token = 4.0 * kHeadDim;
  double unit = static_cast<double>(shape_.upper_unit_bytes());
  if (read == KvRead::kBoth) unit += static_cast<double>(shape_.lower_unit_bytes());
  double bytes = 0;
  for (int i = 0; i < size(); ++i) {
    const bool again = i > 0 && pages_are_ == Pages::kShared;  // the first one's pages
    bytes += read == KvRead::kFull
                 ? token * (tokens(i) + queries)
                 : unit * (again ? 0 : num_pages(i)) + token * (kPageSize + queries);
  }
  return shape_.num_kv_heads * bytes;
}

int Contexts::quantize(int layer, int first_page, int sequence) {
  const int count = std::min(kPagesAtOnce, num_pages(sequence) - first_page);
  const FullKv source = full(0, sequence);
  lab_.backend().quantize_pages(shape_, layer, {&source, 1}, first_page * kPageSize,
                                device_pages(sequence).subspan(first_page, count));
  return count;
}

std::span<const PagePlanes> Contexts::device_pages(int sequence) const {
  return {table_.as<PagePlanes>() + first_page_[sequence],
          static_cast<std::size_t>(num_pages(sequence))};
}

void Contexts::make_pages() {
  Backend& backend = lab_.backend();
  const int pages = first_page_.back() + num_pages(size() - 1);
  const std::size_t upper = shape_.units() * shape_.upper_unit_bytes();
  const std::size_t lower = shape_.units() * shape_.lower_unit_bytes();
  upper_ = backend.allocate(pages * upper);
  lower_ = backend.allocate(pages * lower);
  for (int i = 0; i < pages; ++i) {
    pages_.push_back({upper_.data() + i * upper, lower_.data() + i * lower});
  }
  table_ = backend.allocate(pages * sizeof(PagePlanes));
  backend.upload(table_.data(), pages_.data(), pages * sizeof(PagePlanes));
  for (int sequence = 0; sequence < size(); ++sequence) {
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int page = 0; page < num_pages(sequence);) page += quantize(layer, page, sequence);
    }
  }
}

// --- queries -------------------------------------------------------------------------------------

namespace {

template <typename T>
Buffer uploaded(GpuLab& lab, const std::vector<T>& values) {
  Buffer buffer = lab.backend().allocate(values.size() * sizeof(T));
  lab.backend().upload(buffer.data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

}  // namespace

QueryRound::QueryRound(GpuLab& lab, Contexts& contexts, KvRead read, int queries, int first,
                       int count)
    : shape_(contexts.shape()) {
  static std::uint64_t last_key = 0;
  check(read != KvRead::kUpper || queries == 1, "a draft's rounds have one query");
  shape_.num_layers = contexts.copies(read);
  std::vector<Round> rounds;
  int longest = 0;
  for (int i = 0; i < count; ++i) {
    rounds.push_back({.length = contexts.tokens(first + i) + 1});
    longest = std::max(longest, contexts.tokens(first + i));
  }
  rounds_ = uploaded(lab, rounds);
  tokens_ = uploaded(lab, std::vector<TokenId>(longest + kRing));  // the same of all
  const bool verifies = read != KvRead::kUpper;
  std::vector<RoundLane> lanes;
  std::vector<LaneKey> keys;
  for (int i = 0; i < count; ++i) {
    RoundLane lane{.draft_len = verifies ? queries - 1 : queries};
    lane.first_row = i * lane.rows();
    lane.at.tokens = tokens_.as<TokenId>();
    lane.at.round = rounds_.as<Round>() + i;
    lanes.push_back(lane);
    keys.push_back({++last_key});
  }
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    std::vector<SequenceRows>& rows = rows_.emplace_back();
    for (int i = 0; i < count; ++i) {
      rows.push_back({.first_row = i * queries,
                      .num_rows = queries,
                      .first_position = contexts.tokens(first + i),
                      .kv = contexts.view(read, layer, first + i),
                      .tokens = tokens_.as<TokenId>(),
                      .lane = i,
                      .verifies = verifies});
    }
  }
  lab.backend().begin_batch(lanes);
  std::vector<KvView> views(shape_.num_layers);
  lab.backend().bind_lanes(shape_, keys, [&](int lane, bool) {
    for (int layer = 0; layer < shape_.num_layers; ++layer) views[layer] = rows_[layer][lane].kv;
    return std::span<const KvView>(views);
  });
  begin_pass(lab);
}

void QueryRound::begin_pass(GpuLab& lab) {
  constexpr int kHidden = 16;
  const std::uint16_t zeros[kHidden] = {};
  const TensorView host{zeros, DType::kF16, 1, kHidden};
  const SequenceRows& last = rows_[0].back();
  const int num_rows = last.first_row + last.num_rows;
  Backend& backend = lab.backend();
  Buffer table = backend.allocate(backend.matrix_bytes(1, kHidden, DType::kF16));
  Buffer out = backend.allocate(num_rows * kHidden * sizeof(float));
  backend.embed({.sequences = rows_[0],
                 .table = backend.place_matrix(host, table.data()),
                 .out = out.as<float>(),
                 .page_size = kPageSize,
                 .num_rows = num_rows});
  backend.synchronize();
}

Queries::Queries(GpuLab& lab, int rows)
    : lab_(lab), host_q_(lab.floats(rows * kRowFloats)), q_(lab.upload(host_q_)) {}

void Queries::run(const QueryRound& round, int i, OpOrder order, int first_row) {
  lab_.backend().attention({q_.as<float>() + first_row * kRowFloats, out_.as<float>(), kHeads,
                            round.shape(), kScale, round.rows(i), order});
}

void Queries::run(Contexts& contexts, int queries) {
  const SequenceRows rows{0, queries, contexts.tokens(), contexts.view(KvRead::kUpper, 0)};
  lab_.backend().attention({q_.as<float>(),
                            out_.as<float>(),
                            kHeads,
                            contexts.shape(),
                            kScale,
                            {&rows, 1},
                            OpOrder::kAfter});
}

Measurement time_queries(GpuLab& lab, Contexts& contexts, KvRead read, int queries,
                         const std::string& name, Results& results) {
  const int rows = contexts.size() * queries;
  Queries timed(lab, rows);
  timed.poison();
  const QueryRound round(lab, contexts, read, queries);
  const Times times = lab.time([&](int i) { timed.run(round, i, OpOrder::kOverlaps); });
  const std::vector<float> out = timed.out(rows);
  if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); })) {
    results.add_check(fmt::format("{}, {} queries: finite", name, queries), 1, 0);
  }
  return {.group = "decode attention",
          .name = name,
          .rows = queries,
          .times = times,
          .bytes = contexts.bytes(read, queries)};
}

}  // namespace quantspec
