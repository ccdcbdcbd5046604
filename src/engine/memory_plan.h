// Where memory goes, known before any of it is allocated.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "base/message.h"
#include "engine/engine_options.h"
#include "kv_cache/kv_cache.h"
#include "model/model.h"

namespace quantspec {

class ModelFiles;
class WeightSource;

// The planes that a choice of draft weights keeps.
WeightRead planes_kept(DraftWeights draft_weights);
// What passes draft by it; none where tokens are only looked up.
std::vector<Plan> plans_of_passes(const DraftSpec& spec, const PlanContext& context);

// The most tokens a context may be asked to hold, whatever the memory.
inline constexpr int kMaxContext = 1 << 28;

// Those that are in the cache at once, as the options ask for. Throws kInvalidRequest.
int num_sequences(const EngineOptions& options);

// Throws kInvalidRequest for fewer than one token or more than that.
void require_supported_context(int context);

// The context of a session: the one that the options ask for, else what the model was made for or,
// where that does not fit `available` bytes, the most that does; `warnings` says so. Throws
// kOutOfMemory naming what fits, before anything large is loaded.
int choose_context(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                   const WeightSource& source, std::size_t available,
                   std::vector<Message>& warnings);

// Throws kInvalidRequest for a number of ranks that cannot be.
void require_ranks(const EngineOptions& options, int ranks);

// How so many ranks share the model. Throws kInvalidRequest where they cannot share contexts as the
// options say.
RankGroups rank_groups(const EngineOptions& options, const ModelFiles& files, int ranks);

// Whether each of several ranks has a GPU; where nothing is said, whether the first can be used.
bool runs_on_gpus(const EngineOptions& options);
// Throws kInvalidRequest where they have, and are processes of several machines.
void require_one_machine(const EngineOptions& options, bool on_one_machine);
// Which GPU a rank has that is a process: that of the options, or its own of those that it sees, by
// turns. It sees all of the machine, or one that is for it alone. nullopt: none, or one that cannot
// be used. Only that one is looked at, as a GPU takes memory for each process that uses it.
std::optional<int> gpu_of_process(const EngineOptions& options, int rank);

// What one of so many ranks on this machine may take: of the host's memory each has a part.
struct RankMemory {
  std::size_t available, on_host;  // of the backend's memory, and of the host's
};
// num_here: of how many ranks of this machine.
RankMemory memory_of_rank(const Backend& backend, int num_here);
// What each of these ranks may take, who all call it; null: of the one that there is.
RankMemory memory_of_rank(const Backend& backend, Communicator* ranks);

// What requests that so many sequences answer take of the backend's memory beside pages and the
// rings of their caches, which are of the options `kv` for `context` tokens.
std::size_t working_bytes(const ModelConfig& config, const Backend& backend, const KvShape& shape,
                          const KvOptions& kv, int sequences, int context);

class MemoryPlanner {
 public:
  // Reads headers, and nothing else of the files. `config` and `backend` outlive the planner.
  MemoryPlanner(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                const WeightSource& source);

  // Of `context` tokens in all sequences together, with a prompt as long as the context.
  MemoryPlan plan(int context) const;
  // The same with what pages and the host's memory may take in all, where so many bytes of the
  // backend's memory and of the host's are available. Throws kInvalidRequest, or kOutOfMemory, for
  // what the options ask for and cannot be. REQUIRES: plan(context) fits.
  MemoryPlan plan(int context, std::size_t available, std::size_t available_on_host) const;
  // The longest context whose plan fits `available` bytes; 0 when none does.
  int largest_context(std::size_t available) const;

 private:
  std::size_t page_memory(const MemoryPlan& plan, int context, std::size_t available) const;
  std::size_t host_cache(const MemoryPlan& plan, std::size_t available,
                         std::size_t available_on_host) const;

  // Of the host's memory, what lookups know of texts.
  std::size_t lookup_bytes(int context) const;
  std::size_t tail_memory(const MemoryPlan& plan, std::size_t available,
                          std::size_t available_on_host) const;

  const ModelConfig& config_;
  const Backend& backend_;
  KvShape shape_;
  std::size_t target_weights_bytes_;
  std::size_t draft_weights_bytes_;
  KvOptions kv_;
  int sequences_;
  bool looks_up_;
  std::size_t lookup_history_;
  std::size_t wanted_page_memory_;
  std::optional<std::size_t> wanted_host_cache_;
  std::optional<std::size_t> wanted_tail_memory_;
};

}  // namespace quantspec
