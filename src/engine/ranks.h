// Ranks of an engine that are threads. Private to engine/.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "engine/engine_options.h"

namespace quantspec {

// The other ranks of an engine, in threads that are joined when this ends. The engine has ended its
// loop by then.
class RankThreads {
 public:
  // They begin to load.
  explicit RankThreads(const EngineOptions& options);
  ~RankThreads();
  Communicator& own() { return *own_; }  // rank 0

 private:
  void end() noexcept;

  std::atomic<bool> ends_ = false;
  SharedRanks ranks_;
  std::unique_ptr<Communicator> own_;
  std::vector<std::jthread> others_;
};

}  // namespace quantspec
