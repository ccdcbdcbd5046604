// The memory that a backend's ops read and write. Unless the backend is known to work on the host,
// only upload() and download() reach it. Ops and copies take effect in the order of the calls.
#pragma once

#include <cstddef>

#include "base/buffer.h"

namespace quantspec {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Throws kOutOfMemory.
  virtual Buffer allocate(std::size_t bytes) = 0;
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
};

}  // namespace quantspec
