// Owned, zeroed, 64-byte aligned memory: the host's, or what a backend gives to keep. Moves, never
// copies. A failed allocation throws Error(kOutOfMemory).
//
// From 2 MiB on the host's comes from the system as it is: nothing is resident until it is touched,
// it lies in the memory node of the thread that touches it first, and it asks for huge pages unless
// told not to (docs/cpu.md has what they are worth).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace quantspec {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

enum class HugePages { kFrom2MiB, kNever };

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes, HugePages huge_pages = HugePages::kFrom2MiB);
  // Takes over memory that somebody else made, zeroed, and that `free(data, bytes)` gives back.
  using FreeFunction = std::function<void(std::byte* data, std::size_t bytes)>;
  Buffer(std::byte* data, std::size_t bytes, FreeFunction free)
      : data_(data, Free{bytes, std::move(free)}), size_(bytes) {}
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Free {
    std::size_t bytes;
    FreeFunction free;
    void operator()(std::byte* data) const { free(data, bytes); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// Asks for huge pages for those parts of a Buffer's memory that are whole ones.
void advise_huge_pages(std::byte* data, std::size_t bytes);

}  // namespace quantspec
