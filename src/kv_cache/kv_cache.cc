#include "kv_cache/kv_cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backend/params/view.h"
#include "base/error.h"
#include "base/fields.h"
#include "kv_cache/gathered_tokens.h"
#include "kv_cache/prompt_tails.h"

namespace quantspec {

namespace {

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Whether every position of the layer stays in full precision.
bool keeps_all(const KvOptions& options, int layer) {
  return options.store == KvStore::kFull ||
         std::ranges::find(options.full_layers, layer) != options.full_layers.end();
}

// NOTE: who gathers tokens chooses among the prompt's K and V in full precision, as the published
// methods do, whose targets keep them anyway.
bool gathers(const KvOptions& options) {
  return std::ranges::any_of(options.accesses, &KvAccess::gathers);
}

int ring_capacity(const KvShape& shape, int capacity, const KvOptions& options, int layer) {
  const bool all = keeps_all(options, layer) || gathers(options);
  return all ? round_up(capacity, 16) : 2 * shape.page_size;
}

}  // namespace

KvCache::KvCache(KvCache&& other) noexcept = default;
KvCache& KvCache::operator=(KvCache&& other) noexcept = default;
KvCache::~KvCache() = default;

std::size_t KvCache::gathered_bytes() const {
  return gathered_ == nullptr ? 0 : gathered_->bytes();
}

KvCache::KvCache(KvOps& ops, PagePool& pool, int capacity, KvOptions options)
    : ops_(&ops),
      pool_(&pool),
      options_(std::move(options)),
      lengths_(capacity, pool.shape().page_size,
               options_.chunk > 0 ? options_.chunk : ops.prefill_chunk(),
               options_.store != KvStore::kFull),
      selector_(ops, pool.shape()) {
  for (const int layer : options_.full_layers) {
    if (layer >= 0 && layer < shape().num_layers) continue;
    fail(ErrorKind::kInvalidRequest, "the target's layer {} in full precision: there are 0 to {}",
         layer, shape().num_layers - 1);
  }
  if (options_.store == KvStore::kFull && !options_.accesses.empty()) {
    fail(ErrorKind::kInvalidRequest,
         "{} full has no pages, which this plan chooses from or replaces; {} hierarchical works",
         field::kKvCache, field::kKvCache);
  }
  ring_ = ops.allocate(ring_bytes_for(shape(), ops, capacity, options_));
  std::byte* end = ring_.data();
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    rings_.push_back({end, ring_capacity(shape(), capacity, options_, layer)});
    end += ops.full_kv_bytes(shape(), rings_.back().capacity);
  }
  for (const KvAccess& access : options_.accesses) {
    chooses_pages_ |= access.chooses_pages();
    records_mass_ |= access.tokens == KvTokens::kByMass;
  }
  if (gathers(options_)) {
    check(options_.gathered != nullptr, "what accesses gather comes with the options");
    gathered_ = options_.gathered->fork(options_.accesses);
  }
  allocate_tables();
  if (chooses_pages_) selector_.reserve(max_pages());
}

KvCache::KvCache(const KvCache& other, std::vector<KvAccess> accesses)
    : ops_(other.ops_),
      pool_(other.pool_),
      options_(other.options_),
      lengths_(other.lengths_),
      pages_(other.pages_),
      ring_(ops_->allocate(other.ring_.size())),
      rings_(other.rings_),
      selector_(other.selector_) {
  const std::byte* from = other.rings_.front().data;
  ops_->copy(ring_.data(), from, ring_.size());
  for (FullKv& ring : rings_) ring.data = ring_.data() + (ring.data - from);
  options_.accesses = std::move(accesses);
  for (const KvAccess& access : options_.accesses) {
    chooses_pages_ |= access.chooses_pages();
    records_mass_ |= access.tokens == KvTokens::kByMass;
    check(other.supports(0, access), "a fork reads what the cache has");
  }
  if (gathers(options_)) gathered_ = other.gathered_->fork(options_.accesses);
  allocate_tables();
  ops_->copy(planes_.data(), other.planes_.data(), pages_.size() * sizeof(PagePlanes));
}

void KvCache::allocate_tables() {
  const std::size_t pages = capacity() / shape().page_size;
  pages_.reserve(pages);
  planes_ = ops_->allocate(pages * sizeof(PagePlanes));
}

KvCache KvCache::fork(std::vector<KvAccess> accesses) const {
  return KvCache(*this, std::move(accesses));
}

void KvCache::reserve(int rows) {
  lengths_.require_room(rows);
  commit();
  lengths_.reserve(rows);
}

void KvCache::commit() {
  if (!lengths_.page_due()) return;
  const int page = quantized() / shape().page_size;
  if (page == std::ssize(pages_)) {  // else a whole chunk of the prompt made it
    try {
      add_pages(1);
      ops_->quantize_pages(shape(), 0, rings_, quantized(), planes(page, page + 1));
    } catch (...) {  // else it would pass for one that was made
      pages_.erase(pages_.begin() + page, pages_.end());
      throw;
    }
  }
  for (const KvAccess& access : options_.accesses) {
    const auto listed = [&](int pages) {  // none where all are read
      const int read = access.pages_read(pages, shape().page_size);
      return read < pages ? read : 0;
    };
    list_changes_ += access.chooses_pages() && listed(page + 1) != listed(page);
  }
  if (gathered_ != nullptr) {
    gathered_->ring_left(rings_, quantized(), shape().page_size);
    ++list_changes_;
  }
  lengths_.page_made();
}

void KvCache::clear() {
  lengths_.clear();
  pages_.clear();
  selector_.clear();
  records_now_ = true;
  if (gathered_ != nullptr) gathered_->clear();
  ++list_changes_;
}

std::uint64_t KvCache::list_variant() const {
  if (!chooses_pages_ && gathered_ == nullptr) return 0;
  return 4 * list_changes_ + 2 * records_now_ + selector_.has_mass();
}

bool KvCache::supports(int layer, const KvAccess& access) const {
  if (access.read == KvRead::kFull) return keeps_all(options_, layer);
  if (!access.chooses_pages() && !access.gathers()) return true;
  return std::ranges::any_of(options_.accesses,
                             [&](const KvAccess& known) { return known.reads_alike(access); });
}

KvView KvCache::view(int layer, const KvAccess& access) const {
  check(supports(layer, access), "a pass reads what the cache was made to give");
  KvView view{.full = rings_[layer], .layer = layer, .read = access.read};
  if (options_.store == KvStore::kFull || access.read == KvRead::kFull) {
    if (access.read == KvRead::kFull) view.read = KvRead::kBoth;
    view.all_full = true;
    return view;
  }
  const int num_pages = quantized() / shape().page_size;
  view.first_full = quantized();
  if (access.tokens != KvTokens::kNone && !access.gathers()) view.pages = planes(0, num_pages);
  if (access.record_mass && records_mass_ && records_now_) view.page_mass = selector_.mass(layer);
  if (access.tokens == KvTokens::kByBound ||
      (access.tokens == KvTokens::kByMass && !keeps_all(options_, layer) && selector_.has_mass())) {
    view.page_lists =
        selector_.lists(layer, num_pages, access.pages_read(num_pages, shape().page_size));
    const bool by_mass = access.tokens == KvTokens::kByMass;
    view.page_scores = by_mass ? selector_.mass(layer) : selector_.bounds();
  }
  if (access.gathers()) gathered_->show(access, view);
  return view;
}

void KvCache::add_pages(int count) {
  pool_->reserve(count > 1 ? count : 0);
  constexpr int kAtOnce = 64;
  std::array<PagePlanes, kAtOnce> planes;
  while (count > 0) {
    const int now = std::min(count, kAtOnce);
    auto* to = planes_.as<PagePlanes>() + pages_.size();
    for (int i = 0; i < now; ++i) {
      pages_.push_back(pool_->allocate());
      planes[i] = pages_.back().planes();
    }
    ops_->upload(to, planes.data(), now * sizeof(PagePlanes));
    count -= now;
  }
}

std::span<const PagePlanes> KvCache::planes(int first_page, int num_pages) const {
  return {planes_.as<PagePlanes>() + first_page, planes_.as<PagePlanes>() + num_pages};
}

int KvCache::begin_prompt(int num_tokens) {
  lengths_.begin_prompt(num_tokens);
  pages_.erase(pages_.begin() + std::min<int>(pages_.size(), length() / shape().page_size),
               pages_.end());
  selector_.clear();
  if (gathered_ != nullptr) gathered_->clear();
  ++list_changes_;
  return length();
}

void KvCache::share(std::span<const PageRef> pages) {
  const int page_size = shape().page_size, more = std::ssize(pages) * page_size;
  check(lengths_.at_chunk() && length() == std::ssize(pages_) * page_size && more % chunk() == 0 &&
            !gathers(options_) && options_.store != KvStore::kFull && options_.full_layers.empty(),
        "whole chunks are attached to whole chunks");
  lengths_.require_room(more);
  std::vector<PagePlanes> planes;
  for (const PageRef& page : pages) {
    pages_.push_back(page);
    planes.push_back(page.planes());
  }
  ops_->upload(planes_.as<PagePlanes>() + length() / page_size, planes.data(),
               planes.size() * sizeof(PagePlanes));
}

void KvCache::attach(std::span<const PageRef> pages, const PromptTail* tail) {
  share(pages);
  const int tokens = static_cast<int>(std::ssize(pages)) * shape().page_size;
  const int end = length() + tokens;
  const bool has_ring = tail != nullptr && tail->start() == end;
  lengths_.attach_prompt(tokens, has_ring ? std::min(tail->first(), end) : end);
  const int count = end - lengths_.in_ring();
  if (count == 0) return;
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    tail->read(layer, rings_[layer], lengths_.in_ring(), count);
  }
}

std::span<const PageRef> KvCache::pages_of(int first, int last) const {
  const int page_size = shape().page_size;
  return std::span(pages_).subspan(first / page_size, (last - first) / page_size);
}

void KvCache::end_prompt() {
  if (gathered_ != nullptr) gathered_->prompt_read(rings_, length(), quantized());
  ++list_changes_;
}

std::size_t KvCache::slots_to_save(const HostPages& host, int first) const {
  return pages_.size() - first / shape().page_size + host.slots_for(ring_.size());
}

KvCache::Saved KvCache::save(HostPages& host, int first) const {
  check(first % chunk() == 0 && first <= lengths_.prompt() && gathered_ == nullptr,
        "what can be saved");
  const std::span<const PageRef> pages(pages_);
  return {first, lengths_, host.save(pages.subspan(first / shape().page_size)),
          host.save(std::span(ring_.data(), ring_.size()))};
}

void KvCache::restore(HostPages& host, const Saved& saved) {
  const int first_page = saved.first / shape().page_size;
  check(length() == saved.first && std::ssize(pages_) == first_page, "what was saved follows this");
  add_pages(static_cast<int>(saved.pages.slots()));
  host.restore(saved.pages, std::span(pages_).subspan(first_page));
  host.restore(saved.ring, std::span(ring_.data(), ring_.size()));
  lengths_.restore(saved.lengths);
  selector_.clear();
  ++list_changes_;
}

KvCache::Chunk::Chunk(KvCache& cache, int num_tokens, std::byte* scratch)
    : cache_(cache),
      first_(cache.length()),
      end_(first_ + num_tokens),
      first_page_(static_cast<int>(cache.pages_.size())),
      scratch_{scratch, cache.chunk()} {
  cache.lengths_.require_room(num_tokens);
  cache.add_pages(std::max(0, cache.lengths_.pages_with_chunk(num_tokens) - first_page_));
}

KvCache::Chunk::~Chunk() {
  if (!finished_) cache_.clear();
}

KvView KvCache::Chunk::view(int layer) const {
  const bool all_full = keeps_all(cache_.options_, layer);
  const bool in_ring = all_full || gathers(cache_.options_);
  const int pages = all_full ? 0 : first_ / cache_.shape().page_size;
  return {.pages = cache_.planes(0, pages),
          .full = in_ring ? cache_.rings_[layer] : scratch_,
          .first_full = all_full ? 0 : first_,
          .layer = layer,
          .read = KvRead::kBoth,
          .all_full = all_full};
}

void KvCache::Chunk::take(int layer, const PromptTail& tail, int count) {
  check(tail.start() == first_ && count < num_tokens() && query_rows() == 0,
        "a tail is of this chunk, and its last row is read");
  tail.read(layer, view(layer).full, first_, count);
}

void KvCache::Chunk::save(int layer, PromptTail& tail) const {
  tail.write(layer, cache_.rings_[layer], view(layer).full, first_);
}

int KvCache::Chunk::query_rows() const {
  return cache_.gathered_ == nullptr ? 0 : std::min(cache_.gathered_->query_rows(), num_tokens());
}

void KvCache::Chunk::end_layer(int layer, std::span<const float> queries, int num_heads) {
  const KvShape& shape = cache_.shape();
  const FullKv full = view(layer).full;
  const int first_page = first_ / shape.page_size,
            num_pages = static_cast<int>(cache_.pages_.size());
  if (num_pages > first_page) {
    cache_.ops_->quantize_pages(shape, layer, {&full, 1}, first_,
                                cache_.planes(first_page, num_pages));
  }
  if (full.data != cache_.rings_[layer].data) {
    const int from = std::max(first_, cache_.lengths_.first_full(end_));
    cache_.ops_->copy_full_kv(shape, full, cache_.rings_[layer], from, end_ - from);
  }
  const std::size_t row = static_cast<std::size_t>(num_heads) * shape.head_dim;
  check(queries.size() == query_rows() * row, "the queries that a chunk wants");
  if (cache_.gathered_ != nullptr) {
    cache_.gathered_->chunk_read(layer, first_ == 0, queries, num_heads);
  }
}

void KvCache::Chunk::finish() {
  cache_.lengths_.add_prompt(num_tokens());
  finished_ = true;
}

std::size_t KvCache::page_bytes_for(const KvShape& shape, int capacity, KvStore store) {
  if (store == KvStore::kFull) return 0;
  return capacity / shape.page_size * shape.page_bytes();  // a chunk's pages run ahead
}

std::size_t KvCache::ring_bytes_for(const KvShape& shape, const KvOps& ops, int capacity,
                                    const KvOptions& options) {
  std::size_t bytes = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    bytes += ops.full_kv_bytes(shape, ring_capacity(shape, capacity, options, layer));
  }
  return bytes;
}

std::size_t KvCache::table_bytes_for(const KvShape& shape, int capacity, const KvOptions& options) {
  const int pages = capacity / shape.page_size;
  const bool chooses = std::ranges::any_of(options.accesses, &KvAccess::chooses_pages);
  return pages * sizeof(PagePlanes) + (chooses ? PageSelector::bytes_for(shape, pages) : 0);
}

std::size_t KvCache::chunk_scratch_bytes(const KvShape& shape, const KvOps& ops, int chunk) {
  return ops.full_kv_bytes(shape, chunk);
}

}  // namespace quantspec
