// Everything that is no generation.
#include <fmt/format.h>

#include "api/core.h"
#include "api/prompt_tokens.h"
#include "api/read_body.h"
#include "api/request_fields.h"
#include "api/routes.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/request_loop.h"

namespace quantspec::api {

namespace {

// Weights of matrices; norms and biases are next to nothing.
std::int64_t num_weights(const ModelConfig& c) {
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t attention = 2 * hidden * c.head_dim * (c.num_heads + c.num_kv_heads);
  const std::int64_t mlp = 3 * hidden * c.intermediate_size;
  return c.num_layers * (attention + mlp) + (c.tied_head ? 1 : 2) * hidden * c.vocab_size;
}

OrderedJson model_json(const Core& core) {
  const Engine& engine = core.engine;
  return {{"id", core.options.model},
          {"object", "model"},
          {"created", core.started},
          {"owned_by", "quantspec"},
          {"max_model_len", engine.ctx_size()},
          {"meta",
           {{"n_vocab", engine.config().vocab_size},
            {"n_ctx_train", engine.config().max_positions},
            {"n_embd", engine.config().hidden_size},
            {"n_params", num_weights(engine.config())},
            {"size", engine.target_weights_bytes()}}}};
}

}  // namespace

void serve_models(Core& core, Call call) {
  OrderedJson data = OrderedJson::array();
  data.push_back(model_json(core));
  answer(core, call, 200, {{"object", "list"}, {"data", std::move(data)}});
}

void serve_model(Core& core, Call call) {
  if (call.rest == core.options.model) return answer(core, call, 200, model_json(core));
  answer(core, call,
         {.status = 404,
          .message = "there is no such model; /v1/models has the one that is served",
          .code = "model_not_found"});
}

// --- health --------------------------------------------------------------------------------------

void serve_alive(Core& core, Call call) {
  if (const auto why = core.broken()) return answer(core, call, unavailable(*why));
  if (!core.healthy()) return answer(core, call, unavailable("the engine does not move"));
  answer(core, call, 200, {{"status", "ok"}});
}

void serve_ready(Core& core, Call call) {
  if (core.draining || core.stopping) return answer(core, call, unavailable("the server ends"));
  serve_alive(core, std::move(call));
}

void serve_metrics(Core& core, Call call) {
  if (!core.options.metrics) {
    return answer(core, call,
                  {.status = 501, .message = "this server was started without metrics"});
  }
  Exposition out;
  core.metrics.write(out);
  write_statistics(core, out);
  call.headers.emplace_back("Process-Start-Time-Unix", std::to_string(core.started));
  answer_text(core, call, "text/plain; version=0.0.4; charset=utf-8", out.take());
}

// --- tokens --------------------------------------------------------------------------------------

namespace {

std::string text_of(const Tokenizer& tokenizer, TokenId id) {
  return repair_utf8(tokenizer.token_bytes(id));
}

// llama.cpp's piece: a text, or bytes where it is none.
OrderedJson piece_of(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = tokenizer.token_bytes(id);
  if (repair_utf8(bytes) == bytes) return bytes;
  OrderedJson numbers = OrderedJson::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return numbers;
}

// An answer takes several times the memory of what was asked.
void require_tokens(std::size_t tokens, std::string_view place) {
  constexpr std::size_t kMost = 1'000'000;
  if (tokens <= kMost) return;
  fail(ErrorKind::kInvalidRequest, "{}: {} tokens; at most {} work", Field{place}, tokens, kMost);
}

std::vector<TokenId> tokens_asked_for(Core& core, const Wanted& wanted) {
  const bool by_messages = !wanted.messages.is_null();
  if (by_messages == !wanted.prompts.empty()) {
    fail(ErrorKind::kInvalidRequest, "{}: give a prompt (or content), or messages",
         Field{"prompt"});
  }
  if (by_messages) return conversation_tokens(core, wanted);
  const Prompt& prompt = wanted.prompts.front();
  const std::string& text = std::get<std::string>(prompt.front());
  const Tokenizer& tokenizer = core.engine.tokenizer();
  std::vector<TextRange> plain;
  if (!wanted.parse_special) plain = tokenizer.special_tokens_in(text);
  return tokenizer.encode(text, wanted.add_special.value_or(!wanted.by_content), plain);
}

OrderedJson tokenized(Core& core, const Wanted& wanted, const std::vector<TokenId>& ids) {
  const Tokenizer& tokenizer = core.engine.tokenizer();
  OrderedJson tokens = OrderedJson::array();
  for (const TokenId id : ids) {
    if (wanted.with_pieces) {
      tokens.push_back({{"id", id}, {"piece", piece_of(tokenizer, id)}});
    } else {
      tokens.push_back(id);
    }
  }
  OrderedJson reply = {{"tokens", std::move(tokens)},
                       {"count", ids.size()},
                       {"max_model_len", core.engine.ctx_size()}};
  if (wanted.token_strings) {
    OrderedJson texts = OrderedJson::array();
    for (const TokenId id : ids) texts.push_back(text_of(tokenizer, id));
    reply["token_strs"] = std::move(texts);
  }
  return reply;
}

}  // namespace

void serve_tokenize(Core& core, Call call) {
  const std::string body = std::move(call.request.body);
  guarded(core, call, [&] {
    const Wanted wanted = read_body(core, call, body);
    const std::vector<TokenId> ids = tokens_asked_for(core, wanted);
    require_tokens(ids.size(), wanted.by_content ? "content" : "prompt");
    answer(core, call, 200, tokenized(core, wanted, ids));
  });
}

void serve_input_tokens(Core& core, Call call) {
  const std::string body = std::move(call.request.body);
  guarded(core, call, [&] {
    const std::size_t tokens = conversation_tokens(core, read_body(core, call, body)).size();
    answer(core, call, 200, {{"object", "response.input_tokens"}, {"input_tokens", tokens}});
  });
}

void serve_detokenize(Core& core, Call call) {
  const std::string body = std::move(call.request.body);
  guarded(core, call, [&] {
    const Wanted wanted = read_body(core, call, body);
    require_tokens(wanted.tokens.size(), "tokens");
    for (const TokenId id : wanted.tokens) {
      if (id < core.engine.config().vocab_size) continue;
      fail(ErrorKind::kInvalidRequest, "{}: has {}; the model's are 0 to {}", Field{"tokens"}, id,
           core.engine.config().vocab_size - 1);
    }
    const std::string text = core.engine.tokenizer().decode(wanted.tokens);
    answer(core, call, 200, {{"content", text}, {"prompt", text}});
  });
}

void serve_template(Core& core, Call call) {
  const std::string body = std::move(call.request.body);
  guarded(core, call, [&] {
    const Wanted wanted = read_body(core, call, body);
    answer(core, call, 200, {{"prompt", render(core, wanted).text}});
  });
}

void serve_tokenizer_info(Core& core, Call call) {
  const Tokenizer& tokenizer = core.engine.tokenizer();
  const auto id_or_null = [](std::optional<TokenId> id) {
    return id ? OrderedJson(*id) : OrderedJson(nullptr);
  };
  const auto name_or_null = [&](std::optional<TokenId> id) {
    return id ? OrderedJson(tokenizer.name(*id)) : OrderedJson(nullptr);
  };
  const std::string& chat_template = core.options.chat_template;
  answer(core, call, 200,
         {{"vocab_size", tokenizer.vocab_size()},
          {"bos_token", name_or_null(tokenizer.bos())},
          {"bos_token_id", id_or_null(tokenizer.bos())},
          {"eos_token", name_or_null(tokenizer.eos())},
          {"eos_token_id", id_or_null(tokenizer.eos())},
          {"eos_token_ids", core.engine.config().eos_tokens},
          {"chat_template", chat_template.empty() ? OrderedJson() : OrderedJson(chat_template)},
          {"model_max_length", core.engine.ctx_size()}});
}

// --- what this is --------------------------------------------------------------------------------

// On one of the Api's threads: the fingerprint reads the checkpoint, the first time.
void serve_props(Core& core, Call call) {
  guarded(core, call, [&] {
    const Engine& engine = core.engine;
    OrderedJson params = OrderedJson::object();
    for (const auto& [name, one] : core.defaults_from.items()) params[name] = one["value"];
    const ApiOptions& o = core.options;
    answer(core, call, 200,
           {{"model_alias", o.model},
            {"model_path", o.model_file},
            {"build_info", o.version},
            {"system_fingerprint", core.engine.fingerprint()},
            {"default_generation_settings", {{"n_ctx", engine.ctx_size()}, {"params", params}}},
            {"sampling", core.defaults_from},
            {"chat_template", o.chat_template},
            {"has_chat_template", static_cast<bool>(o.apply_template)},
            {"total_slots", engine.sequences()},
            {"backend", engine.backend_description()},
            {"weights", engine.target_weights()},
            {"page_size", engine.page_size()},
            {"limits",
             {{"n_ctx", engine.ctx_size()},
              {"max_output", o.max_output},
              {"n", kMostN},
              {"prompts", kMostPrompts},
              {"choices", o.most_choices},
              {"stop", kMostStops},
              {"body_bytes", o.max_body},
              {"requests", o.max_requests},
              {"prompt_tokens", o.max_prompt_tokens}}}});
  });
}

void serve_version(Core& core, Call call) {
  answer(core, call, 200, {{"version", core.options.version}});
}

void serve_openapi(Core& core, Call call) {
  answer(core, call, 200, make_openapi(core.options.version));
}

}  // namespace quantspec::api
