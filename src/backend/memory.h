// The memory that a backend's ops read and write. Unless the backend is known to work on the host,
// only upload() and download() reach it. Ops and copies take effect in the order of the calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/buffer.h"

namespace quantspec {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Throws kOutOfMemory.
  Buffer allocate(std::size_t bytes) {
    auto held = std::make_unique<Held>(make_buffer(bytes), allocated_);
    std::byte* const data = held->memory.data();
    if (data == nullptr) return {};
    // NOTE: a plain pointer, as one that counts would make the function allocate.
    return {data, bytes, [held = held.release()](std::byte*, std::size_t) { delete held; }};
  }
  // What buffers of allocate() hold. Thread-safe.
  std::size_t allocated_bytes() const { return *allocated_; }
  virtual std::size_t available_bytes() const = 0;  // that allocate() can still give
  // That a backend on a device has taken there for itself: PassOps::pass_scratch_bytes() and
  // PrefillOps::scratch_bytes() count it, and what it is yet to take. Of the host it is not
  // counted.
  virtual std::size_t taken_bytes() const = 0;
  // Whether that is a device's alone. Else it is the host's, which others take from as well.
  virtual bool is_apart_from_host() const = 0;
  // Memory of the host's that copy() reaches, too: a device copies from and to it by itself.
  virtual Buffer allocate_on_host(std::size_t bytes) = 0;
  // Copies from host memory, to host memory.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  // Copies within what allocate() and allocate_on_host() gave. Waits for nothing.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // Waits for all that was called. Measurements need it; results come by download().
  virtual void synchronize() = 0;

 private:
  using Count = std::shared_ptr<std::atomic<std::size_t>>;
  struct Held {
    Held(Buffer made, Count all) : memory(std::move(made)), count(std::move(all)) {
      *count += memory.size();
    }
    ~Held() { *count -= memory.size(); }

    Buffer memory;
    Count count;  // a buffer may outlive what gave it
  };
  virtual Buffer make_buffer(std::size_t bytes) = 0;

  Count allocated_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace quantspec
