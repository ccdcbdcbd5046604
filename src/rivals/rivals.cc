#include "rivals/rivals.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backend/params/view.h"
#include "base/error.h"
#include "kv_cache/gathered_tokens.h"
#include "rivals/gathered_kv.h"

namespace quantspec {

namespace {

// All that the accesses of one cache gather.
class Rivals : public GatheredTokens {
 public:
  Rivals(Backend& backend, const KvShape& shape, std::span<const KvAccess> accesses)
      : shape_(shape), queries_(shape.num_layers) {
    for (const KvAccess& access : accesses) {
      if (access.gathers() && find(access) == nullptr) {
        gathered_.emplace_back(backend, backend, shape, access);
      }
    }
  }

  Rivals(const Rivals& other, std::span<const KvAccess> accesses)
      : shape_(other.shape_), queries_(other.queries_), num_heads_(other.num_heads_) {
    for (const KvAccess& access : accesses) {
      if (!access.gathers() || find(access) != nullptr) continue;
      const GatheredKv* tokens = other.find(access);
      check(tokens != nullptr, "a fork reads what the cache has gathered");
      gathered_.push_back(*tokens);
    }
  }

  std::unique_ptr<GatheredTokens> fork(std::span<const KvAccess> accesses) const override {
    return std::make_unique<Rivals>(*this, accesses);
  }

  int query_rows() const override {
    int rows = 0;
    for (const GatheredKv& tokens : gathered_) rows = std::max(rows, tokens.query_rows());
    return rows;
  }

  // Keeps the last rows, be they of several chunks.
  void chunk_read(int layer, bool first, std::span<const float> queries, int num_heads) override {
    num_heads_ = num_heads;
    std::vector<float>& last = queries_[layer];
    if (first) last.clear();
    last.insert(last.end(), queries.begin(), queries.end());
    const std::size_t most = query_rows() * row_floats();
    if (last.size() > most) last.erase(last.begin(), last.end() - most);
  }

  void prompt_read(std::span<const FullKv> layers, int length, int end) override {
    for (GatheredKv& tokens : gathered_) {
      for (int layer = 0; layer < shape_.num_layers; ++layer) {
        const std::span<const float> queries(queries_[layer]);
        const std::size_t floats = std::min(queries.size(), tokens.query_rows() * row_floats());
        tokens.choose(layer, layers[layer], length, end, queries.last(floats), num_heads_);
      }
    }
  }

  void ring_left(std::span<const FullKv> layers, int first, int count) override {
    for (GatheredKv& tokens : gathered_) {
      for (int layer = 0; layer < shape_.num_layers; ++layer) {
        tokens.add(layer, layers[layer], first, count);
      }
    }
  }

  void clear() override {
    for (GatheredKv& tokens : gathered_) tokens.clear();
  }

  void show(const KvAccess& access, KvView& view) const override {
    const GatheredKv* tokens = find(access);
    check(tokens != nullptr, "what was asked for was gathered");
    view.gathered = tokens->full(view.layer);
    view.num_gathered = tokens->count(view.layer);
  }

  std::size_t bytes() const override {
    std::size_t bytes = 0;
    for (const GatheredKv& tokens : gathered_) bytes += tokens.bytes();
    return bytes;
  }

 private:
  const GatheredKv* find(const KvAccess& access) const {
    const auto found = std::ranges::find_if(
        gathered_, [&](const GatheredKv& tokens) { return tokens.access().reads_alike(access); });
    return found == gathered_.end() ? nullptr : &*found;
  }
  std::size_t row_floats() const { return static_cast<std::size_t>(num_heads_) * shape_.head_dim; }

  KvShape shape_;
  std::vector<GatheredKv> gathered_;
  std::vector<std::vector<float>> queries_;  // of the prompt's last rows, by layer
  int num_heads_ = 0;
};

}  // namespace

KvOptions with_rivals(KvOptions options, Backend& backend, const KvShape& shape) {
  if (std::ranges::any_of(options.accesses, &KvAccess::gathers)) {
    options.gathered = std::make_shared<Rivals>(backend, shape, options.accesses);
  }
  return options;
}

std::size_t rivals_bytes(const KvOptions& options, const KvOps& ops, const KvShape& shape,
                         int capacity) {
  std::size_t bytes = 0;
  for (const KvAccess& access : options.accesses) {
    if (access.gathers()) bytes += GatheredKv::most_bytes(shape, ops, access, capacity);
  }
  return bytes;
}

}  // namespace quantspec
