#include "rivals/gathered_kv.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/fields.h"

namespace quantspec {

namespace {

constexpr int kSinks = KvAccess::kSinks;
constexpr int kSnapQueries = KvAccess::kSnapQueries;
constexpr int kSnapPool = 5;    // an odd width
constexpr int kSnapRoom = 512;  // slots by which it grows
constexpr int kSegment = KvAccess::kRetrievalSegment;

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

void require_budget(const KvAccess& access) {
  const int least = access.tokens == KvTokens::kSnap        ? kSnapQueries + 1
                    : access.tokens == KvTokens::kStreaming ? kSinks + 1
                                                            : kSegment;
  if (access.budget.is_share()) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: drafts that gather tokens need their number before they know the text; {} 2048, "
         "say, works, and quantspec+sparse reads a share",
         field::kDraftBudget, access.budget.text(), field::kDraftBudget);
  }
  if (access.budget.tokens(0) >= least) return;
  fail(ErrorKind::kInvalidRequest, "{} {}: this plan needs at least {} tokens", field::kDraftBudget,
       access.budget.text(), least);
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

// What one kv head chooses by.
struct HeadText {
  const float* keys;     // [length, head_dim]
  const float* queries;  // [rows, num_heads, head_dim]
  int rows;
  int num_heads;
  int first_head;  // of the group
  int group;
  int head_dim;
  int length;

  const float* key(int position) const {
    return keys + static_cast<std::ptrdiff_t>(position) * head_dim;
  }
  const float* query(int row, int i) const {
    return queries + static_cast<std::ptrdiff_t>(row * num_heads + first_head + i) * head_dim;
  }
};

// Ascending positions in [0, end).
std::vector<int> snap_positions(const HeadText& text, int end, int count) {
  std::vector<float> scores(text.length);
  std::vector<double> total(text.length, 0.0);
  for (int row = 0; row < text.rows; ++row) {
    for (int i = 0; i < text.group; ++i) {
      add_attention(text.query(row, i), text.keys, text.head_dim, text.length - text.rows + row,
                    scores, total);
    }
  }
  std::vector<int> best = greatest(pooled(total, text.length - text.rows), end, count);
  std::sort(best.begin(), best.end());
  return best;
}

// Of whole segments in [0, end), by falling score.
std::vector<int> retrieval_positions(const HeadText& text, int end, int count) {
  const int segments = end / kSegment;
  std::vector<double> scores(segments, 0.0);
  for (int p = 0; p < segments * kSegment; ++p) {
    // The product with the mean is the mean of the products.
    for (int i = 0; i < text.group; ++i) {
      scores[p / kSegment] += dot(text.query(text.rows - 1, i), text.key(p), text.head_dim);
    }
  }
  scores[0] = INFINITY;
  std::vector<int> positions;
  for (const int segment : greatest(scores, segments, count / kSegment)) {
    for (int i = 0; i < kSegment; ++i) positions.push_back(segment * kSegment + i);
  }
  return positions;
}

}  // namespace

GatheredKv::GatheredKv(KvOps& ops, const KvBorders& borders, const KvShape& shape,
                       const KvAccess& access)
    : ops_(&ops), borders_(&borders), shape_(shape), access_(access), layers_(shape.num_layers) {
  check(access.gathers(), "an access that gathers tokens");
  require_budget(access);
  positions_.reserve(static_cast<std::size_t>(shape.num_kv_heads) * shape.page_size);
}

GatheredKv::GatheredKv(const GatheredKv& other)
    : ops_(other.ops_),
      borders_(other.borders_),
      shape_(other.shape_),
      access_(other.access_),
      layers_(other.layers_.size()) {
  positions_.reserve(other.positions_.capacity());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& from = other.layers_[i];
    layers_[i] = {ops_->allocate(from.data.size()), from.capacity, from.count, from.next};
    ops_->copy(layers_[i].data.data(), from.data.data(), from.data.size());
  }
}

void GatheredKv::clear() {
  layers_.clear();
  layers_.resize(shape_.num_layers);
}

std::size_t GatheredKv::bytes() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.data.size();
  return bytes;
}

std::size_t GatheredKv::most_bytes(const KvShape& shape, const KvOps& ops, const KvAccess& access,
                                   int capacity) {
  const int slots = access.tokens == KvTokens::kSnap ? capacity + kSnapRoom
                                                     : access.tokens_gathered(shape.page_size);
  return shape.num_layers * ops.full_kv_bytes(shape, round_up(slots, 16));
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

void GatheredKv::grow(Layer& layer, int slots) {
  if (slots <= layer.capacity) return;
  Layer larger;
  larger.capacity = round_up(slots, 16);
  larger.data = ops_->allocate(ops_->full_kv_bytes(shape_, larger.capacity));
  larger.next = layer.next;
  if (layer.count > 0) add_run(larger, layer.full(), 0, layer.count, 0);
  larger.count = layer.count;
  layer = std::move(larger);
}

void GatheredKv::choose(int layer, FullKv prompt, int length, int end,
                        std::span<const float> queries, int num_heads) {
  Layer& at = layers_[layer];
  at = {};
  if (access_.tokens == KvTokens::kStreaming) {
    const int sinks = std::min(end, kSinks);
    const int window = std::min(end - sinks, full_slots() - kSinks);
    add(layer, prompt, 0, sinks);
    add(layer, prompt, end - window, window);
    return;
  }
  const bool snap = access_.tokens == KvTokens::kSnap;
  const int candidates = snap ? end : end / kSegment * kSegment;
  const int count = std::min(full_slots(), candidates);
  if (count == 0) return;
  const int dim = shape_.head_dim, group = num_heads / shape_.num_kv_heads;
  std::vector<float> keys(static_cast<std::size_t>(length) * dim);
  std::vector<int> positions;
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    borders_->read_full_kv(shape_, prompt, head, 0, length, keys.data(), nullptr);
    const HeadText text{
        keys.data(), queries.data(), static_cast<int>(queries.size()) / (num_heads * dim),
        num_heads,   head * group,   group,
        dim,         length};
    const auto chosen =
        snap ? snap_positions(text, end, count) : retrieval_positions(text, end, count);
    positions.insert(positions.end(), chosen.begin(), chosen.end());
  }
  grow(at, snap ? count + kSnapRoom : full_slots());
  ops_->gather_full_kv(shape_, prompt, at.full(), positions, 0);
  at.count = at.next = count;
}

// The same positions for every kv head, to consecutive slots.
void GatheredKv::add_run(Layer& layer, FullKv source, int first, int count, int slot) {
  if (count <= 0) return;
  positions_.clear();
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    for (int i = 0; i < count; ++i) positions_.push_back(first + i);
  }
  ops_->gather_full_kv(shape_, source, layer.full(), positions_, slot);
}

void GatheredKv::add(int layer, FullKv ring, int first, int count) {
  Layer& at = layers_[layer];
  switch (access_.tokens) {
    case KvTokens::kSnap:
      if (at.count + count > at.capacity) grow(at, at.count + count + kSnapRoom);
      add_run(at, ring, first, count, at.count);
      at.count += count;
      return;
    case KvTokens::kStreaming:
      grow(at, full_slots());
      return add_to_window(at, ring, first, count);
    default:
      grow(at, full_slots());
      return replace_worst(at, ring, first, count);
  }
}

// Position p lies in slot kSinks + (p - kSinks) mod window; the first ones are sinks.
void GatheredKv::add_to_window(Layer& layer, FullKv ring, int first, int count) {
  const int end = first + count, window = full_slots() - kSinks;
  const int sinks = std::clamp(kSinks - first, 0, count);
  add_run(layer, ring, first, sinks, first);
  for (int p = std::max(first + sinks, end - window); p < end;) {
    const int slot = (p - kSinks) % window;
    const int run = std::min(end - p, window - slot);
    add_run(layer, ring, p, run, kSinks + slot);
    p += run;
  }
  layer.count = std::min({layer.count + count, end, kSinks + window});
}

// Where there is room, then in place of the lowest scores: from the last slot down, and again.
void GatheredKv::replace_worst(Layer& layer, FullKv ring, int first, int count) {
  const int appended = std::min(count, full_slots() - layer.count);
  add_run(layer, ring, first, appended, layer.count);
  layer.count += appended;
  if (layer.next == 0) layer.next = layer.count - appended;
  int left = std::min(count - appended, layer.count);
  while (left > 0) {
    if (layer.next == 0) layer.next = layer.count;
    const int run = std::min(left, layer.next);
    add_run(layer, ring, first + count - left, run, layer.next - run);
    layer.next -= run;
    left -= run;
  }
}

}  // namespace quantspec
