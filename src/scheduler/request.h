// What the scheduler knows of a request when it is submitted.
#pragma once

#include "base/request_id.h"

namespace quantspec {

struct RequestInfo {
  RequestId id;  // of no other request that is known
  OwnerId owner = 0;
  int priority = 0;         // the class at first: a greater one goes first
  int prompt_tokens = 1;    // >= 1
  int most_new_tokens = 1;  // >= 1
  double arrival = 0;       // seconds, of the same clock as `now`
};

}  // namespace quantspec
