#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace quantspec {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  pending_ += text;
  std::size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, pending_.find(stop));
  if (found != std::string::npos) {
    stopped_ = true;
    pending_.resize(found);
    return std::exchange(pending_, {});
  }
  const std::size_t shown = pending_.size() - held_length();
  std::string result = pending_.substr(0, shown);
  pending_.erase(0, shown);
  return result;
}

std::string StopMatcher::flush() { return std::exchange(pending_, {}); }

// The length of the longest end of pending_ that begins a stop string.
std::size_t StopMatcher::held_length() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > longest; --n) {
      if (pending_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace quantspec
