#include "roofline/analysis.h"

#include <algorithm>

namespace quantspec::roofline {

namespace {

// The passes that are compared.
struct Reads {
  PassRead plain_fp16;
  PassRead target;  // also plain decoding with 8-bit KV
  PassRead draft;

  Reads(const ModelConfig& model, const WeightBytes& bytes)
      : plain_fp16(pass_read(model, bytes, WeightRead::kTarget, KvRead::kFull)),
        target(pass_read(model, bytes, WeightRead::kTarget, KvRead::kBoth)),
        draft(pass_read(model, bytes, WeightRead::kUpper, KvRead::kUpper)) {}
};

Point point_at(const RooflineRequest& request, const Analysis& analysis, const Reads& reads,
               int context, int batch) {
  const ModelConfig& model = request.model;
  const double ring = std::min<double>(context, reads.target.ring_tokens);
  Point point{context, batch, prefill_cost(model, context, batch, request.weights.target),
              generation_cost(model, context, batch, request.generated, reads.plain_fp16)};
  point.kv_fp16 = 1.0 * batch * context * analysis.kv_token_fp16;
  point.kv_both =
      batch * ((context - ring) * analysis.kv_token_both + ring * analysis.kv_token_fp16);
  point.fp16_fits = analysis.weight_bytes + point.kv_fp16 <= request.machine.memory;
  point.quantspec_fits =
      analysis.weight_bytes + analysis.draft_weight_bytes + point.kv_both <= request.machine.memory;
  return point;
}

Rounds rounds_at(const RooflineRequest& request, const Reads& reads, int context, int batch,
                 double acceptance) {
  const auto plain = [&](const PassRead& read) {
    return decode_cost(request.model, context, batch, 1, read).seconds(request.machine);
  };
  return {context,
          batch,
          acceptance,
          plain(reads.plain_fp16),
          plain(reads.target),
          best_round(request.machine, request.model, context, batch, reads.draft, reads.target,
                     acceptance, request.max_draft_len)};
}

}  // namespace

Analysis analyze(const RooflineRequest& request) {
  const ModelConfig& model = request.model;
  const Reads reads(model, request.weights);
  Analysis analysis;
  analysis.weight_bytes = stored_parameters(model) * request.weights.target;
  analysis.draft_weight_bytes = read_parameters(model) * request.weights.kept_for_drafts;
  analysis.draft_read_bytes = read_parameters(model) * reads.draft.weight_bytes;
  analysis.kv_token_fp16 = kv_elements(model) * reads.plain_fp16.kv_bytes;
  analysis.kv_token_both = kv_elements(model) * reads.target.kv_bytes;
  analysis.kv_token_upper = kv_elements(model) * reads.draft.kv_bytes;
  for (const int context : request.contexts) {
    for (const int batch : request.batches) {
      analysis.points.push_back(point_at(request, analysis, reads, context, batch));
    }
  }
  for (const int batch : request.batches) {
    for (const int context : request.contexts) {
      for (const double acceptance : request.acceptance) {
        analysis.rounds.push_back(rounds_at(request, reads, context, batch, acceptance));
      }
    }
  }
  return analysis;
}

}  // namespace quantspec::roofline
