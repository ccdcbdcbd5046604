#include "kv_cache/prompt_tails.h"

#include <algorithm>
#include <utility>

#include "backend/params/kv.h"
#include "base/error.h"
#include "quant/quant.h"

namespace quantspec {

namespace {

// Looking for one compares its tokens.
constexpr std::size_t kMostTails = 64;

}  // namespace

// --- one tail ---

std::size_t PromptTail::layer_bytes() const {
  return owner_->ops_.full_kv_bytes(owner_->shape_, end() - first_);
}

bool PromptTail::has_all_of_ring() const {
  return first_ <= first_full_position(start_, owner_->shape_.page_size);
}

std::size_t PromptTail::bytes() const { return owner_->shape_.num_layers * layer_bytes(); }

FullKv PromptTail::staging() const { return {owner_->staging_.data(), end() - first_}; }

void PromptTail::write(int layer, FullKv ring, FullKv chunk, int begin) {
  KvOps& ops = owner_->ops_;
  const FullKv staged = staging();
  if (first_ < begin) ops.copy_full_kv(owner_->shape_, ring, staged, first_, begin - first_);
  const int from = std::max(first_, begin);
  if (from < end()) ops.copy_full_kv(owner_->shape_, chunk, staged, from, end() - from);
  owner_->memory_.write(copy_, layer * layer_bytes(), {staged.data, layer_bytes()});
}

void PromptTail::read(int layer, FullKv to, int first, int count) const {
  check(first >= first_ && first + count <= end(), "a tail has what is read of it");
  const FullKv staged = staging();
  owner_->memory_.read(copy_, layer * layer_bytes(), {staged.data, layer_bytes()});
  owner_->ops_.copy_full_kv(owner_->shape_, staged, to, first, count);
}

void PromptTail::download(std::span<std::byte> to) const {
  check(to.size() == bytes(), "a tail goes to memory of its size");
  owner_->memory_.download(copy_, to);
}

void PromptTail::upload(std::span<const std::byte> from) {
  check(from.size() == bytes(), "a tail comes from memory of its size");
  owner_->memory_.upload(copy_, from);
}

// --- all ---

namespace {

// Rows of the longest: those of a ring, and a chunk's.
int most_rows(const KvShape& shape, int chunk) { return 2 * shape.page_size + chunk; }

int common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

PromptTails::PromptTails(KvOps& ops, const KvShape& shape, int chunk, std::size_t bytes)
    : ops_(ops), shape_(shape), chunk_(chunk), memory_(ops, shape, bytes) {
  if (memory_.capacity() > 0) staging_ = ops.allocate(staging_bytes(shape, ops, chunk));
}

std::size_t PromptTails::staging_bytes(const KvShape& shape, const KvOps& ops, int chunk) {
  return ops.full_kv_bytes(shape, most_rows(shape, chunk));
}

std::size_t PromptTails::most_bytes(const KvShape& shape, const KvOps& ops, int chunk) {
  return shape.num_layers * staging_bytes(shape, ops, chunk);
}

PromptTails::Found PromptTails::find(std::string_view salt, std::span<const TokenId> tokens) {
  auto best = tails_.end();
  int most = 0;
  const int in_ring = first_full_position(static_cast<int>(tokens.size()) + 1, shape_.page_size);
  for (auto at = tails_.begin(); at != tails_.end(); ++at) {
    const PromptTail& tail = **at;
    if (tail.salt() != salt || tail.start() > std::ssize(tokens)) continue;
    if (tail.first() > in_ring && !tail.has_all_of_ring()) continue;
    const int end = common_prefix(tail.tokens(), tokens) / kAligned * kAligned;
    if (end < tail.start() || end <= most) continue;
    best = at;
    most = end;
  }
  if (best == tails_.end()) return {};
  tails_.splice(tails_.begin(), tails_, best);
  return {*best, most};
}

std::shared_ptr<PromptTail> PromptTails::begin(std::string_view salt,
                                               std::span<const TokenId> prompt, int in_ring) {
  if (memory_.capacity() == 0) return nullptr;
  const auto tokens = prompt.first(prompt.size() / kAligned * kAligned);
  const int start = static_cast<int>(prompt.size()) / chunk_ * chunk_;
  const int first =
      std::max(first_full_position(start, shape_.page_size), std::min(in_ring, start));
  for (auto at = tails_.begin(); at != tails_.end(); ++at) {
    if ((*at)->salt() != salt || (*at)->start() != start || (*at)->first() > first) continue;
    if (common_prefix((*at)->tokens(), tokens) < std::ssize(tokens)) continue;
    tails_.splice(tails_.begin(), tails_, at);
    return nullptr;
  }
  auto tail = std::make_shared<PromptTail>();
  tail->owner_ = this;
  tail->salt_ = salt;
  tail->tokens_.assign(tokens.begin(), tokens.end());
  tail->start_ = start;
  tail->first_ = first;
  if (tail->first_ >= tail->end()) return nullptr;
  const std::size_t slots = memory_.slots_for(tail->bytes());
  if (!make_room(slots)) return nullptr;
  tail->copy_ = memory_.take(slots);
  return tail;
}

void PromptTails::add(std::shared_ptr<PromptTail> tail) {
  std::erase_if(tails_, [&](const auto& other) {
    return other->salt() == tail->salt() && other->start() == tail->start() &&
           other->first() >= tail->first() &&
           common_prefix(other->tokens(), tail->tokens()) == other->end();
  });
  if (tails_.size() == kMostTails) tails_.pop_back();
  tails_.push_front(std::move(tail));
}

// Those that somebody reads stay.
bool PromptTails::make_room(std::size_t slots) {
  for (auto at = tails_.end(); memory_.free() < slots && at != tails_.begin();) {
    --at;
    if (at->use_count() == 1) at = tails_.erase(at);
  }
  return memory_.free() >= slots;
}

}  // namespace quantspec
