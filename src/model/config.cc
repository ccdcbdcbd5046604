#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "model/config_fields.h"
#include "model/json_fields.h"
#include "model/rope_config.h"
#include "sampler/parameters.h"

namespace quantspec {

namespace {

// Caps that no model comes near: beyond them a number is a broken file, and the bytes of a cache of
// kMaxPositions tokens still fit 64 bits (2^12 layers, 2^12 heads of 2^8 channels, K and V, fp32).
constexpr int kMaxLayers = 1 << 12;
constexpr int kMaxWidth = 1 << 22;  // hidden, intermediate
constexpr int kMaxHeads = 1 << 12;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxPositions = 1 << 28;

// What sets one family apart, by the name of its architecture.
struct Family {
  std::string_view architecture;
  std::string_view name;  // = model_type
  int default_head_dim;   // 0: hidden_size / num_attention_heads
  bool qk_norm;
};
constexpr std::array kFamilies = {Family{"LlamaForCausalLM", "llama", 0, false},
                                  Family{"MistralForCausalLM", "mistral", 0, false},
                                  Family{"Qwen2ForCausalLM", "qwen2", 0, false},
                                  Family{"Qwen3ForCausalLM", "qwen3", 128, true}};

const Family& find_family(const Fields& config) {
  static const std::string supported = [] {
    std::vector<std::string_view> names;
    for (const Family& family : kFamilies) names.push_back(family.architecture);
    return fmt::format("{}", fmt::join(names, ", "));
  }();
  const auto select = [&](std::string_view key, const std::string& found,
                          auto member) -> const Family& {
    for (const Family& family : kFamilies) {
      if (family.*member == found) return family;
    }
    config.unsupported(key, supported);
  };
  const Json* architectures = config.find("architectures");
  const std::string* type = config.find_string("model_type");
  if (architectures == nullptr) {
    if (type == nullptr) config.corrupt("architectures", "a list of one name");
    return select("model_type", *type, &Family::name);
  }
  if (!architectures->is_array() || architectures->empty() || !architectures->front().is_string()) {
    config.corrupt("architectures", "a list of one name");
  }
  const Family& family =
      select("architectures", architectures->front().get<std::string>(), &Family::architecture);
  // transformers goes by model_type, where there is one.
  if (type != nullptr && *type != family.name) {
    config.corrupt("model_type", fmt::format("\"{}\" with the architecture {}", family.name,
                                             family.architecture));
  }
  return family;
}

// Features that change the computation, in any family's config.
void refuse_missing_features(const Fields& config) {
  if (config.find("quantization_config") != nullptr) {
    config.unsupported("quantization_config", "checkpoints in bf16, fp16 or fp32");
  }
  for (const std::string_view key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.find(key) != nullptr) config.unsupported(key, "models without soft-capping");
  }
  const std::string* activation = config.find_string("hidden_act");
  if (activation != nullptr && *activation != "silu") config.unsupported("hidden_act", "silu");
  if (config.flag("mlp_bias", false)) config.unsupported("mlp_bias", "false");
}

DType parse_dtype(const Fields& config) {
  const std::string_view key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string* name = config.find_string(key);
  if (name == nullptr || *name == "float32") return DType::kF32;
  if (*name == "float16") return DType::kF16;
  if (*name == "bfloat16") return DType::kBF16;
  config.unsupported(key, "bfloat16, float16, float32");
}

void parse_heads(const Fields& config, const Family& family, ModelConfig& model) {
  model.num_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  model.num_kv_heads =
      config.find_integer("num_key_value_heads", 1, kMaxHeads).value_or(model.num_heads);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.corrupt(
        "num_key_value_heads",
        fmt::format("a divisor of {} = {}", config.name("num_attention_heads"), model.num_heads));
  }
  const auto head_dim = config.find_integer("head_dim", 1, kMaxWidth);
  if (!head_dim && family.default_head_dim == 0 && model.hidden_size % model.num_heads != 0) {
    config.corrupt("hidden_size", fmt::format("a multiple of {} = {}, or {} be given",
                                              config.name("num_attention_heads"), model.num_heads,
                                              config.name("head_dim")));
  }
  model.head_dim = head_dim.value_or(
      family.default_head_dim > 0 ? family.default_head_dim : model.hidden_size / model.num_heads);
  if (model.head_dim % 16 != 0 || model.head_dim > 256) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: {} = {} is not supported; supported: multiples of 16 up to 256", config.where(),
         config.name("head_dim"), model.head_dim);
  }
}

// How many layers attend through a sliding window: what layer_types says, or else those from
// `first_sliding` on.
int count_sliding_layers(const Fields& config, int num_layers, int first_sliding) {
  const Json* types = config.find("layer_types");
  if (types == nullptr) return std::max(0, num_layers - first_sliding);
  if (!types->is_array() || types->size() != static_cast<std::size_t>(num_layers)) {
    config.corrupt("layer_types", fmt::format("a list of {} names", num_layers));
  }
  const auto count = [&](const char* name) {
    return static_cast<int>(std::count(types->begin(), types->end(), name));
  };
  const int num_sliding = count("sliding_attention");
  if (num_sliding + count("full_attention") != num_layers) {
    config.unsupported("layer_types", "full_attention, sliding_attention");
  }
  return num_sliding;
}

std::optional<int> parse_sliding_window(const Fields& config, const ModelConfig& model) {
  constexpr int kDefaultWindow = 4096;  // where the key is absent; a null is no window
  constexpr int kDefaultFirstLayer = 28;
  if (model.family == "llama") return std::nullopt;
  const bool is_mistral = model.family == "mistral";
  if (!is_mistral && !config.flag("use_sliding_window", false)) return std::nullopt;
  const auto window = config.contains("sliding_window")
                          ? config.find_integer("sliding_window", 1, kMaxPositions)
                          : kDefaultWindow;
  if (!window || *window >= model.max_positions) return std::nullopt;
  const int first_sliding =
      is_mistral
          ? 0
          : config.find_integer("max_window_layers", 0, kMaxPositions).value_or(kDefaultFirstLayer);
  const int num_sliding = count_sliding_layers(config, model.num_layers, first_sliding);
  if (num_sliding == 0) return std::nullopt;
  if (num_sliding < model.num_layers) {
    config.unsupported("sliding_window", "a window in no layer or in every layer");
  }
  return window;
}

void parse_generation(const Fields& fields, ModelConfig& model) {
  constexpr auto temperature = sampling_param<&SamplingParams::temperature>();
  constexpr auto top_p = sampling_param<&SamplingParams::top_p>();
  constexpr auto top_k = sampling_param<&SamplingParams::top_k>();
  constexpr auto min_p = sampling_param<&SamplingParams::min_p>();
  constexpr auto penalty = sampling_param<&SamplingParams::repeat_penalty>();
  model.generation = {
      .do_sample = fields.find_flag("do_sample"),
      .temperature = fields.find_float("temperature", temperature.low, temperature.high),
      .top_p = fields.find_float("top_p", top_p.low, top_p.high),
      .top_k = fields.find_integer("top_k", top_k.low, top_k.high),
      .min_p = fields.find_float("min_p", min_p.low, min_p.high),
      .repetition_penalty = fields.find_float("repetition_penalty", penalty.low, penalty.high)};
  auto eos_tokens = fields.integers("eos_token_id", 0, model.vocab_size - 1);
  if (!eos_tokens.empty()) model.eos_tokens = std::move(eos_tokens);
  if (const auto bos = fields.find_integer("bos_token_id", 0, model.vocab_size - 1)) {
    model.bos_token = bos;
  }
}

}  // namespace

ModelConfig parse_config_fields(const Fields& config) {
  const Family& family = find_family(config);
  refuse_missing_features(config);

  ModelConfig model{};
  model.family = family.name;
  model.num_layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  model.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  model.intermediate_size = config.integer("intermediate_size", 1, kMaxWidth);
  model.vocab_size = config.integer("vocab_size", 1, kMaxVocab);
  model.max_positions = config.integer("max_position_embeddings", 2, kMaxPositions);
  model.norm_epsilon = config.find_float("rms_norm_eps", 0, 1).value_or(1e-6f);
  parse_heads(config, family, model);
  const bool attention_bias = config.flag("attention_bias", false);
  model.output_bias = (family.name == "llama" || family.name == "qwen3") && attention_bias;
  model.qkv_bias = family.name == "qwen2" || model.output_bias;
  model.qk_norm = family.qk_norm;
  model.tied_head = config.flag("tie_word_embeddings", false);
  model.dtype = parse_dtype(config);
  model.sliding_window = parse_sliding_window(config, model);
  model.rope = parse_rope(config, model);
  model.bos_token = config.find_integer("bos_token_id", 0, model.vocab_size - 1);
  model.eos_tokens = config.integers("eos_token_id", 0, model.vocab_size - 1);
  return model;
}

ModelConfig parse_config(const Json& config, const Json& generation, std::string_view where) {
  ModelConfig model = parse_config_fields(Fields(config, fmt::format("{}/config.json", where)));
  if (!generation.is_null()) {
    parse_generation(Fields(generation, fmt::format("{}/generation_config.json", where)), model);
  }
  return model;
}

namespace {

// A folder without config.json: of what else, perhaps.
[[noreturn]] void fail_without_config(const std::filesystem::path& model_dir) {
  for (const auto& path : list_folder(model_dir)) {
    if (path.extension() != ".gguf") continue;
    fail(ErrorKind::kInvalidRequest, "{} has no config.json but {}: give that file itself",
         model_dir.string(), path.filename().string());
  }
  fail(ErrorKind::kInvalidRequest,
       "{} has no config.json; a model is a Hugging Face folder with config.json and safetensors, "
       "or a GGUF file",
       model_dir.string());
}

}  // namespace

ModelConfig load_config(const std::filesystem::path& model_dir) {
  if (!is_folder(model_dir)) {
    fail(ErrorKind::kInvalidRequest,
         "{} is no model folder; a model is a Hugging Face folder with config.json and "
         "safetensors, or a "
         "GGUF file",
         model_dir.string());
  }
  const auto config = model_dir / "config.json";
  const auto generation = model_dir / "generation_config.json";
  if (!file_exists(config)) fail_without_config(model_dir);
  return parse_config(parse_json_file(config),
                      file_exists(generation) ? parse_json_file(generation) : Json(nullptr),
                      model_dir.string());
}

}  // namespace quantspec
