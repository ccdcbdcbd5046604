#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace quantspec {

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  const bool possible = rounded >= bytes && rounded <= PTRDIFF_MAX;
  void* data = possible ? std::aligned_alloc(alignment, rounded) : nullptr;
  if (data == nullptr) fail(ErrorKind::kOutOfMemory, "could not allocate {} bytes", bytes);
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
  std::memset(data, 0, bytes);
  data_.reset(static_cast<std::byte*>(data));
}

void Buffer::Free::operator()(std::byte* data) const { std::free(data); }

}  // namespace quantspec
