// What an engine is asked for, and what memory that takes. Sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "kv_cache/kv_access.h"
#include "model/config.h"

namespace quantspec {

class Communicator;  // comm/comm.h

// Which weights a draft may read. kAuto: 4 and 8 bits, chosen round by round by the cost model.
enum class DraftWeights : std::uint8_t { kAuto, kUpper, kBoth, kFull };

// How a text is drafted: by a plan, or by `auto` of several, and by tokens that are looked up.
struct DraftSpec {
  std::string_view plan;  // none: by nothing else
  bool looks_up = false;
  bool is_auto() const { return plan == "auto"; }
  // Of auto: the one name of what it means.
  std::string auto_name() const { return looks_up ? "auto" : "auto+nolookup"; }
};
// "auto", which looks up, "auto+nolookup", "lookup", a plan's name, and that with "+lookup" behind.
// Throws kInvalidRequest where there is no name.
DraftSpec read_draft_spec(std::string_view spec);

struct EngineOptions {
  std::filesystem::path model;               // a Hugging Face folder, or a GGUF file
  std::filesystem::path chat_template = {};  // a file of Jinja, instead of the model's own
  // In what the target reads matrices that the model has as elements: by default in these, or as
  // codes of 8 bits, of which drafts read the upper four: one store, of half the bytes of bf16.
  TargetWeights target_weights = TargetWeights::kCheckpoint;
  std::string backend = "auto";
  // The GPU, by ordinal: as in BackendOptions. The first one of ranks that are threads; that of a
  // rank that is a process, where nothing is said the one of its rank, by turns.
  std::optional<int> device = {};
  int num_threads = 0;  // 0: physical cores; of all ranks that share this machine
  // Ranks that share the model (model/share.h), threads of this process: each has some of its heads
  // and channels and of the cache, and what comes out is what one rank gives, bit for bit. 1, 2, 4
  // or 8, as the model allows; or kLaunchedRanks, for Engine::meet_launched().
  static constexpr int kLaunchedRanks = 0;
  int ranks = 1;
  // Of them, how many share each context: 1, 2, 4 or 8, a part of all. They have the same KV heads,
  // and some pages each, so that ranks may outnumber KV heads, and a context one rank's memory. By
  // plans that read all pages: `auto` keeps to these.
  int context_ranks = 1;
  // Or ranks are processes: this engine is rank 0 of them, and all others call Engine::follow().
  std::shared_ptr<Communicator> processes = {};
  int ctx_size = 0;   // tokens of a session; 0: what the model was made for, if that fits
  int page_size = 0;  // 0: by head_dim
  DraftWeights draft_weights = DraftWeights::kAuto;
  std::filesystem::path draft_store = {};  // from `quantspec prepare`; empty: made while loading
  KvStore kv_store = KvStore::kHierarchical;
  // By which requests draft, as Engine::plans() has them; `auto` keeps to draft_weights and to what
  // the cache has. Other names exclude draft_weights.
  std::string plan = "auto";
  KvBudget draft_budget = {};
  // Tokens of its owner's earlier requests, prompts and answers that are done, in which a request
  // without a prediction looks drafts up, too; 0: none. Owner and salt (GenerateOptions) are both
  // the same. The oldest go first, and of 65 owners the one who came longest ago. A sequence takes
  // up to 136 bytes a token for it, and an owner 4; each request reads them anew, 4,096 between two
  // rounds of all, and until it has, looks nothing up. Needs a plan that looks up.
  int lookup_history = 0;
  // Requests that are in the cache at once; further ones wait. 0: 4, or 1 of a cache in full
  // precision, whose memory is not shared.
  int sequences = 0;
  // Bytes of their pages, and of those of prefixes that are kept for later ones: one context's or
  // more. 0: by what memory there is beside all else, at most twice what they can come to hold. Of
  // a device's a sixteenth is left, and the pages are taken when they are first used; of the host's
  // they may use half, and take what they do.
  std::size_t page_memory = 0;
  // Bytes of the host's memory for what preempted requests hold and for prefixes that pages have no
  // room for. 0: none, such requests read again. Not said: on a device an eighth of what the host
  // has available, at most 4 GiB and what the pages take; none elsewhere.
  std::optional<std::size_t> host_cache = {};
  // Bytes of the host's memory for the ends of prompts, so that a conversation's next turn reads
  // what is new of it alone (PromptTails). 0: none, the last chunk is read again. Not said: two of
  // the longest for each sequence, at most a sixteenth of what the host has available.
  std::optional<std::size_t> tail_memory = {};
  // A folder for chunks and ends of prompts, so that another run of this engine finds them, and
  // what it may take of the disk; empty: none. Made where it is missing (ChunkFolder), by rank 0,
  // which alone uses it.
  std::filesystem::path cache_folder = {};
  std::uint64_t cache_folder_bytes = std::uint64_t{10} << 30;
  ProgressCallback progress = {};
};

// What memory goes where for a context of so many tokens.
struct MemoryPlan {
  std::size_t weights_bytes = 0;        // what the target reads, mapped or in planes
  std::size_t draft_weights_bytes = 0;  // the planes that drafts read
  std::size_t kv_bytes = 0;             // quantized pages
  std::size_t ring_bytes = 0;           // recent tokens in full precision
  std::size_t prefill_bytes = 0;        // one layer in full precision, activations, and lookups'
  std::size_t kv_fp16_bytes = 0;        // what an fp16 cache of the same tokens would take
  // Where other requests and what they leave need more than kv_bytes: all pages that there may be,
  // and the host's memory for what they have no room for. No part of total().
  std::size_t page_memory_bytes = 0;
  std::size_t host_cache_bytes = 0;
  std::size_t tail_bytes = 0;  // the host's, for the ends of prompts

  std::size_t total() const {
    return weights_bytes + draft_weights_bytes + kv_bytes + ring_bytes + prefill_bytes;
  }
};

}  // namespace quantspec
