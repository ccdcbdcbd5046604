#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/expect_error.h"
#include "base/json.h"
#include "base/test_folder.h"

namespace quantspec {
namespace {

const std::filesystem::path kTestdata = QUANTSPEC_TESTDATA;

Json small_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_act", "silu"},
          {"hidden_size", 128},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 96},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"torch_dtype", "bfloat16"}};
}

Json with(Json json, const Json& changes) {
  json.update(changes);
  return json;
}

ModelConfig parse(const Json& changes, const Json& generation = nullptr) {
  return parse_config(with(small_config(), changes), generation, "m");
}

void expect_same_rope(const RopeConfig& a, const RopeConfig& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.theta, b.theta);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.attention_factor, b.attention_factor);
  EXPECT_EQ(a.original_max_positions, b.original_max_positions);
  EXPECT_EQ(a.low_freq_factor, b.low_freq_factor);
  EXPECT_EQ(a.high_freq_factor, b.high_freq_factor);
  EXPECT_EQ(a.beta_fast, b.beta_fast);
  EXPECT_EQ(a.beta_slow, b.beta_slow);
  EXPECT_EQ(a.truncate, b.truncate);
  EXPECT_EQ(a.short_factor, b.short_factor);
  EXPECT_EQ(a.long_factor, b.long_factor);
}

TEST(Config, ArchitectureAndTypeMustAgree) {
  EXPECT_EQ(parse({{"model_type", "llama"}}).family, "llama");
  expect_error(
      ErrorKind::kCorruptFile,
      {"m/config.json: model_type must be \"llama\" with the architecture LlamaForCausalLM",
       "found \"mistral\""},
      [] {
        parse({{"model_type", "mistral"}});
      });
  expect_error(ErrorKind::kCorruptFile, {"model_type"}, [] { parse({{"model_type", 1}}); });
}

TEST(Config, FoldersThatAreNoModelSayWhatTheyAre) {
  const TestFolder folder;
  const auto refused = [&](const std::vector<std::string>& mentions) {
    expect_error(ErrorKind::kInvalidRequest, mentions, [&] { load_config(folder.path()); });
  };
  refused({folder.path().string(), "no config.json", "Hugging Face folder"});
  folder.write("some.Q4_K_M.gguf", "GGUF");
  refused({folder.path().string(), "some.Q4_K_M.gguf", "give that file itself"});
  expect_error(ErrorKind::kInvalidRequest, {"no model folder", "or a GGUF file"},
               [&] { load_config(folder / "some.Q4_K_M.gguf"); });
}

TEST(Config, AGenerationConfigThatCannotBeReachedIsAnError) {
  const TestFolder folder;
  folder.write("config.json", small_config().dump());
  EXPECT_NO_THROW(load_config(folder.path()));
  std::filesystem::create_symlink("generation_config.json", folder / "generation_config.json");
  expect_error(ErrorKind::kInvalidRequest, {"generation_config.json", "symbolic links"},
               [&] { load_config(folder.path()); });
}

TEST(Config, SamplingThatCannotBeIsTheFilesFault) {
  for (const auto& [key, value] :
       {std::pair{"repetition_penalty", 1e-38}, {"top_p", 0.0}, {"temperature", -1.0}}) {
    expect_error(ErrorKind::kCorruptFile, {"m/generation_config.json", key}, [&] {
      parse(Json::object(), Json{{key, value}});
    });
  }
  expect_error(ErrorKind::kCorruptFile, {"a number from 0.01 to 100, found 1e-38"}, [] {
    parse(Json::object(), Json{{"repetition_penalty", 1e-38}});
  });
}

TEST(Config, ALongValueIsCutBetweenCharacters) {
  for (const std::string before : {"", "x"}) {
    std::string text = before;
    for (int i = 0; i < 60; ++i) text += "\xC3\xA9";
    try {
      parse(Json{{"hidden_size", {text}}});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("\xC3\xA9..."), std::string::npos) << error.what();
    }
  }
}

TEST(Config, ReadsTheBundledModel) {
  const ModelConfig config =
      load_config(std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m");
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.num_layers, 6);
  EXPECT_EQ(config.hidden_size, 512);
  EXPECT_EQ(config.intermediate_size, 1408);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.vocab_size, 8192);
  EXPECT_EQ(config.max_positions, 32768);
  EXPECT_EQ(config.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kDefault);
  EXPECT_EQ(config.rope.theta, 500000);
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.sliding_window, std::nullopt);
  EXPECT_EQ(config.bos_token, 1);
  EXPECT_EQ(config.eos_tokens, std::vector<TokenId>{2});
  EXPECT_EQ(config.dtype, DType::kBF16);
}

// tests/testdata/models: each folder has its configuration in both spellings.
TEST(Config, BothSpellingsAreOneModel) {
  int count = 0;
  for (const auto& folder : std::filesystem::directory_iterator(kTestdata / "models")) {
    SCOPED_TRACE(folder.path().string());
    const auto parse_file = [&](const char* file) {
      return parse_config(parse_json_file(folder.path() / file), nullptr, folder.path().string());
    };
    const ModelConfig a = parse_file("config.json");
    const ModelConfig b = parse_file("config.other_spelling.json");
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.dtype, b.dtype);
    expect_same_rope(a.rope, b.rope);
    ++count;
  }
  EXPECT_GE(count, 8);
}

// tests/testdata/configs: files that must be refused, and what the message must mention.
TEST(Config, RefusesEveryFileOfTheCollection) {
  const auto folder = kTestdata / "configs";
  const Json expected = parse_json_file(folder / "expected.json");
  ASSERT_GE(expected.size(), 25u);
  for (const auto& [file, outcome] : expected.items()) {
    SCOPED_TRACE(file);
    // Loads: what it cannot do depends on the context, so it is for the engine to refuse.
    if (file == "mistral-sliding-window.json") continue;
    const auto kind =
        outcome.at("kind") == "corrupt" ? ErrorKind::kCorruptFile : ErrorKind::kUnsupportedModel;
    expect_error(kind, {outcome.at("mentions")},
                 [&] { parse_config(parse_json_file(folder / file), nullptr, "m"); });
  }
}

TEST(Config, FamiliesDifferInBiasesAndNorms) {
  EXPECT_TRUE(parse({{"attention_bias", true}}).qkv_bias);
  EXPECT_TRUE(parse({{"attention_bias", true}}).output_bias);
  const auto qwen2 = parse({{"architectures", {"Qwen2ForCausalLM"}}});
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_dim, 32);
  const auto qwen3 = parse({{"architectures", {"Qwen3ForCausalLM"}}});
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128) << "what Qwen3 has without the key";
  EXPECT_FALSE(
      parse({{"architectures", {"MistralForCausalLM"}}, {"attention_bias", true}}).qkv_bias);
}

TEST(Config, AbsentKeysHaveTheirDefaults) {
  Json json = small_config();
  for (const char* key : {"architectures", "num_key_value_heads", "rms_norm_eps", "torch_dtype"}) {
    json.erase(key);
  }
  json["model_type"] = "llama";
  const ModelConfig config = parse_config(json, nullptr, "m");
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.norm_epsilon, 1e-6f);
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_FALSE(config.tied_head);
  EXPECT_TRUE(config.eos_tokens.empty());
}

TEST(Config, SlidingWindowIsReportedWhereItLimits) {
  const auto mistral = [](Json changes) {
    changes["architectures"] = {"MistralForCausalLM"};
    return parse(with({{"max_position_embeddings", 8192}}, changes)).sliding_window;
  };
  EXPECT_EQ(mistral({{"sliding_window", 1024}}), 1024);
  EXPECT_EQ(mistral({{"sliding_window", 8192}}), std::nullopt);
  EXPECT_EQ(mistral({{"sliding_window", nullptr}}), std::nullopt);
  EXPECT_EQ(mistral(Json::object()), 4096) << "what Mistral has without the key";

  const auto qwen2 = [](Json changes) {
    changes["architectures"] = {"Qwen2ForCausalLM"};
    return parse(with({{"sliding_window", 128}}, changes)).sliding_window;
  };
  EXPECT_EQ(qwen2({{"use_sliding_window", false}}), std::nullopt);
  EXPECT_EQ(qwen2({{"use_sliding_window", true}, {"max_window_layers", 0}}), 128);
  EXPECT_EQ(qwen2({{"use_sliding_window", true}, {"max_window_layers", 2}}), std::nullopt);
  expect_error(ErrorKind::kUnsupportedModel, {"sliding_window"}, [&] {
    qwen2({{"use_sliding_window", true}, {"max_window_layers", 1}});
  });
  const Json mixed = {"full_attention", "sliding_attention"};
  expect_error(ErrorKind::kUnsupportedModel, {"sliding_window"}, [&] {
    qwen2({{"use_sliding_window", true}, {"layer_types", mixed}});
  });
  expect_error(ErrorKind::kUnsupportedModel, {"layer_types"}, [&] {
    qwen2({{"use_sliding_window", true}, {"layer_types", {"full_attention", "linear_attention"}}});
  });
}

TEST(Config, RopeAttentionFactorsFollowTheirFormulas) {
  const auto factor = [](const Json& rope) {
    return parse({{"rope_scaling", rope}}).rope.attention_factor;
  };
  EXPECT_DOUBLE_EQ(factor({{"type", "yarn"}, {"factor", 4}}), 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(factor({{"type", "yarn"}, {"factor", 4}, {"attention_factor", 0.5}}), 0.5);
  EXPECT_DOUBLE_EQ(factor({{"type", "yarn"}, {"factor", 4}, {"mscale", 2}, {"mscale_all_dim", 1}}),
                   (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  EXPECT_DOUBLE_EQ(
      factor({{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 128}}),
      0.1 * std::log(4.0) + 1);
  const std::vector<float> ones(16, 1);
  EXPECT_DOUBLE_EQ(factor({{"type", "longrope"},
                           {"short_factor", ones},
                           {"long_factor", ones},
                           {"original_max_position_embeddings", 128}}),
                   std::sqrt(1 + std::log(4.0) / std::log(128.0)));
}

TEST(Config, GenerationConfigGoesBeforeConfig) {
  const ModelConfig config =
      parse({{"eos_token_id", 1}, {"bos_token_id", 3}}, {{"eos_token_id", {5, 6}},
                                                         {"do_sample", true},
                                                         {"temperature", 0.7},
                                                         {"top_p", 0.8},
                                                         {"top_k", 20},
                                                         {"min_p", 0.1},
                                                         {"repetition_penalty", 1.05}});
  EXPECT_EQ(config.eos_tokens, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(config.bos_token, 3);
  EXPECT_EQ(config.generation.do_sample, true);
  EXPECT_EQ(config.generation.temperature, 0.7f);
  EXPECT_EQ(config.generation.top_p, 0.8f);
  EXPECT_EQ(config.generation.top_k, 20);
  EXPECT_EQ(config.generation.min_p, 0.1f);
  EXPECT_EQ(config.generation.repetition_penalty, 1.05f);
  EXPECT_EQ(parse({{"eos_token_id", 1}}, Json::object()).eos_tokens, std::vector<TokenId>{1});
}

TEST(Config, RefusesValuesThatAreNotWhatTheyMustBe) {
  const auto corrupt = [](const std::string& mention, const Json& changes) {
    SCOPED_TRACE(changes.dump());
    expect_error(ErrorKind::kCorruptFile, {mention}, [&] { parse(changes); });
  };
  corrupt("eos_token_id", {{"eos_token_id", 96}});
  corrupt("eos_token_id", {{"eos_token_id", {1, -1}}});
  corrupt("bos_token_id", {{"bos_token_id", 1.5}});
  corrupt("hidden_size", {{"hidden_size", 130}, {"num_attention_heads", 4}});
  corrupt("vocab_size", {{"vocab_size", 18446744073709551615u}});
  corrupt("vocab_size", {{"vocab_size", 1 << 25}});
  corrupt("max_position_embeddings", {{"max_position_embeddings", (1 << 28) + 1}});
  corrupt("rms_norm_eps", {{"rms_norm_eps", "small"}});
  corrupt("tie_word_embeddings", {{"tie_word_embeddings", 1}});
  corrupt("torch_dtype", {{"torch_dtype", 16}});
  corrupt("rope_theta", {{"rope_theta", -1}});
  corrupt("rope_scaling", {{"rope_scaling", {1, 2}}});
  corrupt("high_freq_factor",
          {{"rope_scaling",
            {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}});
  corrupt("layer_types", {{"architectures", {"MistralForCausalLM"}},
                          {"sliding_window", 16},
                          {"layer_types", {"full_attention"}}});
  expect_error(ErrorKind::kUnsupportedModel, {"per layer type"}, [] {
    parse({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}});
  });
  expect_error(ErrorKind::kUnsupportedModel, {"bfloat16"}, [] { parse({{"dtype", "float64"}}); });
  expect_error(ErrorKind::kCorruptFile, {"generation_config.json"}, [] {
    parse(Json::object(), {{"top_p", 2}});
  });
  expect_error(ErrorKind::kInvalidRequest, {"config.json"}, [] { load_config("/nonexistent"); });
}

}  // namespace
}  // namespace quantspec
