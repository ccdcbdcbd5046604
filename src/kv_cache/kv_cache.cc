#include "kv_cache/kv_cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Whether every position of the layer stays in full precision.
bool keeps_all(const KvOptions& options, int layer) {
  return options.store == KvStore::kFull ||
         std::ranges::find(options.full_layers, layer) != options.full_layers.end();
}

int ring_capacity(const KvShape& shape, int capacity, const KvOptions& options, int layer) {
  return keeps_all(options, layer) ? round_up(capacity, 16) : 2 * shape.page_size;
}

}  // namespace

KvCache::KvCache(Backend& backend, PagePool& pool, int capacity, KvOptions options)
    : backend_(&backend),
      pool_(&pool),
      capacity_(capacity),
      options_(std::move(options)),
      selector_(backend, pool.shape()) {
  check(capacity >= 1, "a KV cache holds at least one token");
  for (const int layer : options_.full_layers) {
    if (layer >= 0 && layer < shape().num_layers) continue;
    fail(ErrorKind::kInvalidRequest, "the target's layer {} in full precision: there are 0 to {}",
         layer, shape().num_layers - 1);
  }
  if (options_.store == KvStore::kFull && !options_.accesses.empty()) {
    fail(ErrorKind::kInvalidRequest,
         "--kv-cache full has no pages, which this plan chooses from or replaces; --kv-cache "
         "hierarchical works");
  }
  ring_ = backend.allocate(ring_bytes_for(shape(), backend, capacity, options_));
  std::byte* end = ring_.data();
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    rings_.push_back({end, ring_capacity(shape(), capacity, options_, layer)});
    end += backend.full_kv_bytes(shape(), rings_.back().capacity);
  }
  for (const KvAccess& access : options_.accesses) {
    chooses_pages_ |= access.chooses_pages();
    records_mass_ |= access.tokens == KvTokens::kByMass;
    if (access.gathers() && gathered(access) == nullptr) {
      gathered_.emplace_back(backend, shape(), access);
    }
  }
  reserve();
  if (chooses_pages_) selector_.reserve(max_pages());
}

KvCache::KvCache(const KvCache& other, std::vector<KvAccess> accesses)
    : backend_(other.backend_),
      pool_(other.pool_),
      capacity_(other.capacity_),
      options_(other.options_),
      length_(other.length_),
      quantized_(other.quantized_),
      pages_(other.pages_),
      ring_(backend_->allocate(other.ring_.size())),
      rings_(other.rings_),
      selector_(other.selector_) {
  const std::byte* from = other.rings_.front().data;
  backend_->copy(ring_.data(), from, ring_.size());
  for (FullKv& ring : rings_) ring.data = ring_.data() + (ring.data - from);
  options_.accesses = std::move(accesses);
  for (const KvAccess& access : options_.accesses) {
    chooses_pages_ |= access.chooses_pages();
    records_mass_ |= access.tokens == KvTokens::kByMass;
    if (!access.gathers() || gathered(access) != nullptr) continue;
    const GatheredKv* tokens = other.gathered(access);
    check(tokens != nullptr, "a fork reads what the cache has gathered");
    gathered_.push_back(*tokens);
  }
  reserve();
  backend_->copy(planes_.data(), other.planes_.data(), pages_.size() * sizeof(PagePlanes));
}

void KvCache::reserve() {
  const std::size_t pages = max_pages();
  pages_.reserve(pages);
  planes_ = backend_->allocate(pages * sizeof(PagePlanes));
}

KvCache KvCache::fork(std::vector<KvAccess> accesses) const {
  return KvCache(*this, std::move(accesses));
}

int KvCache::max_extend() const {
  const int room = capacity_ - length_;
  if (options_.store == KvStore::kFull) return room;
  return std::min(shape().page_size - length_ % shape().page_size, room);
}

void KvCache::require_room(int num_tokens) const {
  if (num_tokens > capacity_ - length_) {
    fail(ErrorKind::kInvalidRequest,
         "the context is full: {} tokens in it, {} more wanted, {} the most (--ctx-size)", length_,
         num_tokens, capacity_);
  }
}

int KvCache::extend(int num_tokens) {
  require_room(num_tokens);
  check(num_tokens >= 1 && num_tokens <= max_extend(), "a forward spans a page boundary");
  check(quantized_ == first_full(length_), "extend before commit");
  const int first = length_;
  length_ += num_tokens;
  return first;
}

void KvCache::truncate(int new_length) {
  check(committed() <= new_length && new_length <= length_, "truncate beyond what is speculative");
  length_ = new_length;
}

void KvCache::commit() {
  const int target = first_full(length_);
  if (target == quantized_) return;
  check(target == quantized_ + shape().page_size, "commit missed a page");
  const int first_page = static_cast<int>(pages_.size());
  add_pages(1);
  backend_->quantize_pages(shape(), 0, rings_, quantized_, planes(first_page));
  for (const KvAccess& access : options_.accesses) {  // a list begins
    list_changes_ += access.chooses_pages() && budget_pages(access) == first_page;
  }
  for (GatheredKv& tokens : gathered_) {
    for (int layer = 0; layer < shape().num_layers; ++layer) {
      const int count = tokens.count(layer);
      tokens.add(layer, rings_[layer], quantized_, shape().page_size);
      list_changes_ += tokens.count(layer) != count;
    }
  }
  quantized_ = target;
}

void KvCache::clear() {
  length_ = 0;
  quantized_ = 0;
  pages_.clear();
  selector_.clear();
  for (GatheredKv& tokens : gathered_) tokens.clear();
  ++list_changes_;
}

int KvCache::list_variant() const {
  if (!chooses_pages_ && gathered_.empty()) return 0;
  return 2 * list_changes_ + selector_.has_mass();
}

const GatheredKv* KvCache::gathered(const KvAccess& access) const {
  for (const GatheredKv& tokens : gathered_) {
    if (tokens.access().tokens == access.tokens && tokens.access().budget == access.budget) {
      return &tokens;
    }
  }
  return nullptr;
}

std::size_t KvCache::gathered_bytes() const {
  std::size_t bytes = 0;
  for (const GatheredKv& tokens : gathered_) bytes += tokens.bytes();
  return bytes;
}

bool KvCache::supports(int layer, const KvAccess& access) const {
  if (access.read == KvRead::kFull) return keeps_all(options_, layer);
  if (access.gathers()) return gathered(access) != nullptr;
  if (!access.chooses_pages()) return true;
  return std::ranges::any_of(options_.accesses, [&](const KvAccess& known) {
    return known.tokens == access.tokens && known.budget == access.budget;
  });
}

KvView KvCache::view(int layer, const KvAccess& access) {
  check(supports(layer, access), "a pass reads what the cache was made to give");
  KvView view{.pages = planes(0), .full = rings_[layer], .first_full = quantized_, .layer = layer};
  view.all_full = options_.store == KvStore::kFull;
  if (access.read == KvRead::kFull) {
    view.pages = {};
    view.first_full = 0;
    view.all_full = true;
    return view;
  }
  view.read = access.read;
  if (access.record_mass && records_mass_) view.page_mass = selector_.record_mass(layer);
  if (access.tokens == KvTokens::kByMass) {
    view.page_lists =
        selector_.by_mass(layer, static_cast<int>(pages_.size()), budget_pages(access));
  }
  if (access.tokens == KvTokens::kNone || access.gathers()) view.pages = {};
  if (access.gathers()) {
    const GatheredKv& tokens = *gathered(access);
    view.gathered = tokens.full(layer);
    view.num_gathered = tokens.count(layer);
  }
  return view;
}

void KvCache::choose_pages(const KvAccess& access, const float* q, int num_heads, KvView& view) {
  if (access.tokens != KvTokens::kByBound) return;
  view.page_lists =
      selector_.by_bound({q, num_heads, shape(), view.layer, view.pages}, budget_pages(access));
}

int KvCache::budget_pages(const KvAccess& access) const {
  return std::max(1, access.budget / shape().page_size);
}

int KvCache::first_full(int length) const {
  return options_.store == KvStore::kFull ? 0 : first_full_position(length, shape().page_size);
}

void KvCache::add_pages(int count) {
  pool_->reserve(count > 1 ? count : 0);
  constexpr int kChunk = 64;
  std::array<PagePlanes, kChunk> planes;
  while (count > 0) {
    const int chunk = std::min(count, kChunk);
    auto* to = planes_.as<PagePlanes>() + pages_.size();
    for (int i = 0; i < chunk; ++i) {
      pages_.push_back(pool_->allocate());
      planes[i] = pages_.back().planes();
    }
    backend_->upload(to, planes.data(), chunk * sizeof(PagePlanes));
    count -= chunk;
  }
  if (chooses_pages_) selector_.set_num_pages(static_cast<int>(pages_.size()));
}

std::span<const PagePlanes> KvCache::planes(int first_page) const {
  return std::span(planes_.as<PagePlanes>(), pages_.size()).subspan(first_page);
}

KvCache::Prefill::Prefill(KvCache& cache, int num_tokens) : cache_(cache) {
  check(num_tokens >= 1, "a prefill needs a token");
  cache.require_room(num_tokens);
  cache.commit();
  const KvShape& shape = cache.shape();
  new_length_ = cache.length_ + num_tokens;
  new_quantized_ = cache.first_full(new_length_);
  full_.capacity = round_up(new_length_, 16);
  scratch_ = cache.backend_->allocate(cache.backend_->full_kv_bytes(shape, full_.capacity));
  full_.data = scratch_.data();
  cache.add_pages((new_quantized_ - cache.quantized_) / shape.page_size);
}

KvCache::Prefill::~Prefill() {
  if (!finished_) cache_.clear();
}

FullKv KvCache::Prefill::begin_layer(int layer) {
  const int pages = cache_.quantized_ / cache_.shape().page_size;
  const bool all_full = keeps_all(cache_.options_, layer);
  if (pages > 0 && !all_full) {
    cache_.backend_->load_pages(cache_.shape(), layer, cache_.planes(0).first(pages), KvRead::kBoth,
                                full_);
  }
  const int first = all_full ? 0 : cache_.quantized_;
  if (cache_.length_ > first) {
    cache_.backend_->copy_full_kv(cache_.shape(), cache_.rings_[layer], full_, first,
                                  cache_.length_ - first);
  }
  return full_;
}

int KvCache::Prefill::query_rows() const {
  int rows = 0;
  for (const GatheredKv& tokens : cache_.gathered_) rows = std::max(rows, tokens.query_rows());
  return std::min(rows, new_length_ - cache_.length_);
}

void KvCache::Prefill::end_layer(int layer, std::span<const float> queries, int num_heads) {
  const KvShape& shape = cache_.shape();
  const int old_pages = cache_.quantized_ / shape.page_size;
  if (new_quantized_ > cache_.quantized_) {
    cache_.backend_->quantize_pages(shape, layer, {&full_, 1}, cache_.quantized_,
                                    cache_.planes(old_pages));
  }
  const std::size_t row = static_cast<std::size_t>(num_heads) * shape.head_dim;
  check(queries.size() == query_rows() * row, "the queries that the prefill wants");
  for (GatheredKv& tokens : cache_.gathered_) {
    const std::size_t floats = std::min(queries.size(), tokens.query_rows() * row);
    tokens.choose(layer, full_, new_length_, new_quantized_, queries.last(floats), num_heads);
  }
  const int first = keeps_all(cache_.options_, layer) ? cache_.length_ : new_quantized_;
  cache_.backend_->copy_full_kv(shape, full_, cache_.rings_[layer], first, new_length_ - first);
}

void KvCache::Prefill::finish() {
  cache_.length_ = new_length_;
  cache_.quantized_ = new_quantized_;
  cache_.selector_.clear();  // what was attended to before the prompt says little
  ++cache_.list_changes_;
  finished_ = true;
}

std::size_t KvCache::page_bytes_for(const KvShape& shape, int capacity, KvStore store) {
  if (store == KvStore::kFull) return 0;
  const int pages = first_full_position(capacity, shape.page_size) / shape.page_size;
  return pages * PagePool::page_bytes(shape);
}

std::size_t KvCache::ring_bytes_for(const KvShape& shape, const Backend& backend, int capacity,
                                    const KvOptions& options) {
  std::size_t bytes = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    bytes += backend.full_kv_bytes(shape, ring_capacity(shape, capacity, options, layer));
  }
  return bytes;
}

std::size_t KvCache::gathered_bytes_for(const KvShape& shape, const Backend& backend,
                                        const KvOptions& options) {
  std::size_t bytes = 0;
  for (const KvAccess& access : options.accesses) {
    if (access.gathers()) bytes += GatheredKv::bytes_for(shape, backend, access);
  }
  return bytes;
}

std::size_t KvCache::scratch_bytes_for(const KvShape& shape, const Backend& backend, int capacity) {
  return backend.full_kv_bytes(shape, round_up(capacity, 16));
}

}  // namespace quantspec
