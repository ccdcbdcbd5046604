#include "base/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

namespace quantspec {

namespace {

// "0-3,8,10-11", as the kernel writes lists of processors. Stops at what it does not know.
std::vector<int> parse_list(std::string_view text) {
  std::vector<int> list;
  const char* next = text.data();
  const char* const end = next + text.size();
  const auto number = [&](int* value) {
    const auto [rest, error] = std::from_chars(next, end, *value);
    next = rest;
    return error == std::errc();
  };
  for (int first; number(&first);) {
    int last = first;
    if (next < end && *next == '-' && (++next, !number(&last))) break;
    for (int processor = first; processor <= last; ++processor) list.push_back(processor);
    if (next >= end || *next != ',') break;
    ++next;
  }
  return list;
}

}  // namespace

std::vector<int> allowed_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed)) processors.push_back(processor);
  }
  return processors;
}

Topology Topology::of_this_process(const std::filesystem::path& directory) {
  const std::vector<int> allowed = allowed_processors();
  std::map<int, std::vector<int>> nodes;  // in the order of their numbers
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    const std::vector<int> numbers = parse_list(name.substr(std::min<std::size_t>(4, name.size())));
    if (numbers.size() != 1 || name != "node" + std::to_string(numbers[0])) continue;
    std::string list;
    std::ifstream(entry.path() / "cpulist") >> list;
    for (const int processor : parse_list(list)) {
      if (std::ranges::binary_search(allowed, processor)) nodes[numbers[0]].push_back(processor);
    }
  }
  Topology topology;
  for (auto& [number, processors] : nodes) topology.nodes.push_back(std::move(processors));
  if (topology.nodes.empty()) topology.nodes.push_back(allowed.empty() ? std::vector{0} : allowed);
  return topology;
}

std::vector<int> Topology::nodes_of_threads(int num_threads) const {
  std::size_t processors = 0;
  for (const auto& node : nodes) processors += node.size();
  std::vector<int> result;
  std::size_t node = 0, end = nodes[0].size();  // of the node, in all nodes' processors
  for (int thread = 0; thread < num_threads; ++thread) {
    const std::size_t place = processors * thread / num_threads;
    while (place >= end) end += nodes[++node].size();
    result.push_back(static_cast<int>(node));
  }
  return result;
}

}  // namespace quantspec
