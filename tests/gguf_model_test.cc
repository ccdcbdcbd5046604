// Models of GGUF files, and of stores in 8 bits: logits are those of their weights, whatever the
// format, and speculation cannot be seen in what they write (section 3 of docs/design.md).

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "model/safetensors.h"
#include "tests/gguf_support.h"
#include "tests/model_support.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;
using Rows = std::vector<std::vector<float>>;

constexpr int kPage = 64;

Tokens text(int count, int vocab = kGgufVocab) {
  Tokens ids(count);
  for (int i = 0; i < count; ++i) ids[i] = (i * i + 7 * i + 3) % vocab;
  return ids;
}

// Logits of target passes over the tokens from `first` on, so many rows at a time.
Rows decoded_logits(LoadedModel& model, KvCache& cache, std::span<const TokenId> tokens,
                    int rows_of_a_pass, WeightRead read = WeightRead::kTarget) {
  const int layers = model.model.config().num_layers, vocab = model.model.config().vocab_size;
  const Plan plan = read == WeightRead::kTarget ? Plan::target(layers) : Plan::draft(layers, read);
  Rows rows;
  for (std::size_t i = 0; i < tokens.size();) {
    const auto input = tokens.subspan(i, std::min<std::size_t>(rows_of_a_pass, tokens.size() - i));
    const int count = static_cast<int>(input.size());
    std::vector<float> logits(input.size() * vocab);
    cache.reserve(count);
    const SequenceInput sequence{input, &cache};
    model.model.forward({&sequence, 1}, plan, logits);
    cache.settle(count);
    for (int r = 0; r < count; ++r) {
      rows.emplace_back(&logits[std::size_t(r) * vocab], &logits[std::size_t(r) * vocab] + vocab);
    }
    i += input.size();
  }
  return rows;
}

std::vector<float> read_prompt(LoadedModel& model, KvCache& cache, std::span<const TokenId> ids) {
  std::vector<float> logits(model.model.config().vocab_size);
  model.model.prefill(ids, cache, logits);
  return logits;
}

// Of a prompt of 40 tokens, then of six that follow one at a time, then of five at once.
Rows prompt_and_steps(LoadedModel& model) {
  const Tokens tokens = text(51);
  KvCache cache(*model.backend, model.pool, 64);
  Rows rows = {read_prompt(model, cache, std::span(tokens).first(40))};
  for (const auto& [first, count, width] : {std::tuple{40, 6, 1}, {46, 5, 5}}) {
    const auto more = decoded_logits(model, cache, std::span(tokens).subspan(first, count), width);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

double max_difference_over_rms(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double{a[i]} - b[i]));
    sum += double{b[i]} * b[i];
  }
  return most / std::sqrt(sum / static_cast<double>(a.size()));
}

class GgufModels : public ::testing::TestWithParam<GgufModel> {};

// Blocks and the elements that they stand for are the same model. NOTE: the reference computes both
// alike. On a processor K and V are fp16, which costs a model of F32 1.2e-3 of the logits' size
// beside the reference (measured); decoding with planes has activations of two bytes, which costs
// up to 1.3e-3 more, and prompts multiply elements; in bf16, which costs up to 4.1e-2 beside the
// reference. A draft's reading of Q8_0 costs 1e-2 and more. A GPU reads prompts in 16 bits of
// the weights' own type, and planes in bf16: 4.5e-2 at a prompt, 2.4e-2 decoded (on an H100).
struct LogitBounds {
  double prompt, decoded;  // beside the elements
  double reference;
};
LogitBounds logit_bounds(const std::string& backend) {
  if (backend == "cuda") return {6e-2, 4e-2, 6e-2};
  return {5e-4, 2.5e-3, reads_prompts_in_bf16(backend) ? 6e-2 : 6e-3};
}

TEST_P(GgufModels, LogitsAreThoseOfTheirElements) {
  const GgufModelFile blocks(GetParam()), elements(GetParam(), /*as_elements=*/true);
  const auto logits = [](const GgufModelFile& file, const std::string& backend) {
    LoadedModel model(file.path, backend, 2, kPage);
    return prompt_and_steps(model);
  };
  const Rows reference = logits(blocks, "reference");
  EXPECT_EQ(logits(elements, "reference"), reference);
  for (const std::string& name : fast_backends()) {
    const Rows actual = logits(blocks, name), expected = logits(elements, name);
    const LogitBounds bounds = logit_bounds(name);
    for (std::size_t i = 0; i < reference.size(); ++i) {
      EXPECT_LE(max_difference_over_rms(actual[i], expected[i]),
                i == 0 ? bounds.prompt : bounds.decoded)
          << name << ", row " << i;
      EXPECT_LE(max_difference_over_rms(actual[i], reference[i]), bounds.reference)
          << name << ", row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GgufModels, ::testing::ValuesIn(all_gguf_models()),
                         [](const auto& info) { return test_name(info.param.name); });

// auto's: where the target has no more than four bits, 8 are no other plan.
TEST(GgufPlans, ThoseThatReadTheSameAreOne) {
  const auto names = [](const GgufModel& type) {
    const GgufModelFile file(type);
    LoadedModel model(file.path, "cpu", 1, kPage);
    std::string names;
    for (const Plan& plan : distinct_plans(auto_plans({kGgufLayers, kPage}), model.model.weights(),
                                           *model.backend, model.pool.shape())) {
      names += plan.name + ' ';
    }
    return names;
  };
  EXPECT_EQ(names({"Q4_1", "llama", GgufTypes::all(GgmlType::kQ4_1)}),
            "quantspec weights-only+w8 quantspec+sparse@1/4 quantspec+sparse@1/16 ");
  EXPECT_EQ(names(q4_k_m_like()),
            "quantspec quantspec+h8 quantspec+w8 weights-only+w8 quantspec+sparse@1/4 "
            "quantspec+sparse+h8@1/4 quantspec+sparse+w8@1/4 quantspec+sparse@1/16 "
            "quantspec+sparse+h8@1/16 quantspec+sparse+w8@1/16 ");
}

class GgufExactness : public ::testing::TestWithParam<std::tuple<std::string, GgufModel>> {
 protected:
  static constexpr int kPrompt = 70;
  // Over two borders of pages, or where it is slow over one.
  static int decoded() { return std::get<0>(GetParam()) == "cpu/scalar" ? 70 : 140; }

  DecodingOptions options(std::optional<int> draft_len, const std::string& plan = "") const {
    DecodingOptions options = model_.greedy(draft_len, {});
    options.sampling.repeat_penalty = 1.3f;  // or random models would write loops
    if (plan.empty()) return options;
    options.plans = {make_plan(plan, {kGgufLayers, kPage, KvBudget::one_in(2)})};
    return options;
  }

  GgufModelFile file_{std::get<1>(GetParam())};
  mutable LoadedModel model_{file_.path, std::get<0>(GetParam()), 2, kPage};
};

TEST_P(GgufExactness, GreedyOutputDoesNotDependOnPlanAndDraftLength) {
  const Tokens prompt = text(kPrompt);
  const Tokens plain = model_.generate(prompt, decoded(), options(0));
  std::int64_t accepted = 0, rejections = 0;
  for (const char* plan :
       {"quantspec", "quantspec+h8", "quantspec+w8", "quantspec+sparse", "kv-only"}) {
    for (const int draft_len : {1, 4, 16}) {
      RoundStats stats;
      EXPECT_EQ(model_.generate(prompt, decoded(), options(draft_len, plan), &stats), plain)
          << plan << ", draft length " << draft_len;
      accepted += stats.accepted;
      rejections += stats.rejections;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(rejections, 10);
}

TEST_P(GgufExactness, CoupledSamplingEqualsPlainSamplingWithTheSameSeed) {
  const Tokens prompt = text(kPrompt);
  for (const char* plan : {"quantspec", "quantspec+w8", "quantspec+sparse", "kv-only"}) {
    const auto sampled = [&](int draft_len) {
      DecodingOptions sampled = options(draft_len, plan);
      sampled.sampling.temperature = 0.9f;
      sampled.sampling.top_k = 50;
      sampled.sampling.top_p = 0.95f;
      sampled.sampling.seed = 7;
      sampled.spec_sampling = SpecSampling::kCoupled;
      return sampled;
    };
    const Tokens plain = model_.generate(prompt, decoded(), sampled(0));
    for (const int draft_len : {1, 4, 16}) {
      EXPECT_EQ(model_.generate(prompt, decoded(), sampled(draft_len)), plain)
          << plan << ", draft length " << draft_len;
    }
  }
}

TEST_P(GgufExactness, ARowHasTheSameBitsWhateverTheWidthOfThePass) {
  const Tokens tokens = text(200 + 17);
  const auto rest = std::span(tokens).subspan(200);
  KvCache cache(*model_.backend, model_.pool, 300);
  read_prompt(model_, cache, std::span(tokens).first(200));
  const Rows single = decoded_logits(model_, cache, rest, 1);
  for (int width = 2; width <= 17; ++width) {
    cache.truncate(200);
    EXPECT_EQ(decoded_logits(model_, cache, rest.first(width), width),
              Rows(single.begin(), single.begin() + width))
        << width;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mixes, GgufExactness,
    ::testing::Combine(::testing::ValuesIn(fast_backends()),
                       ::testing::Values(q4_k_m_like(), half_billion_like(), q8_0_qwen3())),
    [](const auto& info) {
      return test_name(std::get<0>(info.param) + "_" + std::get<1>(info.param).name);
    });

class QuantizedTargets : public ::testing::TestWithParam<std::string> {};

// Of codes of 8 bits the upper four are other weights, and both planes are the target's. NOTE: a
// draft's attention has a kernel of its own on a GPU, even where it reads no page.
TEST_P(QuantizedTargets, OfQ8ReadOtherWeightsThanDrafts) {
  const GgufModelFile file({"Q8_0", "llama", GgufTypes::all(GgmlType::kQ8_0)});
  LoadedModel model(file.path, GetParam(), 1, kPage);
  const Tokens tokens = text(41);
  std::map<WeightRead, Rows> logits;
  for (const WeightRead read : {WeightRead::kTarget, WeightRead::kBoth, WeightRead::kUpper}) {
    KvCache cache(*model.backend, model.pool, 64);
    read_prompt(model, cache, std::span(tokens).first(40));  // below a page: KV is the same
    logits[read] = decoded_logits(model, cache, std::span(tokens).subspan(40), 1, read);
  }
  const auto difference = [&](WeightRead read) {
    return max_difference_over_rms(logits[read][0], logits[WeightRead::kTarget][0]);
  };
  EXPECT_LE(difference(WeightRead::kBoth), GetParam() == "cuda" ? 1e-5 : 0.0);
  const double other = difference(WeightRead::kUpper);
  EXPECT_GT(other, 0.01);
  EXPECT_LT(other, 1.5);
}

// --target-weights 8, in the codes that this backend makes.
TEST_P(QuantizedTargets, OfEightBitsHaveTheLogitsOfTheReference) {
  const Tokens tokens = text(51, 8192);
  const auto logits = [&](const std::string& backend) {
    LoadedModel model(bundled_model(), backend, 2, kPage, WeightRead::kBoth, 0,
                      TargetWeights::k8Bits, GetParam());
    KvCache cache(*model.backend, model.pool, 64);
    Rows rows = {read_prompt(model, cache, std::span(tokens).first(40))};
    const auto rest = std::span(tokens).subspan(40);
    const Rows together = decoded_logits(model, cache, rest, 11);
    cache.truncate(40);
    EXPECT_EQ(decoded_logits(model, cache, rest, 1), together);
    rows.insert(rows.end(), together.begin(), together.end());
    return rows;
  };
  const Rows expected = logits("reference"), actual = logits(GetParam());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(max_difference_over_rms(actual[i], expected[i]), logit_bounds(GetParam()).reference)
        << "row " << i;
  }
}

TEST_P(QuantizedTargets, OfEightBitsWriteTheSameWithDraftsAndWithout) {
  LoadedModel model(bundled_model(), GetParam(), 2, kPage, WeightRead::kBoth, 0,
                    TargetWeights::k8Bits);
  const Tokens prompt = text(200, 8192);
  const Tokens plain = model.generate(prompt, 150, model.greedy(0));
  for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth}) {
    EXPECT_EQ(model.generate(prompt, 150, model.greedy(6, {read})), plain) << int(read);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantizedTargets, ::testing::ValuesIn(fast_backends()),
                         [](const auto& info) { return test_name(info.param); });

// --- the same model from a folder and from a file ------------------------------------------------

// Rows of Q and K as converters order them for ggml's rotation of adjacent channels.
std::string permuted(const std::string& bytes, int rows, int head_dim) {
  const std::size_t row_size = bytes.size() / rows;
  std::string result(bytes.size(), '\0');
  for (int row = 0; row < rows; ++row) {
    const int in_head = row % head_dim, half = head_dim / 2;
    const int p = in_head / half, i = in_head % half;
    const int to = row - in_head + 2 * i + p;
    std::memcpy(result.data() + to * row_size, bytes.data() + row * row_size, row_size);
  }
  return result;
}

// A folder of the family llama, of BF16, as a file.
class ConvertedFolder {
 public:
  explicit ConvertedFolder(const std::filesystem::path& folder)
      : config_(load_config(folder)), checkpoint_(folder) {
    keys();
    matrix("model.embed_tokens", "token_embd", config_.vocab_size, config_.hidden_size);
    norm("model.norm", "output_norm");
    for (int i = 0; i < config_.num_layers; ++i) {
      layer(fmt::format("model.layers.{}.", i), fmt::format("blk.{}.", i));
    }
    path_ = folder_.write("model.gguf", writer_.file());
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  void keys() {
    writer_.add("general.architecture", "llama");
    const auto add = [&](const char* key, int value) {
      writer_.add(std::string("llama.") + key, static_cast<std::uint32_t>(value));
    };
    add("block_count", config_.num_layers);
    add("context_length", config_.max_positions);
    add("embedding_length", config_.hidden_size);
    add("feed_forward_length", config_.intermediate_size);
    add("attention.head_count", config_.num_heads);
    add("attention.head_count_kv", config_.num_kv_heads);
    add("rope.dimension_count", config_.head_dim);
    add("vocab_size", config_.vocab_size);
    writer_.add("llama.attention.layer_norm_rms_epsilon", config_.norm_epsilon);
    writer_.add("llama.rope.freq_base", static_cast<float>(config_.rope.theta));
  }
  void layer(const std::string& from, const std::string& to) {
    const int hidden = config_.hidden_size, mlp = config_.intermediate_size;
    const int q = config_.num_heads * config_.head_dim;
    const int kv = config_.num_kv_heads * config_.head_dim;
    matrix(from + "self_attn.q_proj", to + "attn_q", q, hidden, config_.head_dim);
    matrix(from + "self_attn.k_proj", to + "attn_k", kv, hidden, config_.head_dim);
    matrix(from + "self_attn.v_proj", to + "attn_v", kv, hidden);
    matrix(from + "self_attn.o_proj", to + "attn_output", hidden, q);
    matrix(from + "mlp.gate_proj", to + "ffn_gate", mlp, hidden);
    matrix(from + "mlp.up_proj", to + "ffn_up", mlp, hidden);
    matrix(from + "mlp.down_proj", to + "ffn_down", hidden, mlp);
    norm(from + "input_layernorm", to + "attn_norm");
    norm(from + "post_attention_layernorm", to + "ffn_norm");
  }
  void matrix(const std::string& from, const std::string& to, int rows, int cols,
              int rotated_head = 0) {
    const TensorView view = checkpoint_.tensor(from + ".weight", rows, cols);
    ASSERT_EQ(view.dtype, DType::kBF16);
    std::string bytes(static_cast<const char*>(view.data), std::size_t{2} * rows * cols);
    if (rotated_head > 0) bytes = permuted(bytes, rows, rotated_head);
    writer_.tensor(to + ".weight", GgmlType::kBF16, {cols, rows}, bytes);
  }
  void norm(const std::string& from, const std::string& to) {
    const int size = config_.hidden_size;
    const TensorView view = checkpoint_.tensor(from + ".weight", 1, size);
    std::vector<float> values(size);
    for (int i = 0; i < size; ++i) values[i] = load_f32(view.data, view.dtype, i);
    writer_.tensor(to + ".weight", GgmlType::kF32, {size}, bytes_of(values));
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
  GgufWriter writer_;
  TestFolder folder_;
  std::filesystem::path path_;
};

class GgufOfAFolder : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufOfAFolder, HasTheBitsOfTheFolder) {
  const ConvertedFolder file(bundled_model());
  const Tokens tokens = text(300, 8192);
  std::vector<Rows> results;
  for (const auto& path : {bundled_model(), file.path()}) {
    LoadedModel model(path, GetParam(), 2);
    KvCache cache(*model.backend, model.pool, 320);
    Rows rows = {read_prompt(model, cache, std::span(tokens).first(290))};
    const auto rest = std::span(tokens).subspan(290);
    for (const WeightRead read : {WeightRead::kTarget, WeightRead::kUpper}) {
      const auto more = decoded_logits(model, cache, rest.first(5), 5, read);
      rows.insert(rows.end(), more.begin(), more.end());
      cache.truncate(290);
    }
    EXPECT_TRUE(model.model.weights().unread_tensors().empty());
    results.push_back(rows);
  }
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(Backends, GgufOfAFolder, ::testing::ValuesIn(best_backends()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace quantspec::testing
