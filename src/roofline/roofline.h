// The analysis of section 3 of arXiv:2502.10424: what a transformer's prefill and decoding cost in
// FLOPs and bytes, and so how fast a machine can run them at best. The formulas, with units and
// what they neglect, are in docs/roofline.md.
//
// Pure functions but for measure_this_machine(); thread-safe. Errors: kInvalidRequest for a machine
// that is not known, kOutOfMemory where there is no room to measure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "quant/weight_format.h"

namespace quantspec {

// --- machines ------------------------------------------------------------------------------------

// What limits a machine.
struct Machine {
  std::string name;
  double bandwidth = 0;  // bytes/s from memory
  double flops = 0;      // FLOP/s of dense matrix products
  double memory = 0;     // bytes
  // bytes/s that one thread reads of the same; none: not measured, or there is but one thread
  std::optional<double> one_thread_bandwidth = {};
  int draft_group = kWeightGroup;  // that loading keeps drafts' weights in there: presets are GPUs

  double ridge() const { return flops / bandwidth; }  // FLOP per byte
};

// a6000, a100, h100, h200, rtx4090: the vendor's numbers for 16-bit products without sparsity.
// Throws naming the known ones, `this` among them.
Machine machine_preset(std::string_view name);
std::vector<std::string_view> machine_presets();
// The preset that a GPU's name has in it, as "NVIDIA H100 80GB HBM3" has h100; none: no preset
// does.
std::optional<Machine> machine_named_in(std::string_view gpu);

// Measures bandwidth and FLOP/s with so many threads (0: physical cores), in about a second.
// Bandwidth is that of reading `working_set` bytes over and over, but no more than twice the
// last-level caches, and so from memory; 0: that many. A model whose weights and KV lie in a large
// cache is read faster than that.
Machine measure_this_machine(int num_threads, std::size_t working_set = 0);

// One line on why a measured bandwidth may be too low: all threads read no faster than one. Empty
// where there is no reason for doubt.
std::string doubt_of(const Machine& machine);

// --- costs ---------------------------------------------------------------------------------------

// FLOPs and bytes of something.
struct Cost {
  double flops = 0;
  double bytes = 0;

  double intensity() const { return bytes > 0 ? flops / bytes : 0; }  // FLOP per byte
  double seconds(const Machine& machine) const;  // the roofline: the later of both limits
  bool compute_bound(const Machine& machine) const { return intensity() >= machine.ridge(); }
  Cost operator+(const Cost& other) const { return {flops + other.flops, bytes + other.bytes}; }
};

// Table 1: linear layers and attention apart.
struct StepCost {
  Cost linear;
  Cost attention;

  Cost total() const { return linear + attention; }
  double seconds(const Machine& machine) const;          // one after the other
  double attention_share(const Machine& machine) const;  // of the seconds
  StepCost operator+(const StepCost& other) const {
    return {linear + other.linear, attention + other.attention};
  }
};

// What one pass reads: bytes per element, scales included, and of how much.
struct PassRead {
  double weight_bytes = 2;
  double kv_bytes = 2;                   // of the old tokens, those in pages
  double layers = 1;                     // the share of the layers that run
  std::optional<double> kv_tokens = {};  // that are read, at most; nullopt: the whole context
  double ring_tokens = 0;                // of those, the recent ones, which are 2 bytes an element
};
// Of weights of so many bytes, and with the scales of pages of page_size tokens (0: as kv_shape).
// For quantized KV the ring holds 1.5 pages, its mean.
PassRead pass_read(const ModelConfig& model, const WeightBytes& bytes, WeightRead weights,
                   KvRead kv, int page_size = 0);

// Parameters of the checkpoint (embedding included), and those a pass reads (layers and head).
double stored_parameters(const ModelConfig& model);
double read_parameters(const ModelConfig& model);
// Keys and values of one token.
double kv_elements(const ModelConfig& model);

// The exact prefill of `context` tokens of each sequence, at 16-bit KV and by weights of so many
// bytes.
StepCost prefill_cost(const ModelConfig& model, int context, int batch, double weight_bytes);
// One forward of `rows` tokens of each sequence after `context` tokens.
StepCost decode_cost(const ModelConfig& model, int context, int batch, int rows,
                     const PassRead& read);
// `tokens` forwards of one row, the context growing from `context`.
StepCost generation_cost(const ModelConfig& model, int context, int batch, int tokens,
                         const PassRead& read);

// --- speculation ---------------------------------------------------------------------------------

// A round of drafting draft_len tokens at `acceptance` per token and verifying them.
struct RoundPrediction {
  int draft_len = 0;
  double draft_seconds = 0;   // one draft pass
  double verify_seconds = 0;  // one target pass over draft_len + 1 rows
  double tokens = 1;          // expected: (1 - a^(n+1)) / (1 - a), Eq. 1 of arXiv:2211.17192

  double seconds_per_token() const;
};
// REQUIRES: draft_len >= 0, acceptance in [0, 1].
RoundPrediction predict_round(const Machine& machine, const ModelConfig& model, int context,
                              int batch, const PassRead& draft, const PassRead& target,
                              int draft_len, double acceptance);
// The draft length from 0 to max_len with the least time per token, the shortest of equals.
RoundPrediction best_round(const Machine& machine, const ModelConfig& model, int context, int batch,
                           const PassRead& draft, const PassRead& target, double acceptance,
                           int max_len);

// --- the report ----------------------------------------------------------------------------------

struct RooflineRequest {
  ModelConfig model;
  WeightBytes weights;
  std::string model_name;
  Machine machine;
  std::vector<int> contexts;       // tokens, >= 1
  std::vector<int> batches;        // sequences, >= 1
  int generated = 1024;            // tokens of the decode rows of Table 1 and of the planes
  std::vector<double> acceptance;  // per drafted token, in [0, 1]
  int max_draft_len = 16;
};
// Table 1, Figures 2, 5 and 6, and predicted rounds. Markdown is at most 80 columns wide; the
// JSON's schema is in docs/roofline.md.
std::string roofline_markdown(const RooflineRequest& request);
std::string roofline_json(const RooflineRequest& request);

}  // namespace quantspec
