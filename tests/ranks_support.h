// For tests: a model that ranks can share, or a rank's share of it.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

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
    return rank_groups(config, MadeSource(config, sharing.format), ranks->size(),
                       sharing.context_ranks);
  }
  Model load(const Sharing& sharing, Communicator* ranks) {
    const ModelConfig config = shared_config(sharing);
    Share own{config, std::make_unique<MadeSource>(config, sharing.format)};
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
