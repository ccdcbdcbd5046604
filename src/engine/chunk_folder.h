// Chunks and tails of prompts in a folder, for other runs of the same engine, which read them back
// instead of the prompts: a third tier below pages and the host's memory. Each has a file of its
// own, as sessions have theirs (session_file.h), named by a hash of its salt and of all tokens up
// to its end. A name is a hint alone: a file is used if its fingerprint, salt, tokens and checksums
// are the ones asked for, and removed, with a warning, if it is damaged.
//
//     FOLDER/f-<hash of the fingerprint>/<hash of [0, end)>.chunk
//                                       /<hash of [0, start)>-<end>-<hash of [0, end)>.tail
//
// Files are written by a thread of its own, behind the engine: what it does not keep up with is not
// kept. Before one is written, those used least recently go, of all fingerprints, until all fit the
// budget. Several engines may use one folder at the same time. What they do not know of is left
// alone.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/token.h"
#include "engine/folder_counts.h"
#include "engine/session_file.h"

namespace quantspec {

class ChunkFolder {
 public:
  struct Options {
    std::filesystem::path folder;  // made where it is missing, for its owner alone
    std::uint64_t most_bytes = 0;  // of all files in it
    std::string fingerprint;       // Engine::fingerprint()
    int chunk_tokens = 0;
    // That wait to be written, at most.
    std::size_t most_waiting = std::size_t{256} << 20;
  };
  // Throws kInvalidRequest for a folder that cannot be made or listed.
  explicit ChunkFolder(Options options);
  ~ChunkFolder();  // what waits is written
  ChunkFolder(const ChunkFolder&) = delete;
  ChunkFolder& operator=(const ChunkFolder&) = delete;

  struct Found {
    SessionFile file;  // which has the bytes
    std::span<const std::byte> bytes;
  };
  // The chunk that these tokens end with, of so many bytes; null: it is not there. REQUIRES: tokens
  // are whole chunks.
  std::optional<Found> chunk(std::string_view salt, std::span<const TokenId> tokens,
                             std::uint64_t bytes);
  // The longest tail that this text begins with, if it is longer than `most` tokens.
  std::optional<Found> tail(std::string_view salt, std::span<const TokenId> text, std::size_t most);

  // To be written, unless it is there or about to be: then `fill`, which gives the bytes, is not
  // called. tokens: to its end.
  using Fill = std::function<void(std::span<std::byte>)>;
  void keep_chunk(std::string_view salt, std::span<const TokenId> tokens, std::size_t bytes,
                  const Fill& fill);
  void keep_tail(std::string_view salt, std::span<const TokenId> tokens, int start,
                 std::size_t bytes, const Fill& fill);

  FolderCounts counts() const;
  void wait();  // until all that was handed over is written

 private:
  struct Work {
    std::string name;
    SessionInfo info;
    std::vector<TokenId> tokens;
    std::vector<std::byte> bytes;
  };

  std::string chunk_name(std::string_view salt, std::span<const TokenId> tokens) const;
  std::string tail_name(std::string_view salt, std::span<const TokenId> tokens, int start) const;
  bool knows(const std::string& name) const;
  void forget(const std::string& name);
  std::optional<Found> open(const std::string& name, std::span<const TokenId> tokens,
                            const SessionInfo& expected);
  SessionInfo info_of(std::string_view salt, std::span<const TokenId> tokens) const;
  void keep(std::string name, const SessionInfo& info, std::span<const TokenId> tokens,
            std::size_t bytes, const Fill& fill);
  void write_all();
  void write(const Work& work);
  void make_room(std::uint64_t bytes);

  const Options options_;
  const std::filesystem::path own_;  // the fingerprint's folder

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> names_;  // that are there, as far as is known
  std::deque<Work> waiting_;     // the first is being written
  std::size_t waiting_bytes_ = 0;
  bool ends_ = false;
  FolderCounts counts_;
  std::thread writer_;  // last: it uses all of the above
};

}  // namespace quantspec
