// How far a cache has come: which positions are in it, in pages, reserved for a round, and were
// read as a prompt. The rules of kv_cache.h about positions, in integers alone: no memory, no
// backend. A value; allocates nothing.
#pragma once

namespace quantspec {

class KvLengths {
 public:
  // capacity: the most positions; page_size: G; chunk: C, a multiple of G. paged: false where all
  // stays in full precision, so that B is 0.
  KvLengths(int capacity, int page_size, int chunk, bool paged);

  int capacity() const { return capacity_; }
  int chunk() const { return chunk_; }
  int length() const { return length_; }        // n: positions [0, n) are there
  int quantized() const { return quantized_; }  // B: positions [0, B) are in pages
  int reserved() const { return reserved_; }    // rows from n on
  int prompt() const { return prompt_; }        // positions [0, prompt()) were read as a prompt
  // Positions below it are final: there is no truncating to less.
  int committed() const { return quantized_ == 0 ? 0 : quantized_ + page_size_; }
  // The most rows of the next forward, so that it does not span a multiple of G.
  int max_rows() const;
  // B of a cache of so many tokens.
  int first_full(int length) const;
  // Throws kInvalidRequest where so many more do not fit.
  void require_room(int num_tokens) const;

  // --- decoding ---
  // A page must be made before the next pass, of positions from B on; page_made() says that it was.
  bool page_due() const;
  void page_made() { quantized_ += page_size_; }
  // REQUIRES: no page is due; 1 <= rows <= max_rows().
  void reserve(int rows);
  void settle(int rows);          // REQUIRES: 0 <= rows <= reserved()
  void truncate(int new_length);  // REQUIRES: max(committed(), prompt()) <= new_length <= n
  void clear();

  // --- prompts ---
  // A text of num_tokens is to be read: all but the whole chunks of prompts is forgotten. Throws as
  // require_room(). REQUIRES: num_tokens > n.
  void begin_prompt(int num_tokens);
  // So many tokens of a text of num_tokens may be attached, where the ring's are read; a multiple
  // of C.
  int most_attached(int num_tokens) const { return first_full(num_tokens) / chunk_ * chunk_; }
  // Whether all there is are whole chunks, and so the next chunk may come.
  bool at_chunk() const { return length_ == prompt_ && length_ % chunk_ == 0; }
  // Pages that there are after a chunk of so many: of a whole one all, for those that follow it; of
  // another what decoding reads. REQUIRES: at_chunk(); 1 <= num_tokens <= C.
  int pages_with_chunk(int num_tokens) const;
  // So many were read. REQUIRES: at_chunk().
  void add_prompt(int num_tokens);
  // So many were attached: pages, and the ring's positions from `in_ring` on. REQUIRES: the same.
  void attach_prompt(int num_tokens, int in_ring);
  // The ring has what was read or attached from here on: its positions before were attached as
  // pages alone, for a text that does not read them from it.
  int in_ring() const { return in_ring_; }
  // Where another cache of this capacity was.
  void restore(const KvLengths& other);

 private:
  int capacity_;
  int page_size_;
  int chunk_;
  bool paged_;
  int length_ = 0;
  int reserved_ = 0;
  int quantized_ = 0;
  int prompt_ = 0;
  int in_ring_ = 0;
};

}  // namespace quantspec
