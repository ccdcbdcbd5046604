// The weights and the configuration of a GGUF file, as those of a model of transformers. Private to
// model/.
#pragma once

#include <memory>

#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace quantspec {

// What the metadata says, through parse_config(): what a folder's config.json would.
// Throws kUnsupportedModel for other architectures than llama, qwen2 and qwen3.
ModelConfig gguf_config(const Gguf& file);

std::unique_ptr<WeightSource> gguf_source(std::shared_ptr<const Gguf> file,
                                          const ModelConfig& config);

}  // namespace quantspec
