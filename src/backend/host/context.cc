// Ranks that share contexts (params/context.h).
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/host/host.h"
#include "base/error.h"
#include "comm/comm.h"

namespace quantspec {

namespace {

constexpr std::size_t kAlignment = 64;

std::size_t table_bytes(std::size_t pages) {
  return (pages * sizeof(PagePlanes) + kAlignment - 1) / kAlignment * kAlignment;
}

// Of one layer, of some KV heads.
KvShape gathered_shape(const KvShape& shape, const KvHeads& heads) {
  return {1, heads.count, shape.head_dim, shape.page_size};
}

// Gathers the units of `kv`'s pages that `heads` read, turn by turn: so many pages that every rank
// has one run of each unit.
class Gatherer {
 public:
  Gatherer(const ContextGroup& group, const KvShape& shape, const KvView& kv)
      : group_(group),
        shape_(shape),
        kv_(kv),
        heads_(kv_heads_of(group, shape, shape.context_rank)),
        unit_bytes_(shape.unit_bytes()),
        run_(page_run(shape)) {}

  void run(const LayerPages& to) {
    const int count = static_cast<int>(kv_.pages.size());
    for (int first = 0; first < count; first += group_.size() * run_) {
      gather(first, std::min(group_.size() * run_, count - first), to);
    }
  }

 private:
  // Calls f(page, kv head, place in the piece) for what a rank gives of these heads.
  template <typename F>
  void for_units(int giver, const KvHeads& heads, int first, int count, const F& f) const {
    const int most = std::min(run_, count);
    for (int i = 0; i < heads.count; ++i) {
      const int kv_head = heads.first + i;
      const int begins = rank_of_turn(shape_, first / run_, kv_.layer, kv_head);
      const int turn = (giver - begins + group_.size()) % group_.size();
      for (int k = 0; k < most && turn * run_ + k < count; ++k) {
        f(first + turn * run_ + k, kv_head, (i * most + k) * unit_bytes_);
      }
    }
  }

  void gather(int first, int count, const LayerPages& to) {
    const std::size_t piece = heads_.count * std::min(run_, count) * unit_bytes_;
    given_.resize(piece * group_.size());
    got_.resize(given_.size());
    const std::size_t upper = shape_.upper_unit_bytes(), lower = shape_.lower_unit_bytes();
    for (int getter = 0; getter < group_.size(); ++getter) {
      std::byte* out = given_.data() + getter * piece;
      const KvHeads heads = kv_heads_of(group_, shape_, getter);
      for_units(shape_.context_rank, heads, first, count, [&](int page, int head, std::size_t at) {
        const PagePlanes& planes = kv_.pages[page];
        std::memcpy(out + at, planes.upper + own_upper_offset(shape_, kv_.layer, head), upper);
        std::memcpy(out + at + upper, planes.lower + own_lower_offset(shape_, kv_.layer, head),
                    lower);
      });
    }
    group_.ranks->all_to_all(got_, given_, group_.size());
    for (int giver = 0; giver < group_.size(); ++giver) {
      const std::byte* in = got_.data() + giver * piece;
      for_units(giver, heads_, first, count, [&](int page, int head, std::size_t at) {
        std::memcpy(to.upper(page, head), in + at, upper);
        std::memcpy(to.lower(page, head), in + at + upper, lower);
      });
    }
  }

  const ContextGroup& group_;
  const KvShape& shape_;
  const KvView& kv_;
  KvHeads heads_;
  std::size_t unit_bytes_;
  int run_;
  std::vector<std::byte> given_, got_;
};

}  // namespace

int ContextGroup::rank() const { return ranks != nullptr ? ranks->rank() % size() : 0; }

int ContextGroup::head_ranks() const { return ranks != nullptr ? ranks->size() / size() : 1; }

KvHeads kv_heads_of(const ContextGroup& group, const KvShape& shape, int rank) {
  check(shape.context_ranks == group.size() && shape.context_rank == group.rank() &&
            shape.num_kv_heads % group.shares() == 0,
        "a cache has the KV heads of those that share its contexts");
  const int count = shape.num_kv_heads / group.shares();
  return {rank / group.groups.alike * count, count};
}

KvHeads HostBackend::own_kv_heads(const KvShape& shape) const {
  return kv_heads_of(group_, shape, group_.rank());
}

std::size_t HostBackend::unpacked_bytes(const KvShape& shape, int tokens) const {
  if (!group_.shared()) return 0;
  const std::size_t pages = tokens / shape.page_size;
  return table_bytes(pages) +
         pages * gathered_shape(shape, kv_heads_of(group_, shape, group_.rank())).page_bytes();
}

void HostBackend::attend_in_parts(
    const PrefillAttentionParams& params,
    const std::function<void(const PrefillAttentionParams&)>& attend) {
  const int parts = group_.groups.alike;
  if (parts == 1) return attend(params);
  const std::size_t width = static_cast<std::size_t>(params.num_heads) * params.shape.head_dim;
  const int rows = (params.num_rows + parts - 1) / parts, own = group_.ranks->rank() % parts;
  const auto first_of = [&](int part) { return std::min(params.num_rows, part * rows); };
  const int first = first_of(own), count = first_of(own + 1) - first;
  PrefillAttentionParams part = params;
  part.q += first * width;
  part.out += first * width;
  part.first_position += first;
  part.num_rows = count;
  if (count > 0) attend(part);
  const std::size_t piece = rows * width;
  given_.resize(parts * piece);
  gathered_.resize(parts * piece);
  for (int to = 0; to < parts; ++to) {
    std::copy_n(part.out, count * width, given_.data() + to * piece);
  }
  group_.ranks->all_to_all(std::as_writable_bytes(std::span(gathered_)),
                           std::as_bytes(std::span(given_)), parts);
  for (int from = 0; from < parts; ++from) {
    if (from == own) continue;
    std::copy_n(gathered_.data() + from * piece, (first_of(from + 1) - first_of(from)) * width,
                params.out + first_of(from) * width);
  }
}

LayerPages HostBackend::pages_of_queries(const KvShape& shape, const KvView& kv, std::byte* room,
                                         bool gathers) const {
  if (!group_.shared() || kv.pages.empty()) return {kv.pages, shape, kv.layer, 0};
  const KvHeads heads = own_kv_heads(shape);
  const KvShape gathered = gathered_shape(shape, heads);
  auto* table = reinterpret_cast<PagePlanes*>(room);
  std::byte* at = room + table_bytes(kv.pages.size());
  for (std::size_t page = 0; page < kv.pages.size(); ++page, at += gathered.page_bytes()) {
    table[page] = {at, at + gathered.units() * gathered.upper_unit_bytes()};
  }
  const LayerPages pages{{table, kv.pages.size()}, gathered, 0, heads.first};
  if (gathers) Gatherer(group_, shape, kv).run(pages);
  return pages;
}

}  // namespace quantspec
