// Finds stop strings in streamed text, also across the pieces it comes in. Text that could be the
// beginning of a stop string is held back until it is known not to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quantspec {

class StopMatcher {
 public:
  // Empty stop strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  // The text that can be shown once `text` has come. After a stop string was found, nothing more.
  std::string push(std::string_view text);
  // The text that was held back, at the end of the stream.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::size_t held_length() const;

  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace quantspec
