// Checkpoints: any bytes as a safetensors file and as an index; and a folder of an index and two
// shards, or of one file, from which the weights of a small model are read. Only Error may come
// out, and what is accepted must lie within its file.
#include <cstring>
#include <span>

#include "backend/backend.h"
#include "base/json.h"
#include "fuzz_input.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/weights.h"

using namespace quantspec;

namespace {

// One layer; fuzz/make_seeds.py writes checkpoints of it.
const ModelConfig& small_config() {
  static const ModelConfig config =
      parse_config(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 24,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": true})"),
                   nullptr, "f");
  return config;
}

void parse_alone(std::string_view bytes) {
  try {
    const auto file = std::as_bytes(std::span(bytes));
    for (const auto& [name, entry] : parse_safetensors(file, "f")) {
      require(entry.begin <= entry.end && entry.end <= file.size());
    }
  } catch (const Error& error) {
    refused(error);
  }
  try {
    parse_safetensors_index(parse_json(bytes, "f"), "f");
  } catch (const Error& error) {
    refused(error);
  }
}

std::string safetensors(std::string_view part) {
  const auto [header, data] = read_header_and_data(part);
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return (file += header) + data;
}

void load(const std::filesystem::path& folder) {
  static const auto backend = make_backend({.name = "reference", .num_threads = 1});
  const Checkpoint checkpoint(folder);
  checkpoint.hash();  // reads every byte
  unread_tensors(small_config(), checkpoint);
  const Weights weights(small_config(), std::make_unique<Checkpoint>(folder), *backend);
  weights.require_unchanged();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = parts_of(data, size, 3);
  parse_alone({reinterpret_cast<const char*>(data), size});
  const bool sharded = parts.size() > 1;
  write_or_remove("model.safetensors", sharded ? "" : safetensors(parts[0]));
  write_or_remove("model.safetensors.index.json", sharded ? std::string(parts[0]) : "");
  for (std::size_t i = 1; i < 3; ++i) {
    const std::string file = i < parts.size() ? safetensors(parts[i]) : std::string();
    write_or_remove(std::to_string(i) + ".safetensors", file);
  }
  try {
    load(memory_folder().path());
  } catch (const Error& error) {
    refused(error);
  }
  return 0;
}
