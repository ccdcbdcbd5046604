#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace quantspec {

namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Untouched memory that starts at a multiple of kHugePage, a multiple of it long; null: none.
std::byte* map_aligned(std::size_t bytes) {
  const std::size_t total = bytes + kHugePage;
  void* mapped = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t before = round_up(address, kHugePage) - address;
  if (before > 0) munmap(start, before);
  munmap(start + before + bytes, kHugePage - before);
  return start + before;
}

void unmap(std::byte* data, std::size_t bytes) { munmap(data, bytes); }
void free_heap(std::byte* data, std::size_t) { std::free(data); }

}  // namespace

Buffer::Buffer(std::size_t bytes, HugePages huge_pages) : size_(bytes) {
  if (bytes == 0) return;
  const bool possible = bytes <= PTRDIFF_MAX - 2 * kHugePage;
  const std::size_t mapped = possible && bytes >= kHugePage ? round_up(bytes, kHugePage) : 0;
  std::byte* data = nullptr;
  if (mapped > 0) {
    data = map_aligned(mapped);
  } else if (possible) {
    data = static_cast<std::byte*>(std::aligned_alloc(64, round_up(bytes, 64)));
  }
  if (data == nullptr) fail(ErrorKind::kOutOfMemory, "could not allocate {} bytes", bytes);
  if (mapped == 0) {
    std::memset(data, 0, bytes);
  } else {
    madvise(data, mapped, huge_pages == HugePages::kNever ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  }
  data_ = {data, mapped > 0 ? Free{mapped, unmap} : Free{bytes, free_heap}};
}

void advise_huge_pages(std::byte* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = round_up(begin, kHugePage);
  const std::uintptr_t end = (begin + bytes) / kHugePage * kHugePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace quantspec
