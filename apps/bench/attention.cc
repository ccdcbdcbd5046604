// Decode attention: one sequence's rows over fp16 K and V, over the upper plane of its pages, and
// over both planes.
//   dram   8192 tokens, another layer every time: what is read was last read a gigabyte ago
//   l2     768 tokens of one layer, by one thread: what the arithmetic alone takes
#include "backend/params/attention.h"

#include <fmt/core.h>

#include <cmath>

#include "apps/bench/lab.h"

namespace quantspec {

namespace {

constexpr int kPageSize = 128;
constexpr int kRing = 32;  // slots of the ring: the rows themselves are all that it holds

struct Case {
  bool in_memory;  // else in the second-level cache
  KvRead read;
  int head_dim;
  int group;     // query heads of a kv head
  int rows;      // queries
  int part = 1;  // of the pages that are read: one in so many

  int tokens() const { return in_memory ? 8192 : 768; }
  int kv_heads() const { return 512 / head_dim; }
  int num_heads() const { return kv_heads() * group; }
  KvShape shape() const { return {PageStore::kLayers, kv_heads(), head_dim, kPageSize}; }
  int pages() const { return tokens() / kPageSize; }

  std::string shape_name() const {
    return fmt::format("{}/d{}/{}/q{}", in_memory ? "dram" : "l2", head_dim,
                       group == 1 ? "mha" : fmt::format("gqa{}", group), rows);
  }
  std::string name() const {
    const char* what = read == KvRead::kFull ? "fp16" : read == KvRead::kUpper ? "upper" : "both";
    return fmt::format("attention/{}/{}{}/d{}/{}/q{}", in_memory ? "dram" : "l2", what,
                       part == 1 ? "" : fmt::format("-sparse{}", part), head_dim,
                       group == 1 ? "mha" : fmt::format("gqa{}", group), rows);
  }
};

Work work_of(const Case& c) {
  const KvShape shape = c.shape();
  const double fp16_token = 4.0 * shape.head_dim;  // of one kv head
  const double tokens = c.tokens() / c.part, pages = c.pages() / c.part;
  double page = fp16_token * kPageSize;
  if (c.read != KvRead::kFull) page = shape.upper_unit_bytes();
  if (c.read == KvRead::kBoth) page += shape.lower_unit_bytes();
  Work work;
  work.bytes = c.kv_heads() * (pages * page + c.rows * fp16_token);
  work.elements = 2.0 * tokens * c.kv_heads() * c.head_dim;
  work.flops = 2.0 * work.elements * c.group * c.rows;
  return work;
}

// Every kv head reads one page in `part`, another one each.
std::vector<int> page_lists(const Case& c) {
  std::vector<int> lists;
  if (c.part == 1) return lists;
  for (int head = 0; head < c.kv_heads(); ++head) {
    for (int page = 0; page < c.pages(); page += c.part)
      lists.push_back(page + (page / c.part + head) % c.part);
  }
  return lists;
}

class Attention {
 public:
  Attention(Lab& lab, const Case& c)
      : lab_(lab),
        case_(c),
        backend_(c.in_memory ? lab.backend() : lab.backend_of_one()),
        q_(normal_values(std::size_t(c.rows) * c.num_heads() * c.head_dim)),
        out_(q_.size()),
        lists_(page_lists(c)),
        ring_(lab.next_full_kv(c.shape(), kRing)) {
    if (c.read == KvRead::kFull) {
      full_ = lab.next_full_kv(c.shape(), c.tokens() + kRing);
    } else {
      pages_ = &lab.pages(c.shape(), c.pages(), c.in_memory ? kBeyondCaches : 0);
      place_ = pages_->next();
    }
  }

  void run() {
    if (case_.in_memory) advance();
    SequenceRows rows{0, case_.rows, case_.tokens(), {}};
    if (pages_ == nullptr) {
      rows.kv.full = full_;
    } else {
      rows.kv = {place_.pages, ring_, case_.tokens(), place_.layer, case_.read, lists_};
    }
    const float scale = 1 / std::sqrt(static_cast<float>(case_.head_dim));
    backend_.attention(
        {q_.data(), out_.data(), case_.num_heads(), case_.shape(), scale, {&rows, 1}});
    benchmark::DoNotOptimize(out_.data());
  }

 private:
  void advance() {
    if (pages_ == nullptr) {
      full_ = lab_.next_full_kv(case_.shape(), case_.tokens() + kRing);
    } else {
      place_ = pages_->next();
    }
  }

  Lab& lab_;
  Case case_;
  Backend& backend_;
  std::vector<float> q_, out_;
  std::vector<int> lists_;
  FullKv ring_, full_;
  PageStore* pages_ = nullptr;
  PageStore::Place place_{};
};

// Seconds of the latest fp16 run, by shape: what those of the other readings are compared with.
std::map<std::string, double>& fp16_seconds() {
  static std::map<std::string, double> seconds;
  return seconds;
}

void run(benchmark::State& state, Lab& lab, const Case& c) {
  Attention attention(lab, c);
  const double each = time_each(state, [&] { attention.run(); });
  lab.report(state, each, work_of(c), c.in_memory ? lab.threads() : 1);
  const auto found = fp16_seconds().find(c.shape_name());
  if (c.read == KvRead::kFull) {
    fp16_seconds()[c.shape_name()] = each;
  } else if (found != fp16_seconds().end()) {
    state.counters["over_fp16"] = found->second / each;
  }
}

void add(Lab& lab, const Case& c) {
  benchmark::RegisterBenchmark(c.name().c_str(),
                               [&lab, c](benchmark::State& state) { run(state, lab, c); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

void register_attention(Lab& lab) {
  for (const bool in_memory : {true, false}) {
    for (const int head_dim : {128, 64}) {
      for (const int group : {1, 4}) {
        for (const int rows : {1, 2, 3, 5, 8}) {
          for (const KvRead read : {KvRead::kFull, KvRead::kUpper, KvRead::kBoth}) {
            add(lab, {in_memory, read, head_dim, group, rows});
          }
        }
      }
    }
  }
  for (const int group : {1, 4}) {
    for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
      for (const int rows : {1, 5}) add(lab, {true, read, 128, group, rows, 4});
    }
  }
}

}  // namespace quantspec
