#include "kv_cache/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {

namespace {

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

int ring_capacity(const KvShape& shape, int capacity, KvStore store) {
  return store == KvStore::kFull ? round_up(capacity, 16) : 2 * shape.page_size;
}

}  // namespace

KvCache::KvCache(Backend& backend, PagePool& pool, int capacity, KvStore store)
    : backend_(&backend),
      pool_(&pool),
      capacity_(capacity),
      store_(store),
      ring_capacity_(ring_capacity(pool.shape(), capacity, store)),
      ring_layer_bytes_(backend.full_kv_bytes(pool.shape(), ring_capacity_)),
      ring_(backend.allocate(pool.shape().num_layers * ring_layer_bytes_)) {
  check(capacity >= 1, "a KV cache holds at least one token");
}

int KvCache::max_extend() const {
  const int room = capacity_ - length_;
  if (store_ == KvStore::kFull) return room;
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
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    backend_->quantize_pages(shape(), layer, ring(layer), quantized_, planes(first_page));
  }
  quantized_ = target;
}

void KvCache::clear() {
  length_ = 0;
  quantized_ = 0;
  planes_.clear();
  pages_.clear();
}

KvView KvCache::view(int layer, KvRead read) const { return {planes(0), ring(layer), layer, read}; }

int KvCache::first_full(int length) const {
  return store_ == KvStore::kFull ? 0 : first_full_position(length, shape().page_size);
}

FullKv KvCache::ring(int layer) const {
  return {ring_.data() + layer * ring_layer_bytes_, ring_capacity_};
}

void KvCache::add_pages(int count) {
  pool_->reserve(count > 1 ? count : 0);
  for (int i = 0; i < count; ++i) {
    pages_.push_back(pool_->allocate());
    planes_.push_back(*pages_.back());
  }
}

std::span<const PagePlanes> KvCache::planes(int first_page) const {
  return std::span(planes_).subspan(first_page);
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
  if (pages > 0) {
    cache_.backend_->load_pages(cache_.shape(), layer, cache_.planes(0).first(pages), KvRead::kBoth,
                                full_);
  }
  if (cache_.length_ > cache_.quantized_) {
    cache_.backend_->copy_full_kv(cache_.shape(), cache_.ring(layer), full_, cache_.quantized_,
                                  cache_.length_ - cache_.quantized_);
  }
  return full_;
}

void KvCache::Prefill::end_layer(int layer) {
  const KvShape& shape = cache_.shape();
  const int old_pages = cache_.quantized_ / shape.page_size;
  if (new_quantized_ > cache_.quantized_) {
    cache_.backend_->quantize_pages(shape, layer, full_, cache_.quantized_,
                                    cache_.planes(old_pages));
  }
  cache_.backend_->copy_full_kv(shape, full_, cache_.ring(layer), new_quantized_,
                                new_length_ - new_quantized_);
}

void KvCache::Prefill::finish() {
  cache_.length_ = new_length_;
  cache_.quantized_ = new_quantized_;
  finished_ = true;
}

std::size_t KvCache::page_bytes_for(const KvShape& shape, int capacity, KvStore store) {
  if (store == KvStore::kFull) return 0;
  const int pages = first_full_position(capacity, shape.page_size) / shape.page_size;
  return pages * PagePool::page_bytes(shape);
}

std::size_t KvCache::ring_bytes_for(const KvShape& shape, const Backend& backend, int capacity,
                                    KvStore store) {
  return shape.num_layers * backend.full_kv_bytes(shape, ring_capacity(shape, capacity, store));
}

std::size_t KvCache::scratch_bytes_for(const KvShape& shape, const Backend& backend, int capacity) {
  return backend.full_kv_bytes(shape, round_up(capacity, 16));
}

}  // namespace quantspec
