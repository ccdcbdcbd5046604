// What the cross-floor tests share: a loaded model with its backend and page pool, and generation
// without a tokenizer.
#pragma once

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/model_files.h"
#include "model/weight_source.h"
#include "speculative/speculative.h"

namespace quantspec {

KvOptions with_rivals(KvOptions options, Backend& backend, const KvShape& shape);  // rivals/

}  // namespace quantspec

namespace quantspec::testing {

// A backend by name: "reference", "cpu" on an instruction set, as "cpu/avx2", or "cuda", also with
// other constants, as "cuda/overlaps=0".
inline std::unique_ptr<Backend> backend_named(const std::string& name, int num_threads) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return make_backend({name, num_threads});
  const std::string kind = name.substr(0, slash);
  const char* const variable = kind == "cuda" ? "QUANTSPEC_TUNING" : "QUANTSPEC_ISA";
  setenv(variable, name.substr(slash + 1).c_str(), 1);
  auto backend = make_backend({kind, num_threads});
  unsetenv(variable);
  return backend;
}

// The names under which every backend of this machine can be had.
inline std::vector<std::string> cpu_backends() {
  std::vector<std::string> names;
  for (const std::string& isa : cpu_instruction_sets()) names.push_back("cpu/" + isa);
  return names;
}
// Products of prompts are in bf16, as docs/cpu.md says of these instruction sets.
inline bool reads_prompts_in_bf16(const std::string& backend) { return backend.ends_with("bf16"); }
inline bool has_gpu() {
  try {
    make_backend({"cuda"});
    return true;
  } catch (const Error&) {
    return false;
  }
}
// All but the reference, which is slow.
inline std::vector<std::string> fast_backends() {
  std::vector<std::string> names = cpu_backends();
  if (has_gpu()) names.push_back("cuda");
  return names;
}
inline std::vector<std::string> all_backends() {
  std::vector<std::string> names = fast_backends();
  names.insert(names.begin(), "reference");
  return names;
}
// The fastest on the processor, and the GPU: they get the long tests.
inline bool is_best(const std::string& name) {
  return name == "cuda" || name == cpu_backends().back();
}
inline std::vector<std::string> best_backends() {
  std::vector<std::string> names = fast_backends();
  std::erase_if(names, [](const std::string& name) { return !is_best(name); });
  return names;
}
// For names of parametrized tests.
inline std::string test_name(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

struct LoadedModel {
  // encoder: the backend that makes a target's 8 bits, where it is another.
  LoadedModel(const std::filesystem::path& folder, const std::string& backend_name,
              int num_threads = 1, int page_size = 0, WeightRead planes = WeightRead::kBoth,
              int context = 0, TargetWeights target = TargetWeights::kCheckpoint,
              const std::string& encoder = "")
      : backend(backend_named(backend_name, num_threads)),
        model(load(folder, *backend, planes, context, target, encoder)),
        pool(*backend, kv_shape(model.config(), page_size)),
        decoder(model) {}

  static Model load(const std::filesystem::path& folder, Backend& backend, WeightRead planes,
                    int context = 0, TargetWeights target = TargetWeights::kCheckpoint,
                    const std::string& encoder = "") {
    const auto files = open_model(folder);
    auto source = encoder.empty() ? files->weights(target, backend)
                                  : files->weights(target, *backend_named(encoder, 1));
    Weights weights(files->config(), std::move(source), backend);
    weights.make_draft_planes(backend, planes);
    return Model(files->config(), std::move(weights), backend, context);
  }

  // The logits that follow `prompt`, by a prefill in one chunk: nothing is read at 8 bits.
  std::vector<float> last_logits(std::span<const TokenId> prompt) {
    const int length = static_cast<int>(prompt.size()), page_size = pool.shape().page_size;
    KvCache cache(*backend, pool, length, {.chunk = (length / page_size + 1) * page_size});
    std::vector<float> logits(model.config().vocab_size);
    model.prefill(prompt, cache, logits);
    return logits;
  }

  // `count` tokens after `prompt`; what the rounds did goes to *stats.
  std::vector<TokenId> generate(std::span<const TokenId> prompt, int count,
                                const DecodingOptions& options, RoundStats* stats = nullptr,
                                KvStore store = KvStore::kHierarchical) {
    KvOptions kv = kv_options(options.plans);
    kv.store = store;
    kv = with_rivals(kv, *backend, pool.shape());
    Sequence sequence(model, pool, static_cast<int>(prompt.size()) + count, options, kv);
    std::vector<TokenId> tokens = {decoder.prefill(sequence, prompt)};
    while (static_cast<int>(tokens.size()) < count) {
      const auto step = decoder.step(sequence, count - static_cast<int>(tokens.size()));
      tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    }
    if (stats != nullptr) *stats = sequence.stats();
    return tokens;
  }

  // Greedy decoding with QuantSpec's drafts of these weights.
  DecodingOptions greedy(std::optional<int> draft_len,
                         const std::vector<WeightRead>& weights = {WeightRead::kBoth}) const {
    DecodingOptions options;
    options.sampling.temperature = 0;
    options.draft_len = draft_len;
    for (const WeightRead read : weights) {
      options.plans.push_back(Plan::draft(model.config().num_layers, read));
    }
    return options;
  }

  std::unique_ptr<Backend> backend;
  Model model;
  PagePool pool;
  Decoder decoder;
};

inline std::filesystem::path testdata(const std::string& name) {
  return std::filesystem::path(QUANTSPEC_TESTDATA) / name;
}
inline std::filesystem::path bundled_model() {
  return std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m";
}

}  // namespace quantspec::testing
