// What bounds a kernel on this machine, measured in the process that measures the kernels: how fast
// threads read memory, and how fast a core's clock ticks under load.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace quantspec {

// Reads `bytes` with all threads of the pool. `data` is aligned to 64, `bytes` a multiple of 4096.
void read_all(ThreadPool& pool, const std::byte* data, std::size_t bytes);

// Cycles per second of the core that runs this, from a chain of dependent additions.
double clock_rate();

}  // namespace quantspec
