// The name of a JSON value, for headers that only pass one on: the library itself is large.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace quantspec {

using Json = nlohmann::json;

}  // namespace quantspec
