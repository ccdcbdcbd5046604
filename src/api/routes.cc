#include "api/routes.h"

#include <array>

namespace quantspec::api {

namespace {

using enum Access;
using enum Place;
constexpr std::optional<Endpoint> kNoBody;

constexpr auto kRoutes = std::to_array<Route>({
    {"POST", "/v1/chat/completions", kKey, kFront, Endpoint::kChat, serve_chat,
     "answers a conversation"},
    {"POST", "/chat/completions", kKey, kFront, Endpoint::kChat, serve_chat, "the same"},
    {"POST", "/v1/completions", kKey, kFront, Endpoint::kCompletions, serve_completions,
     "continues a text"},
    {"POST", "/completions", kKey, kFront, Endpoint::kCompletions, serve_completions, "the same"},
    {"POST", "/v1/chat/completions/input_tokens", kKey, kFront, Endpoint::kChat, serve_input_tokens,
     "how many tokens a conversation's prompt has"},
    {"POST", "/chat/completions/input_tokens", kKey, kFront, Endpoint::kChat, serve_input_tokens,
     "the same"},
    {"GET", "/v1/models", kKey, kHere, kNoBody, serve_models, "the one model that is served"},
    {"GET", "/models", kKey, kHere, kNoBody, serve_models, "the same"},
    {"GET", "/v1/models/{id}", kKey, kHere, kNoBody, serve_model, "the model of that name"},
    {"GET", "/health", kOpen, kHere, kNoBody, serve_ready,
     "200, or 503 while it loads, drains, or no longer moves, or a rank has failed"},
    {"GET", "/v1/health", kOpen, kHere, kNoBody, serve_ready, "the same"},
    {"GET", "/readyz", kOpen, kHere, kNoBody, serve_ready, "the same"},
    {"GET", "/healthz", kOpen, kHere, kNoBody, serve_alive,
     "200 as long as the engine moves, also while it loads or drains"},
    {"GET", "/", kOpen, kHere, kNoBody, serve_page,
     "a page to try it: what is drafted, token by token"},
    {"GET", "/metrics", kMetrics, kHere, kNoBody, serve_metrics, "counts, for Prometheus"},
    {"POST", "/tokenize", kKey, kFront, Endpoint::kTokenize, serve_tokenize,
     "the tokens of a text, or of a conversation"},
    {"POST", "/detokenize", kKey, kFront, Endpoint::kDetokenize, serve_detokenize,
     "the text of tokens"},
    {"POST", "/apply-template", kKey, kFront, Endpoint::kApplyTemplate, serve_template,
     "the prompt that a conversation becomes"},
    {"GET", "/tokenizer_info", kKey, kHere, kNoBody, serve_tokenizer_info, "the vocabulary"},
    {"GET", "/props", kKey, kFront, kNoBody, serve_props,
     "model, limits, defaults, fingerprint, template"},
    {"GET", "/debug/steps", kKey, kFront, kNoBody, serve_steps,
     "what the engine's last steps did: who drafted how much, and what was accepted"},
    {"GET", "/version", kKey, kHere, kNoBody, serve_version, "the program's version"},
    {"GET", "/openapi.json", kKey, kHere, kNoBody, serve_openapi, "these endpoints and fields"},
});

constexpr auto kAbsent = std::to_array<Absent>({
    {"/v1/embeddings", "this server generates text"},
    {"/embeddings", "this server generates text"},
    {"/embedding", "this server generates text"},
    {"/v1/rerank", "this server generates text"},
    {"/rerank", "this server generates text"},
    {"/v1/images", "this server generates text"},
    {"/v1/audio", "this server generates text"},
    {"/v1/moderations", "this server generates text"},
    {"/v1/files", "nothing is kept"},
    {"/v1/batches", "nothing is kept"},
    {"/v1/responses", "it comes later"},
    {"/v1/messages", "it comes later"},
    {"/completion", "llama.cpp's own form comes later"},
    {"/infill", "this model cannot fill a gap"},
    {"/slots", "a request finds what the cache has of it by itself"},
    {"/lora-adapters", "there are no adapters"},
});

// What {id} stands for; nullopt: it is another path.
std::optional<std::string> match(std::string_view pattern, std::string_view path) {
  constexpr std::string_view kRest = "{id}";
  if (!pattern.ends_with(kRest))
    return pattern == path ? std::optional(std::string()) : std::nullopt;
  pattern.remove_suffix(kRest.size());
  if (!path.starts_with(pattern) || path.size() == pattern.size()) return std::nullopt;
  return std::string(path.substr(pattern.size()));
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }
std::span<const Absent> absent_routes() { return kAbsent; }

Found find_route(std::string_view method, std::string_view path) {
  Found found;
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (method == "HEAD") method = "GET";
  for (const Route& route : kRoutes) {
    auto rest = match(route.path, path);
    if (!rest) continue;
    if (route.method == method) return {.route = &route, .rest = std::move(*rest)};
    found.allow = route.method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
  }
  for (const Absent& absent : kAbsent) {
    const bool below = path.starts_with(absent.path) &&
                       (path.size() == absent.path.size() || path[absent.path.size()] == '/');
    if (below) found.absent = &absent;
  }
  return found;
}

}  // namespace quantspec::api
