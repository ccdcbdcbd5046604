// Stop strings: the first part of the input has them, one a line; the second is a text that comes
// in pieces, which the bytes of the third cut. What is shown is what a search through all of the
// text so far allows.
#include "base/error.h"
#include "engine/stop_matcher.h"
#include "fuzz_input.h"

using namespace quantspec;

namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::size_t first_stop(const std::vector<std::string>& stops, std::string_view text) {
  std::size_t first = text.npos;
  for (const std::string& stop : stops) {
    if (!stop.empty()) first = std::min(first, text.find(stop));
  }
  return first;
}

// How much of a text without a stop string cannot be the beginning of one.
std::size_t certain(const std::vector<std::string>& stops, std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const std::string& stop : stops) {
      if (stop.starts_with(text.substr(at))) return at;
    }
  }
  return text.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 2000) return 0;  // what certain() can do
  const auto parts = parts_of(data, size, 3);
  const auto stops = lines_of(parts[0]);
  const std::string text = part_or_empty(parts, 1);
  const std::string cuts = part_or_empty(parts, 2);
  StopMatcher matcher(stops);
  std::string shown;
  std::size_t at = 0;
  for (std::size_t i = 0; at < text.size() && !matcher.stopped(); ++i) {
    const std::size_t length = cuts.empty() ? 1 : static_cast<unsigned char>(cuts[i % cuts.size()]);
    const std::string_view piece = std::string_view(text).substr(at, i % 8 == 7 ? 1 : length);
    shown += matcher.push(piece);
    at += piece.size();
    const std::string_view so_far = std::string_view(text).substr(0, at);
    const std::size_t stop = first_stop(stops, so_far);
    require(matcher.stopped() == (stop != so_far.npos));
    require(shown == so_far.substr(0, matcher.stopped() ? stop : certain(stops, so_far)));
  }
  const bool stopped = matcher.stopped();
  shown += matcher.flush();
  const std::string_view so_far = std::string_view(text).substr(0, at);
  require(shown == so_far.substr(0, stopped ? first_stop(stops, so_far) : at));
  if (stopped) require(matcher.push("more").empty() && matcher.flush().empty());
  return 0;
}
