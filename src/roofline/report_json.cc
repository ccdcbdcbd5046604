// The report for programs; its schema is in docs/roofline.md.
#include "base/json.h"
#include "roofline/analysis.h"

namespace quantspec {

namespace {

using roofline::Analysis;
using roofline::Part;
using roofline::Point;
using roofline::Rounds;
using OrderedJson = nlohmann::ordered_json;

const char* bound_of(const Cost& cost, const Machine& machine) {
  return cost.compute_bound(machine) ? "compute" : "memory";
}

OrderedJson meta_of(const RooflineRequest& request, const Analysis& analysis) {
  const Machine& machine = request.machine;
  const auto& one = machine.one_thread_bandwidth;
  return {{"model", request.model_name},
          {"machine", machine.name},
          {"bandwidth_bytes_per_second", machine.bandwidth},
          {"one_thread_bandwidth_bytes_per_second", one ? OrderedJson(*one) : OrderedJson(nullptr)},
          {"flops_per_second", machine.flops},
          {"memory_bytes", machine.memory},
          {"ridge_flops_per_byte", machine.ridge()},
          {"parameters", stored_parameters(request.model)},
          {"weights_bytes", analysis.weight_bytes},
          {"draft_weights_bytes", analysis.draft_weight_bytes},
          {"draft_read_bytes", analysis.draft_read_bytes},
          {"kv_fp16_bytes_per_token", analysis.kv_token_fp16},
          {"kv_both_planes_bytes_per_token", analysis.kv_token_both},
          {"kv_upper_plane_bytes_per_token", analysis.kv_token_upper},
          {"generated_tokens", request.generated},
          {"max_draft_len", request.max_draft_len}};
}

OrderedJson table_row(const RooflineRequest& request, const Point& point, const char* phase,
                      const StepCost& step, const Part& part) {
  const Cost cost = part.of(step);
  return {{"phase", phase},
          {"part", part.name},
          {"context", point.context},
          {"batch", point.batch},
          {"flops", cost.flops},
          {"bytes", cost.bytes},
          {"intensity", cost.intensity()},
          {"bound", bound_of(cost, request.machine)},
          {"seconds", part_seconds(step, part, request.machine)}};
}

OrderedJson plane_row(const RooflineRequest& request, const Point& point, const char* phase,
                      const StepCost& step) {
  return {{"phase", phase},
          {"context", point.context},
          {"batch", point.batch},
          {"linear_intensity", step.linear.intensity()},
          {"attention_intensity", step.attention.intensity()},
          {"aggregate_intensity", step.total().intensity()},
          {"aggregate_bound", bound_of(step.total(), request.machine)},
          {"attention_share", step.attention_share(request.machine)},
          {"seconds", step.seconds(request.machine)}};
}

OrderedJson round_row(const Rounds& rounds) {
  const RoundPrediction& best = rounds.best;
  return {{"context", rounds.context},
          {"batch", rounds.batch},
          {"acceptance", rounds.acceptance},
          {"plain_fp16_ms", 1e3 * rounds.plain_fp16},
          {"plain_int8_ms", 1e3 * rounds.plain_int8},
          {"draft_len", best.draft_len},
          {"draft_ms", 1e3 * best.draft_seconds},
          {"verify_ms", 1e3 * best.verify_seconds},
          {"tokens_per_round", best.tokens},
          {"ms_per_token", 1e3 * best.seconds_per_token()},
          {"speedup_fp16", rounds.plain_fp16 / best.seconds_per_token()},
          {"speedup_int8", rounds.plain_int8 / best.seconds_per_token()}};
}

OrderedJson kv_row(const Point& point) {
  return {{"context", point.context},       {"batch", point.batch},
          {"kv_fp16_bytes", point.kv_fp16}, {"kv_bytes", point.kv_both},
          {"fp16_fits", point.fp16_fits},   {"quantspec_fits", point.quantspec_fits}};
}

}  // namespace

std::string roofline_json(const RooflineRequest& request) {
  const Analysis analysis = roofline::analyze(request);
  OrderedJson table1 = OrderedJson::array(), planes = table1, steps = table1, kv = table1;
  const auto add_phase = [&](const Point& point, const char* phase, const StepCost& step) {
    for (const Part& part : roofline::kParts) {
      table1.push_back(table_row(request, point, phase, step, part));
    }
    planes.push_back(plane_row(request, point, phase, step));
  };
  for (const Point& point : analysis.points) {
    add_phase(point, "prefill", point.prefill);
    add_phase(point, "decode", point.decode);
    kv.push_back(kv_row(point));
  }
  for (const Rounds& rounds : analysis.rounds) steps.push_back(round_row(rounds));
  const OrderedJson report = {{"meta", meta_of(request, analysis)},
                              {"table1", table1},
                              {"planes", planes},
                              {"steps", steps},
                              {"kv", kv}};
  return dump_json(report) + "\n";
}

}  // namespace quantspec
