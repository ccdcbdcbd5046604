// Any bytes as config.json and as generation_config.json: only Error may come out, and what is
// accepted must give RoPE tables and the bytes of every part of the longest context.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/json.h"
#include "engine/memory_plan.h"
#include "fuzz_input.h"
#include "model/blank_source.h"
#include "model/config.h"
#include "model/rope.h"

using namespace quantspec;

namespace {

void make_tables(const ModelConfig& config) {
  std::vector<float> cos(config.head_dim / 2);
  std::vector<float> sin(config.head_dim / 2);
  Rope(config, config.max_positions).tables(config.max_positions - 1, 1, cos.data(), sin.data());
}

void count_bytes(const ModelConfig& config) {
  static const std::unique_ptr<Backend> backend = make_backend({.name = "cpu", .num_threads = 1});
  MemoryPlanner({}, config, *backend, BlankSource()).plan(kMaxContext);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "f");
    const ModelConfig config = parse_config(json, json, "f");
    make_tables(config);
    count_bytes(config);
  } catch (const Error& error) {
    refused(error);
  }
  return 0;
}
