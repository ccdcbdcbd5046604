#include "kv_cache/gathered_kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr int kSinks = 16;  // of kStreaming
constexpr int kSnapQueries = 32;
constexpr int kSnapPool = 5;  // an odd width
constexpr int kChunk = 8;     // of kRetrieval

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Slots of the window of kStreaming: the ring, of more than one page, covers the rest.
int window_slots(const KvAccess& access, int page_size) {
  return round_up(std::max(0, access.budget - kSinks - page_size), 16);
}

// Slots for a text of `capacity` tokens of which those from `end` on leave the ring later.
int slots(const KvShape& shape, const KvAccess& access, int end, int capacity) {
  switch (access.tokens) {
    case KvTokens::kStreaming:
      return kSinks + window_slots(access, shape.page_size);
    case KvTokens::kSnap:  // it grows by what leaves the ring
      return round_up(std::min(end, access.budget - kSnapQueries) + capacity - end, 16);
    default:
      return round_up(access.budget, 16);
  }
}

void require_budget(const KvAccess& access) {
  const int least = access.tokens == KvTokens::kSnap        ? kSnapQueries + 1
                    : access.tokens == KvTokens::kStreaming ? kSinks + 1
                                                            : kChunk;
  if (access.budget >= least) return;
  fail(ErrorKind::kInvalidRequest, "--draft-budget {}: this plan needs at least {} tokens",
       access.budget, least);
}

float dot(const float* a, const float* b, int count) {
  float sums[16] = {};
  for (int i = 0; i < count; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), 0.0f);
}

// The `count` greatest of scores[0, n) by falling score; ties go to the earlier.
std::vector<int> greatest(const std::vector<double>& scores, int n, int count) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  order.resize(count);
  return order;
}

// Adds to total[s] the softmax of q . k[s] / sqrt(head_dim) over the positions s <= last.
void add_attention(const float* q, const float* keys, int head_dim, int last,
                   std::vector<float>& scores, std::vector<double>& total) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  float most = -INFINITY;
  for (int s = 0; s <= last; ++s) {
    scores[s] = scale * dot(q, keys + static_cast<std::ptrdiff_t>(s) * head_dim, head_dim);
    most = std::max(most, scores[s]);
  }
  double sum = 0;
  for (int s = 0; s <= last; ++s) sum += scores[s] = std::exp(scores[s] - most);
  for (int s = 0; s <= last; ++s) total[s] += scores[s] / sum;
}

// The mean over kSnapPool neighbours, those beyond the ends counted as 0.
std::vector<double> pooled(const std::vector<double>& x, int count) {
  std::vector<double> out(count);
  for (int i = 0; i < count; ++i) {
    const int begin = std::max(0, i - kSnapPool / 2), end = std::min(count, i + kSnapPool / 2 + 1);
    out[i] = std::accumulate(x.begin() + begin, x.begin() + end, 0.0) / kSnapPool;
  }
  return out;
}

}  // namespace

std::vector<int> snap_positions(std::span<const float> keys, std::span<const float> queries,
                                const KvShape& shape, int num_heads, int length, int end,
                                int count) {
  const int dim = shape.head_dim, group = num_heads / shape.num_kv_heads;
  const int rows = static_cast<int>(queries.size()) / (num_heads * dim);
  std::vector<int> positions;
  std::vector<float> scores(length);
  for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const float* k = keys.data() + static_cast<std::ptrdiff_t>(kv_head) * length * dim;
    std::vector<double> total(length, 0.0);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < group; ++i) {
        const int head = kv_head * group + i;
        const float* q = queries.data() + static_cast<std::ptrdiff_t>(row * num_heads + head) * dim;
        add_attention(q, k, dim, length - rows + row, scores, total);
      }
    }
    std::vector<int> best = greatest(pooled(total, length - rows), end, count);
    std::sort(best.begin(), best.end());
    positions.insert(positions.end(), best.begin(), best.end());
  }
  return positions;
}

std::vector<int> retrieval_positions(std::span<const float> keys, std::span<const float> query,
                                     const KvShape& shape, int num_heads, int length, int end,
                                     int count) {
  const int dim = shape.head_dim, group = num_heads / shape.num_kv_heads, chunks = end / kChunk;
  std::vector<int> positions;
  for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const float* k = keys.data() + static_cast<std::ptrdiff_t>(kv_head) * length * dim;
    std::vector<double> scores(chunks, 0.0);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      // The product with the mean is the mean of the products.
      for (int i = 0; i < group * kChunk; ++i) {
        scores[chunk] +=
            dot(query.data() + (kv_head * group + i / kChunk) * dim,
                k + static_cast<std::ptrdiff_t>(chunk * kChunk + i % kChunk) * dim, dim);
      }
    }
    scores[0] = INFINITY;
    for (const int chunk : greatest(scores, chunks, count / kChunk)) {
      for (int i = 0; i < kChunk; ++i) positions.push_back(chunk * kChunk + i);
    }
  }
  return positions;
}

GatheredKv::GatheredKv(Backend& backend, const KvShape& shape, const KvAccess& access, int capacity)
    : backend_(&backend),
      shape_(shape),
      access_(access),
      cache_capacity_(capacity),
      layers_(shape.num_layers) {
  check(access.gathers(), "an access that gathers tokens");
  require_budget(access);
}

GatheredKv::GatheredKv(const GatheredKv& other)
    : backend_(other.backend_),
      shape_(other.shape_),
      access_(other.access_),
      cache_capacity_(other.cache_capacity_),
      capacity_(other.capacity_),
      layer_bytes_(other.layer_bytes_),
      data_(backend_->allocate(other.data_.size())),
      layers_(other.layers_) {
  if (data_.size() > 0) std::memcpy(data_.data(), other.data_.data(), data_.size());
}

void GatheredKv::clear() {
  layers_.assign(layers_.size(), {});
  capacity_ = 0;
}

// For a text that begins anew. Its first layer comes first.
void GatheredKv::allocate(int slots) {
  capacity_ = slots;
  layer_bytes_ = backend_->full_kv_bytes(shape_, slots);
  data_ = Buffer();  // never both
  data_ = backend_->allocate(shape_.num_layers * layer_bytes_);
}

int GatheredKv::query_rows() const {
  switch (access_.tokens) {
    case KvTokens::kSnap:
      return kSnapQueries;
    case KvTokens::kRetrieval:
      return 1;
    default:
      return 0;
  }
}

FullKv GatheredKv::full(int layer) const {
  return {data_.data() + layer * layer_bytes_, capacity_};
}

void GatheredKv::choose(int layer, FullKv prompt, int length, int end,
                        std::span<const float> queries, int num_heads) {
  Layer& at = layers_[layer];
  at = {};
  if (layer == 0) allocate(slots(shape_, access_, end, cache_capacity_));
  if (access_.tokens == KvTokens::kStreaming) {
    add_run(layer, prompt, 0, std::min(end, kSinks), 0);
    at.count = std::min(end, kSinks);
    const int window = std::min(end - at.count, capacity_ - kSinks);
    add(layer, prompt, end - window, window);
    return;
  }
  const int wanted = access_.tokens == KvTokens::kSnap ? access_.budget - kSnapQueries
                                                       : access_.budget / kChunk * kChunk;
  const int candidates = access_.tokens == KvTokens::kSnap ? end : end / kChunk * kChunk;
  const int count = std::min(wanted, candidates);
  if (count == 0) return;
  const int dim = shape_.head_dim;
  std::vector<float> keys(static_cast<std::size_t>(shape_.num_kv_heads) * length * dim);
  std::vector<float> value(dim);
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    for (int p = 0; p < length; ++p) {
      float* key = keys.data() + (static_cast<std::size_t>(head) * length + p) * dim;
      backend_->read_full_kv(shape_, prompt, head, p, key, value.data());
    }
  }
  const auto choose = access_.tokens == KvTokens::kSnap ? snap_positions : retrieval_positions;
  backend_->gather_full_kv(shape_, prompt, full(layer),
                           choose(keys, queries, shape_, num_heads, length, end, count), 0);
  at.count = at.next = count;
}

// The same positions for every kv head, to consecutive slots.
void GatheredKv::add_run(int layer, FullKv source, int first, int count, int slot) {
  if (count <= 0) return;
  std::vector<int> positions;
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    for (int i = 0; i < count; ++i) positions.push_back(first + i);
  }
  backend_->gather_full_kv(shape_, source, full(layer), positions, slot);
}

void GatheredKv::add(int layer, FullKv ring, int first, int count) {
  if (capacity_ == 0) allocate(slots(shape_, access_, 0, cache_capacity_));  // no prompt came
  Layer& at = layers_[layer];
  switch (access_.tokens) {
    case KvTokens::kSnap:
      add_run(layer, ring, first, count, at.count);
      at.count += count;
      return;
    case KvTokens::kStreaming: {
      // Position p lies in slot kSinks + (p - kSinks) mod window; the first ones are sinks.
      const int sinks = std::clamp(kSinks - first, 0, count);
      add_run(layer, ring, first, sinks, first);
      const int window = capacity_ - kSinks;
      const int kept = std::min(count - sinks, window);
      for (int p = first + count - kept; p < first + count;) {
        const int slot = (p - kSinks) % window;
        const int run = std::min(first + count - p, window - slot);
        add_run(layer, ring, p, run, kSinks + slot);
        p += run;
      }
      at.count = std::min({at.count + count, first + count, capacity_});
      return;
    }
    default: {  // where there is room, then in place of the lowest scores: from the end, again
      const int appended = std::min(count, capacity_ - at.count);
      add_run(layer, ring, first, appended, at.count);
      at.count += appended;
      if (appended > 0) at.next = at.count;
      int left = std::min(count - appended, at.count);
      while (left > 0) {
        const int run = std::min(left, at.next);
        add_run(layer, ring, first + count - left, run, at.next - run);
        at.next = at.next == run ? at.count : at.next - run;
        left -= run;
      }
    }
  }
}

}  // namespace quantspec
