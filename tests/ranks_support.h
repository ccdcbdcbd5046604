// For tests: a model that ranks can share, or a rank's share of it.
#pragma once

#include <memory>

#include "comm/comm.h"
#include "model/share.h"
#include "model/test_support.h"
#include "speculative/speculative.h"

namespace quantspec::testing {

inline constexpr int kPage = 32;
inline constexpr int kChunk = 2 * kPage;
inline constexpr int kContext = 7 * kChunk;

inline ModelConfig shared_config() {
  ModelConfig config = made_config(8, 4, 256, 2304);
  config.num_layers = 2;
  config.max_positions = kContext;
  config.qkv_bias = config.qk_norm = true;
  return config;
}

// A model, or a rank's share of it.
struct OwnModel {
  OwnModel(const WeightFormat& format, Communicator* ranks)
      : backend(make_backend({.name = "cpu", .num_threads = 1, .ranks = ranks})),
        model(load(format, *backend, ranks)),
        pool(*backend, kv_shape(model.config(), kPage)),
        decoder(model) {}

  static Model load(const WeightFormat& format, Backend& backend, Communicator* ranks) {
    const ModelConfig config = shared_config();
    Share own{config, std::make_unique<MadeSource>(config, format)};
    if (ranks != nullptr) {
      own = share_of(config, std::move(own.source), ranks->rank(), ranks->size());
    }
    Weights weights(own.config, std::move(own.source), backend);
    weights.make_draft_planes(backend, WeightRead::kBoth);
    return Model(own.config, std::move(weights), backend, kContext);
  }

  std::unique_ptr<Backend> backend;
  Model model;
  PagePool pool;
  Decoder decoder;
};

}  // namespace quantspec::testing
