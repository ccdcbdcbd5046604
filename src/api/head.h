// What the head of a request says: names without case, ids that are told to nobody as they came.
// Pure. Private to api/.
#pragma once

#include <string>
#include <string_view>

#include "api/api.h"

namespace quantspec::api {

bool is_same_ignoring_case(std::string_view a, std::string_view b);

// So many random bits, in hexadecimal digits. Thread-safe.
std::string random_hex(int bits);

// What a client calls the request, where that can go into a header and a log; else a new name.
std::string request_id_of(const HttpRequest& request);
// The trace that the request is a part of (W3C's traceparent); empty: of none, or it is broken.
std::string traceparent_of(const HttpRequest& request);

// Whether the body says that it is JSON. Pages of other sites cannot say so without asking first.
bool says_json(const HttpRequest& request);

}  // namespace quantspec::api
