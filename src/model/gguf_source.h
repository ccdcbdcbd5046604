// The weights and the configuration of a GGUF file, as those of a model of transformers. Private to
// model/.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace quantspec {

// What the file calls a key of config.json, those of rope_scaling as "rope_scaling: key". Others
// stay as they are.
std::string gguf_key(const Gguf& file, std::string_view key);

// What the metadata says, through parse_config(): what a folder's config.json would. Messages name
// the file's own keys.
// Throws kUnsupportedModel for other architectures than llama, qwen2 and qwen3.
ModelConfig gguf_config(const Gguf& file);

std::unique_ptr<WeightSource> gguf_source(std::shared_ptr<const Gguf> file,
                                          const ModelConfig& config);

}  // namespace quantspec
