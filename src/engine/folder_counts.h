// What a ChunkFolder has done, for metrics. Plain data.
#pragma once

#include <cstdint>

namespace quantspec {

struct FolderCounts {       // since the start, but for bytes
  std::uint64_t found = 0;  // files that were read
  std::uint64_t written = 0;
  std::uint64_t removed = 0;  // for room
  std::uint64_t dropped = 0;  // not written: too many waited, or the disk refused
  std::uint64_t bytes = 0;    // in the folder, when it was last looked at
};

}  // namespace quantspec
