// What a run holds besides its cache. Private to bench/.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace quantspec::bench {

// Of reading a prompt into a cache of `capacity` tokens, which comes on top of it, and of rounds of
// so many sequences; 0: of a cache in full precision, whose pages need no room to be unpacked.
std::size_t prefill_bytes(Engine& engine, int capacity, int sequences = 1);
// Of the decoder of such rounds.
std::size_t decoder_bytes(Engine& engine, int sequences = 1);
// Of the backend's memory, for one of the engine's ranks, with what it has taken of that.
std::size_t available_bytes(Engine& engine);
// What they take together, of which each takes this.
MemoryPlan of_all_ranks(MemoryPlan each, const Engine& engine);
// Of all planes that these plans read, each once, and that targets do not.
std::size_t draft_weights_bytes(const Model& model, const std::vector<Plan>& plans);

}  // namespace quantspec::bench
