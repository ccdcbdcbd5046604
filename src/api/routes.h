// The endpoints, once: who may ask, where it is done, what it is. Private to api/.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/core.h"
#include "api/wanted.h"

namespace quantspec::api {

enum class Access { kOpen, kKey, kMetrics };  // kMetrics: open where the options say so
enum class Place { kHere, kFront };           // on the thread of handle(), or on one of the Api's

struct Route {
  // No member has a default: who adds a route says who may ask.
  std::string_view method;
  std::string_view path;  // "{id}" at its end: anything
  Access access;
  Place place;
  std::optional<Endpoint> endpoint;  // whose fields the body has; nullopt: there is no body
  void (*serve)(Core& core, Call call);
  std::string_view doc;
};

std::span<const Route> routes();

// What is known to OpenAI's or llama.cpp's clients and not here, with what it waits for.
struct Absent {
  std::string_view path;  // and all below it
  std::string_view why;
};
std::span<const Absent> absent_routes();

struct Found {
  const Route* route = nullptr;  // null: none
  std::string rest = {};         // of {id}
  std::string allow = {};        // methods of the path, where the method is not one of them
  const Absent* absent = nullptr;
};
// HEAD is as GET.
Found find_route(std::string_view method, std::string_view path);

}  // namespace quantspec::api
