// The memory nodes (NUMA) that this process may use, and where the threads of a pool live on them.
// Most machines have one node; then nothing here has an effect. Tests make topologies by hand.
#pragma once

#include <filesystem>
#include <vector>

namespace quantspec {

struct Topology {
  // The processors of each node; no list is empty, and there is at least one.
  std::vector<std::vector<int>> nodes;

  // The processors that this process may run on, by node; one node where the system says nothing.
  static Topology of_this_process(
      const std::filesystem::path& directory = "/sys/devices/system/node");

  // The node of every thread: threads in blocks, as many to a node as its processors are of all.
  // REQUIRES: num_threads >= 1.
  std::vector<int> nodes_of_threads(int num_threads) const;
};

// Processors that this process may run on, ascending; empty when the system does not say.
std::vector<int> allowed_processors();

}  // namespace quantspec
