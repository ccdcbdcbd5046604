// A configuration from the keys of a config.json, wherever they come from. Private to model/.
#pragma once

#include "model/config.h"
#include "model/json_fields.h"

namespace quantspec {

ModelConfig parse_config_fields(const Fields& config);

}  // namespace quantspec
