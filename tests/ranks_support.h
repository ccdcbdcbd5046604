// For tests: a model that ranks can share, or a rank's share of it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "comm/comm.h"
#include "model/share.h"
#include "model/test_support.h"
#include "speculative/speculative.h"

namespace quantspec::testing {

inline constexpr int kPage = 32;
inline constexpr int kChunk = 2 * kPage;
inline constexpr int kContext = 7 * kChunk;

// Before CUDA begins: as many ranks on a GPU as there are.
inline const int kQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);

// The GPU of a rank: of those that there are, on which ranks take turns; none of other backends.
inline std::optional<int> device_of(const std::string& backend, int rank) {
  if (backend != "cuda") return std::nullopt;
  static const int gpus = [] {
    int count = 0;
    try {
      for (;; ++count) make_backend({.name = "cuda", .device = count});
    } catch (const Error&) {
    }
    return count;
  }();
  return gpus > 0 ? std::optional(rank % gpus) : std::nullopt;
}

// How a model is shared; its weights' format.
struct Sharing {
  WeightFormat format;
  int context_ranks = 1;
  int kv_heads = 4;
  const char* backend = "cpu";
};

inline ModelConfig shared_config(const Sharing& sharing) {
  ModelConfig config = made_config(8, sharing.kv_heads, 256, 2304);
  config.num_layers = 2;
  config.max_positions = kContext;
  config.qkv_bias = config.qk_norm = true;
  return config;
}

// The weights of such a model, which all ranks and all tries take from: to make them takes longer
// than most tests.
inline std::unique_ptr<MadeSource> shared_source(const Sharing& sharing) {
  static std::mutex mutex;
  static std::vector<std::pair<Sharing, MadeSource>> made;
  const std::lock_guard lock(mutex);
  const auto known = std::ranges::find_if(made, [&](const auto& one) {
    return one.first.format == sharing.format && one.first.kv_heads == sharing.kv_heads;
  });
  if (known != made.end()) return std::make_unique<MadeSource>(known->second);
  made.emplace_back(sharing, MadeSource(shared_config(sharing), sharing.format));
  return std::make_unique<MadeSource>(made.back().second);
}

// A model, or a rank's share of it.
struct OwnModel {
  OwnModel(const Sharing& sharing, Communicator* ranks)
      : groups(groups_of(sharing, ranks)),
        backend(make_backend(
            {.name = sharing.backend,
             .num_threads = 1,
             .device = device_of(sharing.backend, ranks != nullptr ? ranks->rank() : 0),
             .ranks = ranks,
             .groups = groups})),
        model(load(sharing, ranks)),
        pool(*backend, kv_shape(model.config(), kPage)),
        decoder(model) {}

  static RankGroups groups_of(const Sharing& sharing, Communicator* ranks) {
    if (ranks == nullptr) return {};
    const ModelConfig config = shared_config(sharing);
    return rank_groups(config, *shared_source(sharing), ranks->size(), sharing.context_ranks);
  }
  Model load(const Sharing& sharing, Communicator* ranks) {
    const ModelConfig config = shared_config(sharing);
    Share own{config, shared_source(sharing)};
    if (ranks != nullptr) {
      own = share_of(config, std::move(own.source), ranks->rank(), ranks->size(), groups);
    }
    Weights weights(own.config, std::move(own.source), *backend);
    weights.make_draft_planes(*backend, WeightRead::kBoth);
    return Model(own.config, std::move(weights), *backend, kContext);
  }

  RankGroups groups;
  std::unique_ptr<Backend> backend;
  Model model;
  PagePool pool;
  Decoder decoder;
};

}  // namespace quantspec::testing
