// A RequestLoop under measurement: what came of its requests, and when. Private to bench/.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "bench/entries.h"
#include "comm/comm.h"
#include "engine/request_loop.h"

namespace quantspec::bench {

// Time that runs only while it is told to.
class PausedClock {
 public:
  double seconds() const { return before_ + (runs_ ? since_.seconds() : 0); }
  void start() {
    since_.restart();
    runs_ = true;
  }
  void stop() {
    before_ = seconds();
    runs_ = false;
  }

 private:
  Stopwatch since_;
  double before_ = 0;
  bool runs_ = false;
};

// What became of a request. Times are of its loop's clock, in seconds.
struct Stream {
  RequestId id = 0;
  double arrival = 0;
  double first = 0;   // when its first token came
  double latest = 0;  // when its last ones did
  std::vector<TokenId> tokens;
  int cached_tokens = 0;
  bool ended = false;
};

struct LoadLoopOptions {
  int sequences;
  int context;          // tokens of a sequence at most
  std::uint64_t seed;   // of the first request; each has its own
  int late_prompt = 0;  // tokens; if any, there is room for one request more, which writes a token
  // As LoadOptions'.
  std::size_t page_memory = 0;
  std::size_t host_cache = 0;
  // Of those that are there at once; a later one of the same number is there instead.
  int number = 0;
};

// Ranks that share the model have a loop of requests each, which do the same at the same time: who
// measures, at rank 0, tells the others what its LoadLoops do.
class LoadLoop {
 public:
  // Of one of these entries, which all ranks have.
  LoadLoop(Engine& engine, std::span<const Entry> entries, std::size_t entry,
           const LoadLoopOptions& options);

  // For the engine of another rank: does what rank 0's LoadLoops do, until it calls end().
  static void follow(Engine& own, std::span<const Entry> entries);
  static void end(Engine& engine);

  PausedClock clock;  // within steps, by step(); also in between, where the caller says so
  RequestLoop& requests() { return loop_; }

  // arrival: by the clock. hold: as soon as it has its first token, it waits for release().
  // Returns the number of the stream.
  std::size_t submit(std::vector<TokenId> prompt, int predict, double arrival, OwnerId owner,
                     bool hold, const std::string& salt = {});
  // Throws what a request failed by.
  bool step();
  // All go on, as if their last token came now.
  void release();

  const std::deque<Stream>& streams() const { return streams_; }
  int have_first() const { return have_first_; }
  int ended() const { return ended_; }
  std::int64_t tokens() const { return tokens_; }  // of all streams
  std::vector<std::vector<TokenId>> texts() const;
  // Forgets the streams, all of which have ended, and their intervals.
  void forget();
  // Seconds between tokens that came since it was last called, of all streams.
  std::vector<double> take_intervals() { return std::exchange(intervals_, {}); }
  // The most pages that were in use at once, those of idle prefixes aside.
  std::size_t most_pages() const { return most_pages_; }

  // Bytes that the rings of such a loop take, and with all pages that it may come to hold.
  static std::size_t ring_bytes(Engine& engine, const Entry& entry, const LoadLoopOptions& options);
  static std::size_t bytes_for(Engine& engine, const Entry& entry, const LoadLoopOptions& options);

 private:
  void take(Stream& stream, std::span<const TokenId> tokens, bool hold);

  const Entry& entry_;
  LoadLoopOptions options_;
  std::size_t pages_;
  Agreement agreement_;
  RequestLoop loop_;
  std::deque<Stream> streams_;  // requests refer to them
  std::vector<double> intervals_;
  int have_first_ = 0;
  int ended_ = 0;
  std::int64_t tokens_ = 0;
  std::size_t most_pages_ = 0;
  std::optional<Error> failure_;
};

}  // namespace quantspec::bench
