// Where memory goes, known before any of it is allocated.
#pragma once

#include "engine/engine.h"

namespace quantspec {

// The planes that a choice of draft weights keeps.
WeightRead planes_kept(DraftWeights draft_weights);

// The most tokens a context may be asked to hold, whatever the memory.
inline constexpr int kMaxContext = 1 << 28;

// The plan of one session of `context` tokens with a prompt as long as the context.
// checkpoint_bytes: of the model's files.
MemoryPlan plan_memory(const ModelConfig& config, const Backend& backend, const KvShape& shape,
                       std::size_t checkpoint_bytes, DraftWeights draft_weights, int context);

// The longest context whose plan fits `available` bytes; 0 when none does.
int largest_context(const ModelConfig& config, const Backend& backend, const KvShape& shape,
                    std::size_t checkpoint_bytes, DraftWeights draft_weights,
                    std::size_t available);

// Bytes of the *.safetensors files of a folder.
std::size_t checkpoint_bytes_of(const std::filesystem::path& model_dir);

}  // namespace quantspec
