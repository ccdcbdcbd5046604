// The rows. In the order of docs/server.md.
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "api/messages.h"
#include "api/request_fields.h"
#include "base/error.h"
#include "base/field.h"
#include "sampler/parameters.h"
#include "speculative/round_stats.h"

namespace quantspec::api {

namespace {

using Row = RequestField;
using J = OrderedJson;

constexpr unsigned kChat = static_cast<unsigned>(Endpoint::kChat);
constexpr unsigned kText = static_cast<unsigned>(Endpoint::kCompletions);
constexpr unsigned kBoth = kChat | kText;
constexpr unsigned kTokenize = static_cast<unsigned>(Endpoint::kTokenize);
constexpr unsigned kDetokenize = static_cast<unsigned>(Endpoint::kDetokenize);
constexpr unsigned kTemplate = static_cast<unsigned>(Endpoint::kApplyTemplate);
constexpr unsigned kTemplated = kChat | kTemplate | kTokenize;

constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
constexpr std::uint64_t kMostText = std::uint64_t{1} << 30;  // of what the body bounds anyhow

using Apply = void (*)(const Row&, const J&, Wanted&);

// Sets a member to a value that was checked.
template <auto member, typename T>
void set(const Row&, const J& value, Wanted& wanted) {
  wanted.*member = value.get<T>();
}

constexpr Row whole(std::string_view name, unsigned endpoints, std::int64_t least,
                    std::uint64_t most, std::string_view standard, Apply apply,
                    std::string_view doc) {
  return {.name = name,
          .endpoints = endpoints,
          .type = FieldType::kWhole,
          .least = least,
          .most = most,
          .standard = standard,
          .doc = doc,
          .apply = apply};
}

constexpr Row flag(std::string_view name, unsigned endpoints, std::string_view standard,
                   Apply apply, std::string_view doc) {
  return {.name = name,
          .endpoints = endpoints,
          .type = FieldType::kFlag,
          .standard = standard,
          .doc = doc,
          .apply = apply};
}

constexpr Row of_type(FieldType type, std::string_view name, unsigned endpoints, std::uint64_t most,
                      std::string_view standard, Apply apply, std::string_view doc) {
  return {.name = name,
          .endpoints = endpoints,
          .type = type,
          .most = most,
          .standard = standard,
          .doc = doc,
          .apply = apply};
}

constexpr Row required(Row row) {
  row.required = true;
  return row;
}

constexpr Row accepted(std::string_view name, unsigned endpoints, FieldType type,
                       std::string_view doc) {
  return {.name = name,
          .endpoints = endpoints,
          .type = type,
          .honour = Honour::kAccepted,
          .least = std::numeric_limits<std::int64_t>::min(),
          .most = kMostText,
          .doc = doc};
}

constexpr Row neutral(std::string_view name, unsigned endpoints, std::string_view values,
                      std::string_view why) {
  return {.name = name,
          .endpoints = endpoints,
          .honour = Honour::kNeutral,
          .values = values,
          .doc = why};
}

// As sampler/parameters.h has it; off: what turns a number off that others write as -1.
template <auto member>
void set_sampling(const Row&, const J& value, Wanted& wanted) {
  using T = std::remove_reference_t<decltype(SamplingParams{}.*member)>;
  wanted.sampling.*member = value.get<T>();
}

template <auto member>
constexpr Row sampling(std::string_view name, std::string_view standard, std::string_view doc) {
  constexpr auto param = sampling_param<member>();
  Row row{.name = name,
          .endpoints = kBoth,
          .standard = standard,
          .doc = doc,
          .apply = set_sampling<member>};
  if constexpr (std::is_floating_point_v<decltype(param.low)>) {
    row.type = FieldType::kReal;
    row.low = param.low;
    row.high = param.high;
  } else {
    row.type = FieldType::kWhole;
    row.least = param.low;
    row.most = param.high;
  }
  return row;
}

void set_top_k(const Row&, const J& value, Wanted& wanted) {
  wanted.sampling.top_k = std::max(0, value.get<int>());
}

constexpr Row top_k(std::string_view doc) {
  Row row = sampling<&SamplingParams::top_k>("top_k", "the model's, else 0", doc);
  row.least = -1;
  row.apply = set_top_k;
  return row;
}

void set_prompts(const Row&, const J& value, Wanted& wanted) {
  wanted.prompts = read_prompts(value);
}

void set_messages(const Row&, const J& value, Wanted& wanted) {
  wanted.messages = read_messages(value);
}

void set_max_tokens(const Row& row, const J& value, Wanted& wanted) {
  const int most = value.get<int>();
  if (wanted.max_tokens && *wanted.max_tokens != most) {
    fail(ErrorKind::kInvalidRequest,
         "{}: {}; max_tokens, max_completion_tokens and n_predict are the same, and say {} as well",
         Field{row.name}, most, *wanted.max_tokens);
  }
  wanted.max_tokens = most;
}

void set_seed(const Row& row, const J& value, Wanted& wanted) {
  if (value.is_number_integer() && !value.is_number_unsigned()) return;  // -1: as if not said
  if (value.is_number_float() && value < 0) {
    fail(ErrorKind::kInvalidRequest, "{}: {}; -1, or a whole number from 0 to 2^64 - 1, works",
         Field{row.name}, value.dump());
  }
  wanted.seed = value.get<std::uint64_t>();
}

[[noreturn]] void refuse_bias(const Row& row) {
  fail(ErrorKind::kInvalidRequest,
       "{}: must be an object or a list of pairs, of at most {} token ids, each with a number from "
       "{} to {} or false",
       Field{row.name}, kMostBiases, -kLargestLogitBias, kLargestLogitBias);
}

LogitBias read_bias(const Row& row, const J& id, const J& add) {
  if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<TokenId>::max()) {
    refuse_bias(row);
  }
  if (add == false) return {id.get<TokenId>(), -std::numeric_limits<float>::infinity()};
  if (!add.is_number() || !(std::abs(add.get<double>()) <= kLargestLogitBias)) refuse_bias(row);
  return {id.get<TokenId>(), add.get<float>()};
}

// {"15": -100} as OpenAI has it, or [[15, -100]] as llama.cpp does.
void set_logit_bias(const Row& row, const J& value, Wanted& wanted) {
  if (!value.is_structured() || value.size() > row.most) refuse_bias(row);
  for (const auto& [name, one] : value.items()) {
    if (value.is_object()) {
      TokenId id = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
      if (error != std::errc() || end != name.data() + name.size()) refuse_bias(row);
      wanted.logit_bias.push_back(read_bias(row, id, one));
    } else {
      if (!one.is_array() || one.size() != 2) refuse_bias(row);
      wanted.logit_bias.push_back(read_bias(row, one[0], one[1]));
    }
  }
}

void set_stop(const Row&, const J& value, Wanted& wanted) {
  if (value.is_string()) {
    wanted.stop = {value.get<std::string>()};
  } else {
    wanted.stop = value.get<std::vector<std::string>>();
  }
}

void set_draft_len(const Row& row, const J& value, Wanted& wanted) {
  if (value == "auto") return;
  if (value.is_number_integer() && value >= 0 && value <= kMaxDraftLen) {
    wanted.draft_len = value.get<int>();
    return;
  }
  fail(ErrorKind::kInvalidRequest, "{}: must be auto or a whole number from 0 to {}",
       Field{row.name}, kMaxDraftLen);
}

void set_prediction(const Row&, const J& value, Wanted& wanted) {
  wanted.prediction_text = read_prediction(value);
}

void set_spec_sampling(const Row&, const J& value, Wanted& wanted) {
  wanted.spec_sampling = value == "coupled" ? SpecSampling::kCoupled : SpecSampling::kRejection;
}

void set_stream_options(const Row& row, const J& value, Wanted& wanted) {
  for (const auto& [name, one] : value.items()) {
    const std::string place = std::string(row.name) + "." + name;
    if (name != "include_usage" && name != "continuous_usage_stats") continue;
    if (one.is_null()) continue;
    if (!one.is_boolean()) {
      fail(ErrorKind::kInvalidRequest, "{}: must be true or false", Field{place});
    }
    (name == "include_usage" ? wanted.include_usage : wanted.continuous_usage) = one.get<bool>();
  }
}

void set_chat_log_probs(const Row&, const J& value, Wanted& wanted) {
  wanted.log_probs |= value.get<bool>();
}

void set_top_log_probs(const Row&, const J& value, Wanted& wanted) {
  wanted.top_log_probs = value.get<int>();
  wanted.log_probs |= wanted.top_log_probs > 0;
}

void set_log_probs(const Row& row, const J& value, Wanted& wanted) {
  if (value.is_boolean()) {
    wanted.log_probs = value.get<bool>();
    return;
  }
  if (!value.is_number_integer() || value < 0 || value > kMostTopLogProbs) {
    fail(ErrorKind::kInvalidRequest, "{}: must be a whole number from 0 to {}", Field{row.name},
         kMostTopLogProbs);
  }
  wanted.log_probs = true;
  wanted.top_log_probs = value.get<int>();
}

void set_add_generation_prompt(const Row&, const J& value, Wanted& wanted) {
  wanted.add_generation_prompt = value.get<bool>();
}

void set_add_special(const Row&, const J& value, Wanted& wanted) {
  wanted.add_special = value.get<bool>();
}

void set_variables(const Row&, const J& value, Wanted& wanted) {
  wanted.variables = read_variables(value);
}

void set_tools(const Row&, const J& value, Wanted& wanted) {
  if (!value.empty()) wanted.tools = value;
}

void set_content(const Row& row, const J& value, Wanted& wanted) {
  wanted.by_content = row.name == "content";
  wanted.prompts = {{value.get<std::string>()}};
}

void set_ids(const Row& row, const J& value, Wanted& wanted) {
  (row.name == "stop_token_ids" ? wanted.stop_ids : wanted.tokens) =
      value.get<std::vector<TokenId>>();
}

constexpr std::string_view kNoTools = "tools come with constrained output";
constexpr std::string_view kNoGrammar = "constrained output comes later";
constexpr std::string_view kNoSampler = "there is no such sampler";

using W = Wanted;
using S = SamplingParams;

constexpr auto kRows = std::to_array<Row>({
    accepted("model", kBoth | kTokenize | kDetokenize | kTemplate, FieldType::kText,
             "any name; there is one model, and the reply says which"),

    // --- what is continued ---
    required(of_type(FieldType::kAny, "messages", kChat, 0, "", set_messages,
                     "roles system, developer (the same), user, assistant, tool; contents a text "
                     "or parts of type text; a last one of the assistant is continued")),
    required(of_type(FieldType::kAny, "messages", kTemplate, 0, "", set_messages, "as of a chat")),
    of_type(FieldType::kAny, "messages", kTokenize, 0, "", set_messages,
            "as of a chat, instead of a text"),
    required(of_type(FieldType::kAny, "prompt", kText, 0, "", set_prompts,
                     "a text, a list of token ids, or a list of up to 128 of these; texts and ids "
                     "in one list are one prompt")),
    of_type(FieldType::kText, "prompt", kTokenize, kMostText, "", set_content, "the text"),
    of_type(FieldType::kText, "content", kTokenize, kMostText, "", set_content,
            "the same, as llama.cpp calls it"),
    required(of_type(FieldType::kIds, "tokens", kDetokenize, kMostText, "", set_ids, "the ids")),
    flag("add_generation_prompt", kTemplated, "true", set_add_generation_prompt,
         "whether the assistant is to begin; true after a last message of its own: it begins anew"),
    flag("continue_final_message", kTemplated, "false", set<&W::continue_final_message, bool>,
         "the last message, of the assistant, is continued"),
    of_type(FieldType::kObject, "chat_template_kwargs", kTemplated, 0, "{}", set_variables,
            "up to 32 variables of the template: texts, numbers, true, false, null"),
    neutral("chat_template", kTemplated, "[]", "a template is the model's, never a request's"),
    flag("add_special_tokens", kText | kTokenize, "true", set_add_special,
         "whether a text gets what the tokenizer puts around one, such as BOS"),
    flag("add_special", kTokenize, "true for prompt, false for content", set_add_special,
         "the same, as llama.cpp calls it"),
    neutral("suffix", kText, R"([""])", "this model cannot fill a gap"),

    // --- length and end ---
    whole(
        "max_tokens", kBoth, -1, kMostInt, "what the context has room for", set_max_tokens,
        "tokens to generate at most; 0: the prompt is read, and that is all; -1: no limit but the "
        "context"),
    whole("max_completion_tokens", kBoth, -1, kMostInt, "the same", set_max_tokens, "the same"),
    whole("n_predict", kBoth, -1, kMostInt, "the same", set_max_tokens, "the same"),
    of_type(FieldType::kTexts, "stop", kBoth, kMostStopBytes, "none", set_stop,
            "a text, or up to 16, that end the answer and are no part of it"),
    of_type(FieldType::kIds, "stop_token_ids", kBoth, 64, "none", set_ids,
            "tokens that end the answer"),
    flag("ignore_eos", kBoth, "false", set<&W::ignore_eos, bool>,
         "go on after the model's end of text"),
    whole("min_tokens", kBoth, 0, kMostInt, "0", set<&W::min_tokens, int>,
          "tokens that nothing ends the answer before: no end of text or stop token is chosen, and "
          "stop texts are looked for from the last of them on"),
    neutral("include_stop_str_in_output", kBoth, "[false]", "a stop string is no part of a text"),
    neutral("truncate_prompt_tokens", kBoth, "[]", "a prompt is never cut"),
    neutral("t_max_predict_ms", kBoth, "[0, -1]", "the server has one limit for all"),

    // --- how tokens are chosen ---
    sampling<&S::temperature>("temperature", "the model's, else 1", "0: always the likeliest"),
    top_k("only so many of the likeliest; 0 or -1: off"),
    sampling<&S::top_p>("top_p", "the model's, else 1", "only the likeliest, up to this share"),
    sampling<&S::min_p>("min_p", "the model's, else 0", "only those within this share of the best"),
    sampling<&S::repeat_penalty>("repetition_penalty", "the model's, else 1",
                                 "weakens tokens that came lately; 1: off"),
    sampling<&S::repeat_penalty>("repeat_penalty", "the same", "the same, as llama.cpp calls it"),
    sampling<&S::repeat_last_n>("repeat_last_n", "64",
                                "how many tokens back that is; -1: all, 0: off"),
    sampling<&S::presence_penalty>("presence_penalty", "0",
                                   "lowers the logits of tokens that the answer has"),
    sampling<&S::frequency_penalty>("frequency_penalty", "0",
                                    "the same, for each time that the answer has them"),
    of_type(FieldType::kAny, "logit_bias", kBoth, kMostBiases, "{}", set_logit_bias,
            "added to logits before penalties: up to 300 token ids, each with a number from -100 "
            "to 100, as an object or a list of pairs; false instead of the number: never chosen"),
    whole("seed", kBoth, -1, std::numeric_limits<std::uint64_t>::max(), "another each time",
          set_seed,
          "repeats an answer, to the byte, whatever else runs (coupled sampling); choice i of n "
          "has the seed + i; -1: as if not given"),
    {.name = "spec_sampling",
     .endpoints = kBoth,
     .type = FieldType::kChoice,
     .values = R"(["rejection", "coupled"])",
     .standard = "coupled with a seed, else rejection",
     .doc = "rejection: the answer has the model's distribution; coupled: and is the same for a "
            "seed",
     .apply = set_spec_sampling},
    of_type(FieldType::kAny, "draft_len", kBoth, 0, "auto", set_draft_len,
            "tokens that a round drafts: auto or 0 (plain decoding) to 16; what is greedy or has a "
            "seed stays the same"),
    of_type(FieldType::kObject, "prediction", kBoth, 0, "none", set_prediction,
            "what the answer may be, but for changes: {\"type\": \"content\", \"content\": text or "
            "parts}; drafts are looked up there, the answer is the same without"),
    neutral("typical_p", kBoth, "[1]", kNoSampler),
    neutral("top_n_sigma", kBoth, "[-1, 0]", kNoSampler),
    neutral("xtc_probability", kBoth, "[0]", kNoSampler),
    neutral("dry_multiplier", kBoth, "[0]", kNoSampler),
    neutral("dynatemp_range", kBoth, "[0]", kNoSampler),
    neutral("mirostat", kBoth, "[0]", kNoSampler),
    neutral("samplers", kBoth, "[]", "samplers have one order"),
    neutral("use_beam_search", kBoth, "[false]", kNoSampler),

    // --- how many, and for whom ---
    whole("n", kBoth, 1, kMostN, "1", set<&W::n, int>, "answers to each prompt"),
    whole(
        "best_of", kText, 1, kMostN, "n",
        [](const Row&, const J& value, W& wanted) { wanted.best_of = value.get<int>(); },
        "as many as n: none are left out"),
    flag("cache_prompt", kBoth, "true", set<&W::cache_prompt, bool>,
         "false: nothing of the prompt is taken from what was read for others"),
    of_type(FieldType::kText, "cache_salt", kBoth, 256, "none", set<&W::cache_salt, std::string>,
            "requests of another salt find nothing of its prompt; each key has its own already"),
    neutral("priority", kBoth, "[0]", "keys have no priorities yet"),
    accepted("id_slot", kBoth, FieldType::kWhole,
             "not needed: a request finds what the cache has of it by itself"),
    accepted("user", kBoth, FieldType::kText, "not kept"),
    accepted("safety_identifier", kBoth, FieldType::kText, "not kept"),
    accepted("metadata", kBoth, FieldType::kObject, "not kept"),
    accepted("prompt_cache_key", kBoth, FieldType::kText, "not needed"),
    neutral("store", kBoth, "[false]", "nothing is kept"),
    neutral("service_tier", kBoth, R"(["auto", "default"])", "there is one tier"),

    // --- what is answered ---
    flag("stream", kBoth, "false", set<&W::stream, bool>, "server-sent events, one for a token"),
    of_type(FieldType::kObject, "stream_options", kBoth, 0, "{}", set_stream_options,
            "include_usage: a last event with the usage; continuous_usage_stats: in each"),
    flag("echo", kText, "false", set<&W::echo, bool>, "the prompt's text before the answer's"),
    flag("logprobs", kChat, "false", set_chat_log_probs,
         "the model's own log-probability of each token, before temperature"),
    of_type(FieldType::kAny, "logprobs", kText, 0, "none", set_log_probs,
            "0 to 20: the same, and so many of the likeliest at its place; with echo those of the "
            "prompt, too, of which nothing is then found in the cache"),
    whole("top_logprobs", kChat, 0, kMostTopLogProbs, "0", set_top_log_probs,
          "log-probabilities, and those of so many of the likeliest at each token's place"),
    neutral("n_probs", kBoth, "[0]", "logprobs, and in chats top_logprobs, say the same"),
    neutral("post_sampling_probs", kBoth, "[false]", "log-probabilities are the model's own"),
    neutral("prompt_logprobs", kBoth, "[]", "echo with logprobs has them, of texts"),
    flag("return_tokens", kBoth, "false", set<&W::return_tokens, bool>,
         "the ids of an answer's tokens, as `tokens` of its choice"),
    flag("return_drafts", kBoth, "false", set<&W::return_drafts, bool>,
         "of each token whether it was drafted, and what the target rejected for it, as `drafts`"),
    flag("receipt", kBoth, "false", set<&W::receipt, bool>,
         "by what quantspec verify checks the answer, as `receipts`; of greedy or seeded ones"),
    flag("timings_per_token", kBoth, "false", set<&W::timings_per_token, bool>,
         "`timings` so far in each event of a stream, and not in its last alone"),
    flag("return_progress", kBoth, "false", set<&W::return_progress, bool>,
         "events of a stream, while the prompt is read, that say how far: `prompt_progress`"),
    {.name = "sse_ping_interval",
     .endpoints = kBoth,
     .type = FieldType::kReal,
     .low = 1,
     .high = 3600,
     .standard = "the server's",
     .doc = "seconds without news until a comment is sent",
     .apply = [](const Row&, const J& value, W& wanted) { wanted.ping = value.get<double>(); }},
    neutral("skip_special_tokens", kBoth, "[true]", "special tokens have no text"),

    // --- what constrains an answer ---
    neutral("tools", kChat, "[[]]", kNoTools),
    of_type(FieldType::kList, "tools", kTemplate | kTokenize, 0, "none", set_tools,
            "what the template writes of them"),
    neutral("tool_choice", kChat, R"(["none", "auto"])", kNoTools),
    accepted("parallel_tool_calls", kChat, FieldType::kFlag, "there are no tools to call"),
    neutral("functions", kChat, "[[]]", kNoTools),
    neutral("function_call", kChat, R"(["none", "auto"])", kNoTools),
    neutral("response_format", kBoth, R"([{"type": "text"}])", kNoGrammar),
    neutral("json_schema", kBoth, "[]", kNoGrammar),
    neutral("grammar", kBoth, R"([""])", kNoGrammar),
    neutral("structured_outputs", kBoth, "[]", kNoGrammar),
    neutral("guided_json", kBoth, "[]", kNoGrammar),
    neutral("guided_regex", kBoth, "[]", kNoGrammar),
    neutral("guided_choice", kBoth, "[]", kNoGrammar),
    neutral("guided_grammar", kBoth, "[]", kNoGrammar),
    neutral("reasoning_format", kChat, R"(["none", "auto"])", "reasoning is not split off yet"),
    neutral("reasoning_effort", kChat, R"(["none"])",
            "a template's own variable, in chat_template_kwargs, works"),
    neutral("reasoning_budget", kChat, "[-1]", "comes with reasoning that is split off"),
    neutral("modalities", kChat, R"([["text"]])", "this model reads and writes text alone"),
    neutral("audio", kChat, "[]", "this model reads and writes text alone"),

    // --- /tokenize ---
    flag("with_pieces", kTokenize, "false", set<&W::with_pieces, bool>,
         "each token as an object of id and piece, as llama.cpp has it"),
    flag("return_token_strs", kTokenize, "false", set<&W::token_strings, bool>,
         "the tokens' texts as token_strs, as vLLM has it"),
    flag("parse_special", kTokenize, "true", set<&W::parse_special, bool>,
         "whether special tokens in a text are recognized"),
});

}  // namespace

std::span<const RequestField> request_fields() { return kRows; }

}  // namespace quantspec::api
