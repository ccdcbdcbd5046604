#include "tests/faults/refusals.h"

#include <malloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace {

using quantspec::testing::refuse_after;
using quantspec::testing::refuse_from;
using quantspec::testing::refuse_next;
using quantspec::testing::refuse_one_in;
using quantspec::testing::refused;

std::atomic<unsigned> allocations{0};

// Of those that there are, by one thread.
bool took_one(std::atomic<int>& left) {
  for (int now = left; now > 0;) {
    if (left.compare_exchange_weak(now, now - 1)) return true;
  }
  return false;
}

bool is_refused(std::size_t bytes) {
  if (bytes < refuse_from) return false;
  if (refuse_next > 0) {
    if (took_one(refuse_after)) return false;
    if (took_one(refuse_next)) return true;
  }
  const unsigned one_in = refuse_one_in;
  if (one_in == 0) return false;
  const unsigned mixed = (allocations++ + 1) * 2654435761u;
  if ((mixed >> 8) % one_in != 0) return false;
  ++refused;
  return true;
}
void* take(std::size_t bytes, std::size_t alignment) {
  if (is_refused(bytes)) return nullptr;
  return alignment == 0 ? std::malloc(std::max<std::size_t>(bytes, 1)) : memalign(alignment, bytes);
}
void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* data = take(bytes, alignment)) return data;
  throw std::bad_alloc();
}

}  // namespace

// The other forms of new and delete call these.
void* operator new(std::size_t bytes) { return take_or_throw(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take_or_throw(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return take(bytes, alignment);
}
extern "C" int posix_memalign(void** data, std::size_t alignment, std::size_t bytes) noexcept {
  *data = take(bytes, alignment);
  return *data == nullptr ? ENOMEM : 0;
}
