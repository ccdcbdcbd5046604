// What GGUF's metadata say of a model, and what is refused of them.
#include <gtest/gtest.h>

#include <cmath>

#include "chat/chat.h"
#include "model/gguf_test_support.h"
#include "model/rope.h"

namespace quantspec {
namespace {

using namespace tiny_gguf;

TEST(GgufConfig, EveryKeyIsRead) {
  TinyFile file;
  const ModelConfig config = file.config();
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.hidden_size, kHidden);
  EXPECT_EQ(config.intermediate_size, kMlp);
  EXPECT_EQ(config.vocab_size, kVocab);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.num_heads, kHeads);
  EXPECT_EQ(config.num_kv_heads, kKvHeads);
  EXPECT_EQ(config.head_dim, kHeadDim);
  EXPECT_EQ(config.norm_epsilon, 2e-5f);
  EXPECT_EQ(config.rope.theta, 5000);
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kDefault);
  EXPECT_FALSE(config.tied_head || config.sliding_window || config.bos_token);
  EXPECT_TRUE(config.eos_tokens.empty());
}

TEST(GgufConfig, WhatAFileMayLeaveOut) {
  TinyFile file;
  file.drop("attention.head_count_kv").drop("attention.key_length").drop("rope.freq_base");
  const ModelConfig config = file.config();
  EXPECT_EQ(config.num_kv_heads, kHeads);
  EXPECT_EQ(config.head_dim, kHidden / kHeads);
  EXPECT_EQ(config.rope.theta, 10000);
}

TEST(GgufConfig, ArchitecturesHaveTheirBiasesAndNorms) {
  for (const std::string arch : {"llama", "qwen2", "qwen3"}) {
    TinyFile file(arch);
    const ModelConfig config = file.config();
    EXPECT_EQ(config.family, arch);
    EXPECT_EQ(config.qkv_bias, arch == "qwen2");
    EXPECT_EQ(config.output_bias, false);
    EXPECT_EQ(config.qk_norm, arch == "qwen3");
    EXPECT_TRUE(file.load().unread_tensors().empty()) << arch;
  }
  TinyFile biased;
  biased.biases().vector("blk.0.attn_output.bias", kHidden);
  EXPECT_TRUE(biased.config().qkv_bias && biased.config().output_bias);
  EXPECT_TRUE(biased.load().unread_tensors().empty());
}

TEST(GgufConfig, TokensThatBeginAndEndATextAreTheVocabularys) {
  TinyFile file;
  std::vector<std::string> tokens;
  for (int i = 0; i < kVocab; ++i) tokens.push_back("t" + std::to_string(i));
  file.set("tokenizer.ggml.tokens", tokens);
  file.set("tokenizer.ggml.bos_token_id", 1u).set("tokenizer.ggml.eos_token_id", 7u);
  EXPECT_EQ(file.config().bos_token, 1);
  EXPECT_EQ(file.config().eos_tokens, std::vector<TokenId>{7});
}

TEST(GgufConfig, ChatTemplatesHaveNames) {
  TinyFile file;
  EXPECT_TRUE(open_model(file.write())->chat_templates().empty());
  file.set("tokenizer.chat_template", "{{ messages }}");
  file.set("tokenizer.chat_templates", std::vector<std::string>{"default", "tool_use", "missing"});
  file.set("tokenizer.chat_template.tool_use", "{{ tools }}");
  const auto templates = open_model(file.write())->chat_templates();
  ASSERT_EQ(templates.size(), 2u);
  EXPECT_EQ(templates[0].name, "default");
  EXPECT_EQ(templates[1].name, "tool_use");
  EXPECT_EQ(templates[1].source, "{{ tools }}");
}

TEST(GgufConfig, AChatTemplateThatIsNoTextIsWarnedOf) {
  TinyFile file;
  file.set("tokenizer.chat_template", "");
  EXPECT_TRUE(open_model(file.write())->chat_templates().empty());
  file.set("tokenizer.chat_template", 1u);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(open_model(file.write())->chat_templates().empty());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("tokenizer.chat_template"), std::string::npos) << log;
}

TEST(GgufConfig, ASlidingWindowIsOfEveryLayer) {
  for (const std::string arch : {"qwen2", "qwen3"}) {
    TinyFile file(arch);
    EXPECT_EQ(file.put("attention.sliding_window", 100u).config().sliding_window, 100) << arch;
    EXPECT_FALSE(file.put("attention.sliding_window", 512u).config().sliding_window) << arch;
  }
  // ggml has none in llama.
  EXPECT_FALSE(TinyFile().put("attention.sliding_window", 100u).config().sliding_window);
}

TEST(GgufConfig, TheTypesOfScaledRope) {
  TinyFile none, linear, yarn;
  EXPECT_EQ(none.put("rope.scaling.type", "none").config().rope.type, RopeConfig::Type::kDefault);
  linear.put("rope.scaling.type", "linear").put("rope.scaling.factor", 4.0f);
  EXPECT_EQ(linear.config().rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(linear.config().rope.factor, 4);

  yarn.put("rope.scaling.type", "yarn").put("rope.scaling.factor", 4.0f);
  yarn.put("rope.scaling.original_context_length", 128u);
  RopeConfig rope = yarn.config().rope;
  EXPECT_EQ(rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_max_positions, 128);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(4.0) + 1);

  yarn.put("rope.scaling.yarn_beta_fast", 16.0f).put("rope.scaling.yarn_beta_slow", 2.0f);
  yarn.put("rope.scaling.attn_factor", 0.5f);
  rope = yarn.config().rope;
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 2);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.5 * (0.1 * std::log(4.0) + 1));
}

TEST(GgufConfig, FactorsOfRopeDivideTheFrequenciesAtAnyLength) {
  std::vector<float> factors;
  for (int i = 0; i < kHeadDim / 2; ++i) factors.push_back(1 + 0.5f * static_cast<float>(i));
  TinyFile file;
  file.tensor("rope_freqs.weight", GgmlType::kF32, {kHeadDim / 2}, bytes_of(factors));
  const ModelConfig config = file.config();
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kLongrope);
  EXPECT_EQ(config.rope.short_factor, factors);
  EXPECT_EQ(config.rope.long_factor, factors);
  EXPECT_EQ(config.rope.attention_factor, 1);
  EXPECT_TRUE(file.load().unread_tensors().empty());
  for (const int context : {16, 512}) {
    float cosines[kHeadDim / 2], sines[kHeadDim / 2];
    Rope(config, context).tables(3, 1, cosines, sines);
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = 3 * std::pow(5000.0, -2.0 * i / kHeadDim) / factors[i];
      EXPECT_NEAR(cosines[i], std::cos(angle), 1e-6) << i;
      EXPECT_NEAR(sines[i], std::sin(angle), 1e-6) << i;
    }
  }
}

// --- refusals ------------------------------------------------------------------------------------

TEST(GgufConfig, WhatIsNotSupportedIsRefusedByItsKey) {
  unsupported({"the architecture \"gemma\"", "supported: llama, qwen2, qwen3"},
              TinyFile().set("general.architecture", "gemma"));
  unsupported({"llama.expert_count"}, TinyFile().put("expert_count", 8u));
  unsupported({"llama.attn_logit_softcapping"}, TinyFile().put("attn_logit_softcapping", 50.0f));
  unsupported({"qwen2.final_logit_softcapping"},
              TinyFile("qwen2").put("final_logit_softcapping", 30.0f));
  for (const std::string name :
       {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
    unsupported({"qwen3." + name, "the same in all layers"},
                TinyFile("qwen3").put(name, std::vector<std::uint32_t>{2, 4}));
  }
  unsupported({"llama.rope.dimension_count = 16", "32"},
              TinyFile().put("rope.dimension_count", 16u));
  unsupported({"llama.rope.scaling.type = \"longer\"", "supported: none, linear, yarn"},
              TinyFile().put("rope.scaling.type", "longer"));
  EXPECT_NO_THROW(TinyFile().put("expert_count", 0u).load());
  EXPECT_NO_THROW(TinyFile().put("final_logit_softcapping", 0.0f).load());
  EXPECT_NO_THROW(TinyFile().put("rope.dimension_count", 32u).load());
}

TEST(GgufConfig, KeysThatAreMissingOrMakeNoSenseAreNamed) {
  for (const std::string name : {"block_count", "embedding_length", "feed_forward_length",
                                 "context_length", "attention.head_count"}) {
    const std::string key = "llama." + name;
    corrupt({"tiny.gguf: " + key + " must be an integer from", "nothing"}, TinyFile().drop(name));
    corrupt({"tiny.gguf: " + key, "found 0"}, TinyFile().put(name, 0u));
    corrupt({key}, TinyFile().put(name, "many"));
  }
  corrupt({"general.architecture is missing"}, TinyFile().drop("general.architecture"));
  corrupt({"llama.attention.head_count_kv must be a divisor of llama.attention.head_count = 4",
           "found 3"},
          TinyFile().put("attention.head_count_kv", 3u));
  unsupported({"llama.attention.key_length = 24 is not supported"},
              TinyFile().put("attention.key_length", 24u));
  corrupt({"llama.attention.layer_norm_rms_epsilon must be"},
          TinyFile().put("attention.layer_norm_rms_epsilon", -1.0f));
  corrupt({"llama.rope.freq_base must be"}, TinyFile().put("rope.freq_base", 0.0f));
  corrupt({"llama.rope.scaling.factor must be"}, TinyFile().put("rope.scaling.type", "linear"));
  corrupt({"tiny.gguf: rope_freqs.weight must be a list of 16 positive numbers"},
          TinyFile().vector("rope_freqs.weight", 8));
}

// A bias that is left out changes the text.
TEST(GgufConfig, BiasesThatAModelWouldNotReadAreRefused) {
  for (const char* arch : {"llama", "qwen3"}) {
    unsupported({"blk.0.attn_q.bias", arch}, TinyFile(arch).vector("blk.0.attn_q.bias", kQ));
    unsupported({"blk.0.ffn_up.bias", arch}, TinyFile(arch).vector("blk.0.ffn_up.bias", 8));
  }
  unsupported({"blk.0.attn_output.bias", "qwen2"},
              TinyFile("qwen2").vector("blk.0.attn_output.bias", kHidden));
}

}  // namespace
}  // namespace quantspec
