// What an Engine is made of. Private to engine/.
//
//     engine.cc       what is loaded, and plans
//     ranks.cc        ranks that share a model
//     door.cc         requests, and the thread that runs their loop
//     generation.cc   a request on its way out of the loop
//     session.cc      texts that are continued
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/chat_prompts.h"
#include "engine/chunk_folder.h"
#include "engine/engine.h"
#include "engine/ranks.h"
#include "engine/request_loop.h"

namespace quantspec {

// What of the machine a pass's bits follow from (fingerprint.cc).
std::string bits_follow_from(const Backend& backend);

struct Engine::Impl {
  Impl(EngineOptions resolved, ModelConfig whole_config, std::unique_ptr<Backend> used,
       Model loaded, std::unique_ptr<Tokenizer> of_model, Communicator* with);
  ~Impl();  // ends the loop

  std::vector<Plan> plans_of(std::string_view spec, KvBudget budget) const;
  std::vector<Plan> make_draft_plans() const;
  RequestLoopOptions loop_options() const;
  // Of ranks all call it. Null where there is no memory for one, which all refuse alike: ranks go
  // on, and may try again. What it throws is one rank's, and ends them.
  std::unique_ptr<RequestLoop> make_loop(std::optional<Error>& refusal) const;
  RequestLoop& running_loop();
  bool is_own_thread() const;
  static void require_room(std::size_t prompt_tokens, int room);
  [[noreturn]] static void fail_empty_prompt();

  EngineOptions options;  // resolved
  ModelConfig config;     // of the model, of which `model` may be a share
  Communicator* ranks;    // that share it; null: nobody
  std::unique_ptr<RankThreads> rank_threads;
  std::unique_ptr<Backend> backend;
  Model model;
  const std::size_t loaded_bytes;  // that the backend gave for it
  std::unique_ptr<Tokenizer> tokenizer;
  PagePool pool;
  std::vector<Plan> draft_plans;
  std::unique_ptr<const ChatPrompts> chat_prompts;
  std::shared_ptr<ChunkFolder> folder;  // null: there is none
  double load_ms = 0;
  std::once_flag fingerprint_made;
  std::string fingerprint;
  mutable std::mutex loop_mutex;  // of its start
  std::unique_ptr<RequestLoop> loop;
  std::thread thread;  // that runs it
};

}  // namespace quantspec
