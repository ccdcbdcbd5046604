// The page at "/" (live.html), as it was when this was compiled.
#pragma once

#include <string_view>

namespace quantspec::api {

extern const std::string_view kLivePage;

}  // namespace quantspec::api
