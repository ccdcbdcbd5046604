// How ranks of several machines find each other, for network_ranks.cc.
#pragma once

#include <chrono>
#include <vector>

#include "comm/comm.h"
#include "comm/descriptor.h"

namespace quantspec {

// To another rank: what ranks compute, and notices of their end.
struct Peer {
  Descriptor data, notices;
};

struct Met {
  std::vector<Peer> peers;  // by rank; that of the own is empty
  int num_here;             // ranks on this machine
};

// Each rank listens; the others come to rank 0, which tells each where the rest are. Throws kDevice
// where not all come within the patience, or an address cannot be had.
Met meet_over_network(const NetworkPlace& place, std::chrono::milliseconds patience);

}  // namespace quantspec
