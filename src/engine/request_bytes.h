// A request as bytes, for ranks that hear of it (comm/comm.h): all but its callbacks, which stay
// with who leads. Of one program on one kind of machine; not for files. Thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/request_loop.h"

namespace quantspec {

std::vector<std::byte> bytes_of(const Request& request);
// Throws kInternal for what is no such bytes.
Request request_of(std::span<const std::byte> bytes);

}  // namespace quantspec
