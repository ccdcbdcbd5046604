// Any bytes as config.json and as generation_config.json: only Error may come out, and what is
// accepted must give RoPE tables.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/config.h"
#include "model/rope.h"

using namespace quantspec;

namespace {

void make_tables(const ModelConfig& config) {
  std::vector<float> cos(config.head_dim / 2);
  std::vector<float> sin(config.head_dim / 2);
  Rope(config).tables(config.max_positions - 1, 1, config.max_positions, cos.data(), sin.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "f");
    make_tables(parse_config(json, json, "f"));
  } catch (const Error&) {
  }
  return 0;
}
