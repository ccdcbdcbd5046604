// The RoPE parameters of a config.json, in both of its spellings.
#pragma once

#include "model/config.h"
#include "model/json_fields.h"

namespace quantspec {

// `config` is the whole of config.json. REQUIRES: model.head_dim and model.max_positions are set.
RopeConfig parse_rope(const Fields& config, const ModelConfig& model);

}  // namespace quantspec
