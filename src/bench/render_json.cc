// JSON, a line of JSON for each row, and CSV: the same fields in all of them.
#include <fmt/format.h>

#include <cmath>

#include "base/json.h"
#include "base/shown.h"
#include "bench/render.h"

namespace quantspec {

namespace bench {

namespace {

using Json = nlohmann::ordered_json;

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

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

void put(Json& json, const MemoryPlan& memory) {
  json["peak_bytes"] = memory.total();
  json["weights_bytes"] = memory.weights_bytes;
  json["draft_weights_bytes"] = memory.draft_weights_bytes;
  json["kv_bytes"] = memory.kv_bytes;
  json["ring_bytes"] = memory.ring_bytes;
  json["gathered_bytes"] = memory.gathered_bytes;
  json["prefill_bytes"] = memory.prefill_bytes;
  json["kv_fp16_bytes"] = memory.kv_fp16_bytes;
}

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

std::string csv_rows(std::span<const BenchRow> rows, bool first) {
  std::string text;
  for (const BenchRow& row : rows) {
    std::string names, cells;
    const Json json = to_json(row);
    for (const auto& [key, value] : json.items()) {
      names += (names.empty() ? "" : ",") + key;
      cells += (cells.empty() ? "" : ",") + csv_cell(value);
    }
    if (first && text.empty()) text += names + "\n";
    text += cells + "\n";
  }
  return text;
}

std::string json_rows(std::span<const BenchRow> rows, bool first) {
  std::string text;
  for (const BenchRow& row : rows) {
    text += (first && text.empty() ? "\n" : ",\n") + dump_json(to_json(row));
  }
  return text;
}

}  // namespace

Json to_json(const BenchMeta& meta, FieldNames names) {
  Json left_out = Json::array();
  for (const LeftOut& one : meta.left_out) {
    left_out.push_back(
        {{"context", one.context}, {"plan", one.plan}, {"why", one_line(one.why.text(names))}});
  }
  Json json = quantspec::to_json(meta.head);
  json.update(
      {{"repeats", meta.repeats},
       {"warm_up", meta.warm_up},
       {"seed", meta.seed},
       {"spec_sampling", meta.spec_sampling == SpecSampling::kCoupled ? "coupled" : "rejection"},
       {"machine", meta.machine.name},
       {"bandwidth_bytes_per_second", meta.machine.bandwidth},
       {"flops_per_second", meta.machine.flops},
       {"one_thread_bandwidth_bytes_per_second", or_null(meta.machine.one_thread_bandwidth)},
       {"left_out", left_out}});
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
  put(json, row.memory);
  json["process_peak_bytes"] = row.process_peak_bytes;
  json["tokens_hash"] = fmt::format("{:016x}", row.tokens_hash);
  return json;
}

}  // namespace bench

std::string bench_head(BenchFormat format, const BenchMeta& meta, FieldNames names) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return bench::markdown_head(meta, names);
    case BenchFormat::kCsv:
      break;
    case BenchFormat::kJson:
      return fmt::format("{{\"meta\": {},\n\"rows\": [", dump_json(bench::to_json(meta, names)));
    case BenchFormat::kJsonl:
      return fmt::format("{{\"meta\": {}}}\n", dump_json(bench::to_json(meta, names)));
  }
  return {};
}

std::string bench_rows(BenchFormat format, std::span<const BenchRow> rows, bool first) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return bench::markdown_rows(rows);
    case BenchFormat::kCsv:
      return bench::csv_rows(rows, first);
    case BenchFormat::kJson:
      return bench::json_rows(rows, first);
    case BenchFormat::kJsonl:
      break;
  }
  std::string text;
  for (const BenchRow& row : rows) text += dump_json(bench::to_json(row)) + "\n";
  return text;
}

std::string bench_tail(BenchFormat format, bool complete) {
  if (format == BenchFormat::kJson) return fmt::format("\n],\n\"complete\": {}}}\n", complete);
  const bool says_so = format == BenchFormat::kMarkdown && !complete;
  return says_so ? "INCOMPLETE: ended before everything was measured.\n" : "";
}

}  // namespace quantspec
