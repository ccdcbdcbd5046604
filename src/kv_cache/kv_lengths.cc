#include "kv_cache/kv_lengths.h"

#include <algorithm>

#include "backend/params/kv.h"
#include "base/error.h"
#include "base/fields.h"
#include "quant/quant.h"

namespace quantspec {

KvLengths::KvLengths(int capacity, int page_size, int chunk, bool paged)
    : capacity_(capacity), page_size_(page_size), chunk_(chunk), paged_(paged) {
  check(capacity >= 1, "a KV cache holds at least one token");
  check(chunk >= 1 && chunk % page_size == 0, "a chunk of a prompt is whole pages");
}

int KvLengths::max_rows() const {
  const int room = capacity_ - length_;
  return paged_ ? std::min(page_size_ - length_ % page_size_, room) : room;
}

int KvLengths::first_full(int length) const {
  return paged_ ? first_full_position(length, page_size_) : 0;
}

void KvLengths::require_room(int num_tokens) const {
  if (num_tokens <= capacity_ - length_) return;
  fail(ErrorKind::kInvalidRequest,
       "the context is full: {} tokens in it, {} more wanted, {} the most ({})", length_,
       num_tokens, capacity_, field::kContext);
}

bool KvLengths::page_due() const {
  const int target = first_full(length_);
  check(target == quantized_ || target == quantized_ + page_size_, "a page was missed");
  return target > quantized_;
}

void KvLengths::reserve(int rows) {
  check(!page_due() && rows >= 1 && rows <= max_rows(), "a forward spans a page boundary");
  reserved_ = rows;
}

void KvLengths::settle(int rows) {
  check(rows >= 0 && rows <= reserved_, "rows are reserved before they are settled");
  length_ += rows;
  reserved_ -= rows;
}

void KvLengths::truncate(int new_length) {
  check(std::max(committed(), prompt_) <= new_length && new_length <= length_,
        "truncate beyond what is speculative");
  length_ = new_length;
  reserved_ = 0;
}

void KvLengths::clear() { length_ = reserved_ = quantized_ = prompt_ = in_ring_ = 0; }

void KvLengths::begin_prompt(int num_tokens) {
  check(num_tokens > length_, "a prompt adds a token");
  require_room(num_tokens - length_);
  const int kept = prompt_ / chunk_ * chunk_;
  if (kept < length_) in_ring_ = kept;  // others came to its place
  length_ = prompt_ = kept;
  reserved_ = 0;
  quantized_ = first_full(length_);
}

int KvLengths::pages_with_chunk(int num_tokens) const {
  check(num_tokens >= 1 && num_tokens <= chunk_ && at_chunk(),
        "a prompt is read in chunks of the grid");
  const int end = length_ + num_tokens;
  return paged_ ? (num_tokens == chunk_ ? end : first_full(end)) / page_size_ : 0;
}

void KvLengths::add_prompt(int num_tokens) {
  check(at_chunk(), "a prompt is read in chunks of the grid");
  length_ += num_tokens;
  prompt_ = length_;
  quantized_ = first_full(length_);
  in_ring_ = std::max(in_ring_, quantized_);
}

void KvLengths::attach_prompt(int num_tokens, int in_ring) {
  add_prompt(num_tokens);
  check(in_ring <= length_, "a ring's positions are the text's");
  in_ring_ = std::max(in_ring, quantized_);
}

void KvLengths::restore(const KvLengths& other) {
  check(capacity_ == other.capacity_ && chunk_ == other.chunk_, "caches are alike");
  *this = other;
  reserved_ = 0;
}

}  // namespace quantspec
