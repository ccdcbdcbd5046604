// The ways into an engine: requests that are submitted, and the thread that runs their loop.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/fields.h"
#include "engine/generation.h"
#include "engine/memory_plan.h"

namespace quantspec {

namespace {

// A token of so many bytes would be a rare one.
constexpr std::size_t kBytesPerToken = 16;

[[noreturn]] void fail_no_room(std::string_view prompt_tokens, std::size_t room) {
  fail(ErrorKind::kInvalidRequest,
       "the prompt has {} tokens and the context has room for {}; a shorter prompt or a larger {} "
       "works",
       prompt_tokens, room, field::kContext);
}

[[noreturn]] void fail_long_prediction(int context) {
  fail(ErrorKind::kInvalidRequest, "{}: is longer than the context, which has {} tokens",
       field::kPrediction, context);
}

// What keeps a text from ending too early, beside what the caller adds.
LogitBiases biases_of(const GenerateOptions& options, const ModelConfig& config) {
  LogitBiases biases{.always = options.logit_bias, .min_tokens = options.min_tokens};
  if (options.min_tokens <= 0) return biases;
  std::vector<TokenId>& ends = biases.ends;
  ends = options.stop_ids;
  if (!options.ignore_eos) {
    ends.insert(ends.end(), config.eos_tokens.begin(), config.eos_tokens.end());
  }
  std::ranges::sort(ends);
  ends.erase(std::ranges::unique(ends).begin(), ends.end());
  return biases;
}

// What nobody else has read under.
std::string salt_that_nobody_guesses() {
  std::random_device random;
  return fmt::format("#{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

void Ticket::cancel() const { loop_->cancel(id_); }
void Ticket::pause() const { loop_->pause(id_); }
void Ticket::resume() const { loop_->resume(id_); }

// Of a text that is much too long only as much is encoded as shows it. What a tokenizer makes of
// the end of a part may be other tokens than it makes of the whole, but not many more.
std::vector<TokenId> Engine::encode(std::string_view text, bool add_special, int room) const {
  constexpr std::size_t kMargin = 64;
  const std::size_t most = static_cast<std::size_t>(room) + kMargin;
  for (std::size_t bytes = kBytesPerToken * most; bytes < text.size(); bytes *= 4) {
    if (tokenizer().encode(text.substr(0, bytes), false).size() <= most) continue;
    fail_no_room(fmt::format("more than {}", room), room);
  }
  return tokenizer().encode(text, add_special);
}

std::vector<TokenId> Engine::encode_prediction(std::string_view text) const {
  const auto most = static_cast<std::size_t>(ctx_size());
  const bool may_fit = text.size() <= kBytesPerToken * most;
  std::vector<TokenId> ids;
  if (may_fit && !text.empty()) ids = tokenizer().encode(text, false);
  if (may_fit && ids.size() <= most) return ids;
  fail_long_prediction(ctx_size());
}

void Engine::Impl::require_room(std::size_t prompt_tokens, int room) {
  if (std::cmp_less_equal(prompt_tokens, room)) return;
  fail_no_room(fmt::format("{}", prompt_tokens), std::max(room, 0));
}

namespace {

// The prediction behind what the prompt ends with, so that it is found at once.
std::vector<TokenId> after_end_of(std::span<const TokenId> prompt,
                                  std::span<const TokenId> prediction) {
  constexpr std::size_t kKnown = 32;  // more is no surer
  const auto end = prompt.last(std::min(prompt.size(), kKnown));
  std::vector<TokenId> text(end.begin(), end.end());
  text.insert(text.end(), prediction.begin(), prediction.end());
  return text;
}

}  // namespace

Ticket Engine::submit(std::string_view prompt, const GenerateOptions& options, Listener listener) {
  if (prompt.empty()) Impl::fail_empty_prompt();
  return submit(encode(prompt, true, ctx_size()), options, std::move(listener));
}

Ticket Engine::submit(std::vector<TokenId> prompt, const GenerateOptions& options,
                      Listener listener) {
  if (prompt.empty()) Impl::fail_empty_prompt();
  if (options.predict == 0 || options.predict < -1) {
    fail(ErrorKind::kInvalidRequest, "{} {}: at least 1, or -1 for no limit", field::kPredict,
         options.predict);
  }
  Impl::require_room(prompt.size(), ctx_size());
  model().weights().require_unchanged();      // again at the end: this is before all the work
  RequestLoop& loop = impl_->running_loop();  // before the clock of the request
  const int most = ctx_size() - static_cast<int>(prompt.size()) + 1;  // the last needs no place
  const auto generation =
      std::make_shared<Generation>(*this, prompt.size(), most, options, std::move(listener));
  Request request;
  request.prompt = std::move(prompt);
  request.predict = options.predict < 0 ? most : std::min(options.predict, most);
  request.sampling = options.sampling;
  request.biases = biases_of(options, config());
  request.spec_sampling = options.spec_sampling;
  request.draft_len = options.draft_len;
  request.proposed = options.proposed;
  if (!options.prediction.empty()) {
    if (std::ranges::none_of(draft_plans(), &Plan::looks_up)) {
      fail(ErrorKind::kInvalidRequest,
           "{}: this engine looks nothing up; {} auto, lookup and NAME+lookup do",
           field::kPrediction, field::kPlan);
    }
    if (std::cmp_greater(options.prediction.size(), ctx_size())) fail_long_prediction(ctx_size());
    request.reference = after_end_of(request.prompt, options.prediction);
  }
  request.owner = options.owner;
  request.priority = options.priority;
  request.salt = options.salt;
  request.log_probs = options.log_probs || options.prompt_log_probs;
  request.top_log_probs = options.top_log_probs;
  request.prompt_log_probs = options.prompt_log_probs;
  request.to_folder = options.to_folder && !options.prompt_log_probs;
  if (options.prompt_log_probs) request.salt += salt_that_nobody_guesses();
  request.on_progress = [generation](const PromptProgress& read) { generation->read(read); };
  request.on_tokens = [generation](const Step& step) { return generation->take(step); };
  request.on_end = [generation](const Request::Ended& ended) { generation->end(ended); };
  return {loop, loop.submit(std::move(request))};
}

void Engine::Impl::fail_empty_prompt() {
  fail(ErrorKind::kInvalidRequest, "the prompt is empty; give at least one character of text");
}

void Engine::read_ahead(std::vector<TokenId> text, std::string salt, bool to_folder) {
  impl_->running_loop().read_ahead(std::move(text), std::move(salt), to_folder);
}

void Engine::start() { impl_->running_loop(); }

const RequestLoop* Engine::requests() const {
  const std::lock_guard lock(impl_->loop_mutex);
  return impl_->loop.get();
}

FolderCounts Engine::folder_counts() const {
  return impl_->folder ? impl_->folder->counts() : FolderCounts();
}

bool Engine::Impl::is_own_thread() const {
  const std::lock_guard lock(loop_mutex);
  return thread.get_id() == std::this_thread::get_id();
}

namespace {

// Whether there is memory for a loop, which changed since the engine planned it, or why not; but
// for what is the host's of pages and tails, which comes to be taken as they are used. held: of
// what it takes, that is there from before. Of ranks all call it, and hear the same.
std::optional<Error> lack_of_memory(const RequestLoopOptions& options, const KvShape& shape,
                                    const Model& model, std::size_t held) {
  const Backend& backend = model.backend();
  KvOptions kv = kv_options(options.plans);
  kv.store = options.store;
  const std::size_t pages = backend.is_apart_from_host() ? options.pages * shape.page_bytes() : 0;
  const std::size_t working =
      working_bytes(model.config(), backend, shape, kv, options.sequences, options.context);
  const std::size_t needed =
      pages + working - std::min(working, held) +
      options.sequences * KvCache::ring_bytes_for(shape, backend, options.context, kv);
  const std::size_t available = memory_of_rank(backend, options.ranks).available;
  // What they need differs a little.
  if (Agreement(options.ranks).least(needed <= available ? 1 : 0) == 1) return std::nullopt;
  return Error(ErrorKind::kOutOfMemory,
               Message::format("{} requests at a time need {:.0f} MB beside the weights and {:.0f} "
                               "MB are available; fewer, a smaller {} or a smaller {} work",
                               options.sequences, needed / 1e6, available / 1e6, field::kContext,
                               field::kPageMemory));
}

}  // namespace

RequestLoopOptions Engine::Impl::loop_options() const {
  RequestLoopOptions wanted;
  wanted.sequences = options.sequences;
  wanted.context = options.ctx_size;
  wanted.plans = draft_plans;
  wanted.store = options.kv_store;
  wanted.lookup_history = static_cast<std::size_t>(options.lookup_history);
  if (options.kv_store != KvStore::kFull) {  // which has no pages to share
    wanted.pages = options.page_memory / pool.page_bytes();
    wanted.host_bytes = *options.host_cache;
    wanted.tail_bytes = *options.tail_memory;
    wanted.folder = folder;
    if (wanted.sequences > 1) wanted.admission = Admission::kExpected;
  }
  wanted.ranks = ranks;
  return wanted;
}

std::unique_ptr<RequestLoop> Engine::Impl::make_loop(std::optional<Error>& refusal) const {
  const RequestLoopOptions wanted = loop_options();
  const std::size_t since = backend->allocated_bytes() - loaded_bytes + backend->taken_bytes();
  refusal = lack_of_memory(wanted, pool.shape(), model, since);
  if (refusal) return nullptr;
  try {
    return std::make_unique<RequestLoop>(model, pool.shape(), wanted);
  } catch (const RequestLoop::NoMemory& error) {
    refusal = error;
    return nullptr;
  }
}

}  // namespace quantspec
