// JSON, a line of JSON for each row, and CSV: the same fields in all of them.
#include <fmt/format.h>

#include <cmath>

#include "base/json.h"
#include "base/shown.h"
#include "bench/render.h"

namespace quantspec {

namespace bench {

namespace {

// Names without a comma or a quote stay as they are (RFC 4180).
std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_cell(const Json& value) {
  if (value.is_string()) return csv_text(value.get<std::string>());
  if (!value.is_array()) {
    const bool is_none = value.is_null() || (value.is_number() && std::isnan(value.get<double>()));
    return is_none ? std::string() : dump_json(value);
  }
  std::string list;
  for (std::size_t i = 0; i < value.size(); ++i) list += (i > 0 ? ";" : "") + csv_cell(value[i]);
  return list;
}

std::string csv_rows(std::span<const Json> rows, bool first) {
  std::string text;
  for (const Json& row : rows) {
    std::string names, cells;
    for (const auto& [key, value] : row.items()) {
      names += (names.empty() ? "" : ",") + key;
      cells += (cells.empty() ? "" : ",") + csv_cell(value);
    }
    if (first && text.empty()) text += names + "\n";
    text += cells + "\n";
  }
  return text;
}

std::string json_rows(std::span<const Json> rows, bool first) {
  std::string text;
  for (const Json& row : rows) text += (first && text.empty() ? "\n" : ",\n") + dump_json(row);
  return text;
}

}  // namespace

void put(Json& json, const std::string& key, const Spread& spread) {
  json[key] = spread.median;
  json[key + "_min"] = spread.min;
  json[key + "_max"] = spread.max;
  json[key + "_values"] = spread.values;
}

void put(Json& json, const std::string& key, const std::optional<Spread>& spread) {
  if (spread) return put(json, key, *spread);
  for (const char* end : {"", "_min", "_max", "_values"}) json[key + end] = nullptr;
}

void put(Json& json, const MemoryPlan& memory, std::optional<std::size_t> gathered) {
  json["peak_bytes"] = memory.total() + gathered.value_or(0);
  json["weights_bytes"] = memory.weights_bytes;
  json["draft_weights_bytes"] = memory.draft_weights_bytes;
  json["kv_bytes"] = memory.kv_bytes;
  json["ring_bytes"] = memory.ring_bytes;
  if (gathered) json["gathered_bytes"] = *gathered;
  json["prefill_bytes"] = memory.prefill_bytes;
  json["kv_fp16_bytes"] = memory.kv_fp16_bytes;
}

Json to_json(std::span<const LeftOut> left_out, FieldNames names) {
  Json json = Json::array();
  for (const LeftOut& one : left_out) {
    json.push_back(
        {{"context", one.context}, {"plan", one.plan}, {"why", one_line(one.why.text(names))}});
  }
  return json;
}

std::string_view name_of(SpecSampling how) {
  return how == SpecSampling::kCoupled ? "coupled" : "rejection";
}

Json to_json(const BenchMeta& meta, FieldNames names) {
  Json json = quantspec::to_json(meta.head);
  json.update(
      {{"repeats", meta.repeats},
       {"warm_up", meta.warm_up},
       {"seed", meta.seed},
       {"spec_sampling", name_of(meta.spec_sampling)},
       {"machine", meta.machine.name},
       {"bandwidth_bytes_per_second", meta.machine.bandwidth},
       {"flops_per_second", meta.machine.flops},
       {"one_thread_bandwidth_bytes_per_second", or_null(meta.machine.one_thread_bandwidth)},
       {"left_out", to_json(meta.left_out, names)}});
  return json;
}

Json to_json(const BenchRow& row) {
  Json json;
  json["context"] = row.context;
  json["plan"] = row.plan;
  json["draft_len"] = row.draft_len ? Json(*row.draft_len) : Json("auto");
  json["temperature"] = as_typed(row.temperature);
  json["draft_budget"] = or_null(row.draft_budget);
  json["chosen_plan"] = row.chosen_plan.empty() ? Json(nullptr) : Json(row.chosen_plan);
  json["prompts"] = row.prompts;
  json["repeats"] = row.repeats;
  json["tokens"] = row.tokens;
  put(json, "decode_tokens_per_second", row.decode_tokens_per_second);
  put(json, "ms_per_token", row.ms_per_token);
  put(json, "speedup_fp16", row.speedup_fp16);
  put(json, "speedup_int8", row.speedup_int8);
  put(json, "acceptance_rate", row.acceptance_rate);
  put(json, "acceptance_per_token", row.acceptance_per_token);
  json["accepted_per_position"] = row.accepted_per_position;
  put(json, "tokens_per_round", row.tokens_per_round);
  json["draft_len_mean"] = row.draft_len_mean;
  put(json, "draft_ms", row.draft_ms);
  put(json, "verify_ms", row.verify_ms);
  put(json, "commit_ms", row.commit_ms);
  put(json, "prefill_ms", row.prefill_ms);
  json["predicted_ms_per_token"] = row.predicted_ms_per_token;
  put(json, row.memory, row.gathered_bytes);
  json["process_peak_bytes"] = row.process_peak_bytes;
  json["tokens_hash"] = fmt::format("{:016x}", row.tokens_hash);
  return json;
}

std::string data_head(BenchFormat format, const Json& meta) {
  if (format == BenchFormat::kCsv) return {};
  const std::string text = dump_json(meta);
  return format == BenchFormat::kJson ? fmt::format("{{\"meta\": {},\n\"rows\": [", text)
                                      : fmt::format("{{\"meta\": {}}}\n", text);
}

std::string data_rows(BenchFormat format, std::span<const Json> rows, bool first) {
  if (format == BenchFormat::kCsv) return csv_rows(rows, first);
  if (format == BenchFormat::kJson) return json_rows(rows, first);
  std::string text;
  for (const Json& row : rows) text += dump_json(row) + "\n";
  return text;
}

}  // namespace bench

std::string bench_head(BenchFormat format, const BenchMeta& meta, FieldNames names) {
  if (format == BenchFormat::kMarkdown) return bench::markdown_head(meta, names);
  return bench::data_head(format, bench::to_json(meta, names));
}

std::string bench_rows(BenchFormat format, std::span<const BenchRow> rows, bool first) {
  if (format == BenchFormat::kMarkdown) return bench::markdown_rows(rows);
  std::vector<bench::Json> json;
  for (const BenchRow& row : rows) json.push_back(bench::to_json(row));
  return bench::data_rows(format, json, first);
}

std::string bench_tail(BenchFormat format, bool complete) {
  if (format == BenchFormat::kJson) return fmt::format("\n],\n\"complete\": {}}}\n", complete);
  const bool says_so = format == BenchFormat::kMarkdown && !complete;
  return says_so ? "INCOMPLETE: ended before everything was measured.\n" : "";
}

}  // namespace quantspec
