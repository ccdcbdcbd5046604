// Where K and V lie. Pointers are to the backend's memory. Plain data, no behaviour.
#pragma once

#include <cstddef>

namespace quantspec {

// K and V of one layer in full precision, all kv heads. Position p lies in slot p mod capacity. The
// order and the element type are the backend's. The ring of a cache is one of these (capacity 2 G);
// the scratch in which prefill keeps one layer's K and V is another.
struct FullKv {
  std::byte* data = nullptr;
  int capacity = 0;  // a multiple of 16
  bool operator==(const FullKv&) const = default;
};

// One quantized page: [layers, kv heads] units (quant.h) in the backend's order.
struct PagePlanes {
  std::byte* upper;
  std::byte* lower;
};

// A number for each page that a sequence has or may come to have.
struct PageScores {
  float* data = nullptr;  // [num_kv_heads, max_pages]
  int max_pages = 0;
};

}  // namespace quantspec
