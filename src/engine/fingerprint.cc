// What the tokens of a request are a function of, beside the request: contract E1 of
// docs/design.md, section 3.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "engine/engine_impl.h"

namespace quantspec {

namespace {

// Of what is computed: one more where a change of this project changes tokens.
constexpr int kNumerics = 3;

// What normalizers, pre-tokenizers and merges make different things of: forms of one character,
// scripts, numbers, white space, contractions, code, broken words.
constexpr std::string_view kProbe =
    " It's 3:14pm; he'd've paid $1,234,567.89 (or 0x1F) -- \"WON'T\"\tshe'll?!\r\n\n\n   four\n "
    "if (x[10] != y) { return a_b->cD; }  // 100000 00 1\n"
    "caf\u00e9 cafe\u0301 \ufb01 \u212b \uff21\uff11 \u00bd \u00a0\u3000\u200b na\u00efve "
    "Stra\u00dfe \u0130 "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0395\u03bb\u03bb\u03ac\u03b4\u03b1 "
    "\u05e9\u05dc\u05d5\u05dd "
    "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 "
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001d400 \u2581x \u0120 <s> </s> "
    "<|im_end|> ";

// Some thousand tokens, spread over the vocabulary, as a text: what merges make of it.
std::string vocabulary_of(const Tokenizer& tokenizer) {
  constexpr int kTokens = 8192;
  constexpr std::size_t kMostBytes = 64;  // of one
  const int step = std::max(1, tokenizer.vocab_size() / kTokens);
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); id += step) {
    const std::string bytes = tokenizer.token_bytes(id);
    if (bytes.size() <= kMostBytes) text += bytes + ' ';
  }
  return text;
}

// The tokenizer by what it does: some files of a model are not read as weights are.
std::uint64_t hash_of(const Tokenizer& tokenizer) {
  Hasher hasher;
  const auto add = [&](std::string_view text) {
    hasher.add(std::as_bytes(std::span(text)));
    hasher.add(std::as_bytes(std::span("\0", 1)));
  };
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    add(tokenizer.token_bytes(id));
    add(tokenizer.is_special(id) ? "special" : "");
  }
  const auto add_ids = [&](const std::string& text, bool add_special) {
    try {
      const std::vector<TokenId> ids = tokenizer.encode(text, add_special);
      hasher.add(std::as_bytes(std::span(ids)));
    } catch (const Error&) {
      add("refused");  // as other tokenizers may refuse other texts
    }
    add("");
  };
  add_ids(std::string(kProbe), true);
  add_ids("", true);
  add_ids(vocabulary_of(tokenizer), false);
  return hasher.value();
}

std::uint64_t hash_of(const std::vector<NamedChatTemplate>& templates) {
  Hasher hasher;
  for (const NamedChatTemplate& one : templates) {
    for (const std::string& text : {one.name, one.source}) {
      hasher.add(std::as_bytes(std::span(text)));
      hasher.add(std::as_bytes(std::span("\0", 1)));
    }
  }
  return hasher.value();
}

std::string text_of(const RopeConfig& rope) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(rope.type), rope.theta,
                     rope.factor, rope.attention_factor, rope.original_max_positions,
                     rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast, rope.beta_slow,
                     rope.truncate, fmt::join(rope.short_factor, ","),
                     fmt::join(rope.long_factor, ","));
}

// NOTE: rows have the same bits whatever the number of threads, which the description ends with,
// and on GPUs of one kind, of which all count as the first one.
std::string without_place(std::string description) {
  constexpr std::string_view kGpu = "(GPU ";
  if (const std::size_t gpu = description.find(kGpu); gpu != description.npos) {
    const std::size_t number = gpu + kGpu.size();
    description.replace(number, description.find(':', number) - number, "0");
  }
  const std::size_t end = description.rfind(" thread");
  if (end == description.npos) return description;
  const std::size_t begin = description.rfind(", ", end);
  if (begin != description.npos) description.erase(begin, description.rfind(')') - begin);
  return description;
}

// The target's plan: layers that it reads in full precision, where a plan says so.
std::string full_layers(const std::vector<Plan>& plans) {
  std::string text;
  for (const Plan& plan : plans) {
    for (const int layer : plan.target_full_layers) text += fmt::format("{},", layer);
  }
  return text;
}

}  // namespace

// NOTE: prompts are multiplied by a library that goes by the processor, not by what the kernels
// were told to use; so what the processor has is named as well.
std::string bits_follow_from(const Backend& backend) {
  return fmt::format(
      "numerics {} backend {} {} on {}", kNumerics, backend.name(),
      without_place(backend.description()),
      backend.name() == "cpu" ? fmt::format("{}", fmt::join(cpu_instruction_sets(), ",")) : "");
}

// Once: it reads the whole checkpoint, which stays what it was as long as it is used.
const std::string& Engine::fingerprint() const {
  model().weights().require_unchanged();
  std::call_once(impl_->fingerprint_made, [this] { impl_->fingerprint = make_fingerprint(); });
  return impl_->fingerprint;
}

std::string Engine::make_fingerprint() const {
  const ModelConfig& c = config();
  const KvShape& shape = impl_->pool.shape();
  const auto type = c.rope.type;
  const bool rope_by_context =
      type == RopeConfig::Type::kDynamic || type == RopeConfig::Type::kLongrope;
  const std::string text = fmt::format(
      "checkpoint {:016x} as {} tokenizer {:016x} ends {} templates {:016x} model {} "
      "{} {} {} {} {} {} {} {} {} "
      "{} {} {} rope {} window {} context {} page {} chunk {} cache {} full {} {}",
      model().weights().checkpoint_hash(), target_weights(), hash_of(tokenizer()),
      fmt::join(c.eos_tokens, ","), hash_of(chat_prompts().templates()), c.family, c.num_layers,
      c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size,
      c.norm_epsilon, c.tied_head, c.qkv_bias, c.output_bias, c.qk_norm, text_of(c.rope),
      c.sliding_window.value_or(0), rope_by_context ? ctx_size() : 0, shape.page_size,
      impl_->backend->prefill_chunk(), static_cast<int>(impl_->options.kv_store),
      full_layers(draft_plans()), bits_follow_from(*impl_->backend));
  return "b" + hash_text_128(text);
}

}  // namespace quantspec
