// What a body asks for, checked: every endpoint takes of it what is its own. Plain data. Private to
// api/.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/api.h"
#include "base/token.h"
#include "sampler/sampling_params.h"

namespace quantspec::api {

enum class Endpoint : unsigned {
  kChat = 1,
  kCompletions = 2,
  kTokenize = 4,
  kDetokenize = 8,
  kApplyTemplate = 16,
};

// Text and ids in the order in which they follow each other; most often one of them.
using PromptPart = std::variant<std::string, std::vector<TokenId>>;
using Prompt = std::vector<PromptPart>;

struct Wanted {
  Endpoint endpoint = Endpoint::kCompletions;

  // --- what is continued ---
  std::vector<Prompt> prompts = {};
  OrderedJson messages = {};  // as Messages has them (messages.h)
  OrderedJson tools = {};     // null: none
  OrderedJson variables = OrderedJson::object();
  std::optional<bool> add_generation_prompt = {};
  bool continue_final_message = false;
  std::optional<bool> add_special = {};  // what the tokenizer puts around a text

  // --- how ---
  int n = 1;
  std::optional<int> best_of = {};
  std::optional<int> max_tokens = {};
  std::vector<std::string> stop = {};
  std::vector<TokenId> stop_ids = {};
  bool ignore_eos = false;
  int min_tokens = 0;
  std::vector<LogitBias> logit_bias = {};
  SamplingParams sampling = {};  // what is not said is as the server has it
  std::optional<std::uint64_t> seed = {};
  std::optional<SpecSampling> spec_sampling = {};
  std::optional<int> draft_len = {};
  std::string prediction_text = {};
  std::vector<TokenId> prediction = {};  // of it; empty: none
  std::string cache_salt = {};
  bool cache_prompt = true;

  bool reads_only() const { return max_tokens == 0; }

  // --- what is answered ---
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool log_probs = false;
  int top_log_probs = 0;  // and of so many of the likeliest
  bool return_tokens = false;
  bool return_drafts = false;
  bool receipt = false;
  bool timings_per_token = false;
  bool return_progress = false;
  std::optional<double> ping = {};

  // --- /tokenize, /detokenize ---
  bool by_content = false;  // the text came under llama.cpp's name
  bool parse_special = true;
  bool with_pieces = false;
  bool token_strings = false;
  std::vector<TokenId> tokens = {};
};

}  // namespace quantspec::api
