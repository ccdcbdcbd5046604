// What calls a request and its owner.
#pragma once

#include <cstdint>

namespace quantspec {

using RequestId = std::uint64_t;
using OwnerId = std::uint64_t;  // on whose behalf: an API key, a tenant

}  // namespace quantspec
