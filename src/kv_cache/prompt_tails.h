// The ends of prompts, so that a later prompt with the same beginning goes on inside a chunk: the
// prefix tree has whole chunks alone (prefix_tree.h). Of a prompt's last chunk, of which there may
// be any number of tokens, K and V are kept as they were computed, in full precision, and with them
// those before the chunk that a ring holds there:
//
//     positions   ... first ......... start ......... end    n
//                     | of the ring   | of the chunk  |
//                     | when the      | multiples     | n rounded down to a multiple of 16
//                     | chunk began   | of C          |
//
// K and V of a position are a function of the tokens up to it, so of a text that leaves the tail's
// tokens in the middle, the tail still has what comes before. A text whose chunks were attached as
// pages has less of the ring (KvLengths::in_ring()), and so has its tail: it is for texts that read
// no more from theirs.
//
// Tails lie in memory of the host that is taken at the start: the least recently used go. Not
// thread-safe: the thread of the cache.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/kv_ops.h"
#include "base/token.h"
#include "kv_cache/host_pages.h"

namespace quantspec {

class PromptTails;

class PromptTail {
 public:
  const std::string& salt() const { return salt_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }  // of [0, end)
  int first() const { return first_; }
  bool has_all_of_ring() const;         // that there is at start()
  int start() const { return start_; }  // a multiple of C
  int end() const { return static_cast<int>(tokens_.size()); }

  // All of a layer: before `begin` from `ring`, the rest from `chunk`.
  void write(int layer, FullKv ring, FullKv chunk, int begin);
  // Positions [first, first + count), which it has.
  void read(int layer, FullKv to, int first, int count) const;
  // The same in bytes, for files: those of a layer after the other.
  std::size_t bytes() const;
  void download(std::span<std::byte> to) const;  // REQUIRES: of bytes()
  void upload(std::span<const std::byte> from);

 private:
  friend class PromptTails;
  std::size_t layer_bytes() const;
  FullKv staging() const;

  PromptTails* owner_ = nullptr;
  std::string salt_;
  std::vector<TokenId> tokens_;
  int first_ = 0;
  int start_ = 0;
  HostPages::Copy copy_;
};

class PromptTails {
 public:
  // FullKvs are made of so many tokens at a time, whatever the backend.
  static constexpr int kAligned = 16;

  // In so many bytes of the host's memory. `ops` outlives it, and it its tails. 0: it keeps none.
  PromptTails(KvOps& ops, const KvShape& shape, int chunk, std::size_t bytes);
  PromptTails(const PromptTails&) = delete;
  PromptTails& operator=(const PromptTails&) = delete;

  // Of the backend's memory; and what the longest tail takes of the host's.
  static std::size_t staging_bytes(const KvShape& shape, const KvOps& ops, int chunk);
  static std::size_t most_bytes(const KvShape& shape, const KvOps& ops, int chunk);

  struct Found {
    std::shared_ptr<const PromptTail> tail;  // null: there is none
    int end = 0;  // its positions before it are those of the tokens; start <= end, a multiple of 16
  };
  // That which has most of a text of these tokens. The last token of a prompt must be read for its
  // logits, so tokens.first(n - 1) is what a prompt of n asks for.
  Found find(std::string_view salt, std::span<const TokenId> tokens);

  // Of a prompt that is about to be read to its end, and whose ring has positions from `in_ring`
  // on. Null: one that has as much is here, or there is no room beside those that are held, or
  // nothing to keep.
  std::shared_ptr<PromptTail> begin(std::string_view salt, std::span<const TokenId> prompt,
                                    int in_ring);
  // All layers are there: others may find it. Those that it makes superfluous go.
  void add(std::shared_ptr<PromptTail> tail);
  void clear() { tails_.clear(); }

  std::size_t size() const { return tails_.size(); }
  std::size_t bytes() const { return memory_.used() * memory_.slot_bytes(); }

 private:
  friend class PromptTail;
  bool make_room(std::size_t slots);

  KvOps& ops_;
  KvShape shape_;
  int chunk_;
  HostPages memory_;
  Buffer staging_;
  std::list<std::shared_ptr<PromptTail>> tails_;  // those used last come first
};

}  // namespace quantspec
