#include "engine/ranks.h"

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/fields.h"
#include "engine/memory_plan.h"
#include "model/model_files.h"
#include "model/share.h"
#include "model/weight_source.h"

namespace quantspec {

namespace {

// What rank 0 tells the others once all have loaded.
enum class Next : std::uint8_t { kCall, kServe, kEnd };

}  // namespace

RankThreads::RankThreads(const EngineOptions& options)
    : ranks_(options.ranks), own_(ranks_.join(0)) {
  EngineOptions others = options;
  others.progress = [this](std::string_view, double) {
    if (ends_) fail(ErrorKind::kDevice, "rank 0 has ended");
  };
  try {
    for (int rank = 1; rank < options.ranks; ++rank) {
      others_.emplace_back([this, rank, others] {
        try {
          as_rank(ranks_, rank, [&](Communicator& all) { Engine::follow(others, all); });
        } catch (...) {  // rank 0 has heard of it, and says so
        }
      });
    }
  } catch (...) {
    end();
    throw;
  }
}

RankThreads::~RankThreads() { end(); }

// Where rank 0 did not come to its end the others load, or wait for it.
void RankThreads::end() noexcept {
  ends_ = true;
  own_->give_up("rank 0 has ended");
}

void Engine::follow(const EngineOptions& options, Communicator& ranks) {
  try {
    follow_to_its_end(options, ranks);
  } catch (...) {
    ranks.give_up(current_error("a rank").what());
    throw;
  }
}

void Engine::follow_to_its_end(const EngineOptions& options, Communicator& ranks) {
  require_ranks(options, ranks.size());
  const auto engine = load_rank(options, &ranks);
  const Agreement agreement(&ranks);
  std::unique_ptr<RequestLoop> loop;
  while (loop == nullptr) {
    const Next next = agreement.on(Next::kEnd);
    if (next == Next::kEnd) return;
    if (next == Next::kServe) {
      std::optional<Error> refusal;  // of a request at rank 0
      loop = engine->impl_->make_loop(refusal);
      continue;
    }
    const std::function<void(Engine&)>* f = nullptr;
    (*agreement.on(f))(*engine);
    ranks.wait_for_all();
  }
  loop->run();
  if (const auto error = loop->broken()) throw Error(*error);
}

Communicator* Engine::rank_communicator() const { return impl_->ranks; }

void Engine::at_every_rank(const std::function<void(Engine& own)>& f) {
  if (impl_->ranks == nullptr) return f(*this);
  if (impl_->rank_threads == nullptr) {
    fail(ErrorKind::kInvalidRequest,
         "{}: measurements are of ranks that are threads of one process, not of a launcher's",
         field::kRanks);
  }
  const Agreement agreement(impl_->ranks);
  try {
    agreement.on(Next::kCall);
    agreement.on(&f);
    f(*this);
    impl_->ranks->wait_for_all();
  } catch (...) {
    agreement.give_up(current_error("a measurement").what());
    throw;
  }
}

namespace {

// Whether the options can be of so many processes. What follows from this machine and its files is
// a rank's error. What all find alike, unless their options or files differ, is rank 0's; the
// others warn of it.
bool can_be_launched(const EngineOptions& options, const LaunchedRank& own) {
  const int rank = own.rank;
  require_one_machine(options, own.on_one_machine);
  const auto backend =
      make_backend({.name = options.backend, .num_threads = 1, .device = options.device});
  const auto files = open_model(options.model);
  auto source = files->weights(options.target_weights, *backend);
  try {
    require_ranks(options, options.ranks);
    share_of(files->config(), std::move(source), rank, options.ranks,
             rank_groups(options, *files, options.ranks));
  } catch (const Error& error) {
    if (rank == 0 || error.kind() != ErrorKind::kInvalidRequest) throw;
    log_warning(error.message());
    return false;
  }
  return true;
}

}  // namespace

int Engine::meet_launched(EngineOptions& options) {
  if (options.ranks != EngineOptions::kLaunchedRanks) return 0;
  const LaunchedRank own = launched_rank();
  options.ranks = own.size;
  if (own.size == 1) return 0;
  options.device = gpu_of_process(options, own.rank);
  if (!options.device && options.backend == "auto") options.backend = "cpu";  // not another's GPU
  if (can_be_launched(options, own)) options.processes = launched_ranks();
  return own.rank;
}

// Not before it is needed: what measures below the sessions has the memory for itself.
RequestLoop& Engine::Impl::running_loop() {
  const std::lock_guard lock(loop_mutex);
  if (loop != nullptr) return *loop;
  std::unique_ptr<RequestLoop> started;
  std::optional<Error> refusal;
  const Agreement agreement(ranks);
  try {
    agreement.on(Next::kServe);
    started = make_loop(refusal);
  } catch (...) {
    agreement.give_up(current_error("the engine").what());
    throw;
  }
  if (refusal) throw Error(*refusal);
  thread = std::thread([at = started.get()] { at->run(); });
  loop = std::move(started);
  return *loop;
}

Engine::Impl::~Impl() {
  if (loop != nullptr) {
    check(!is_own_thread(), "an engine is ended by a callback of its own, which it would wait for");
    loop->stop();
    thread.join();
  } else if (ranks != nullptr && ranks->rank() == 0) {
    try {
      Agreement(ranks).on(Next::kEnd);
    } catch (const Error&) {  // others have ended
    }
  }
}

}  // namespace quantspec
