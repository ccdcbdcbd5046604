// What handlers of bodies share. Private to api/.
#pragma once

#include <functional>
#include <string_view>

#include "api/core.h"
#include "api/wanted.h"

namespace quantspec::api {

// What a body asks for. Throws as parse_body() and read_wanted().
Wanted read_body(Core& core, const Call& call, std::string_view body);

// Does some work; what it throws is answered, and logged.
void guarded(Core& core, const Call& call, const std::function<void()>& work);

}  // namespace quantspec::api
