// The report of a load, in every format.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/json.h"
#include "base/shown.h"
#include "bench/markdown.h"
#include "bench/render.h"

namespace quantspec {

namespace bench {

namespace {

void put(Json& json, const std::string& key, const Latency& latency) {
  json[key + "_p50_ms"] = latency.p50;
  json[key + "_p99_ms"] = latency.p99;
}

// Keys that every row has.
void put(Json& json, const std::optional<LoadRow::Late>& late) {
  json["late_ttft_ms"] = late ? or_null(late->ttft_ms) : Json(nullptr);
  json["late_itl_p50_ms"] = late ? Json(late->itl.p50) : Json(nullptr);
  json["late_itl_p99_ms"] = late ? Json(late->itl.p99) : Json(nullptr);
}

// One list for each of a moment's numbers.
void put(Json& json, const std::vector<LoadMoment>& moments) {
  const auto list = [&](const char* key, double LoadMoment::*value) {
    Json numbers = Json::array();
    for (const LoadMoment& moment : moments) numbers.push_back(moment.*value);
    json[key] = std::move(numbers);
  };
  list("over_time_ms", &LoadMoment::ms);
  list("over_time_streams", &LoadMoment::streams);
  list("over_time_draft_len", &LoadMoment::draft_len);
  list("over_time_output_tokens_per_second", &LoadMoment::output_tokens_per_second);
}

std::string ratio(const Spread& spread) { return fmt::format("{:.2f}", spread.median); }

std::string label(const LoadRow& row) { return table_cell(plan_label(row.plan, row.draft_budget)); }

std::string draft_len(const LoadRow& row) {
  return row.draft_len ? std::to_string(*row.draft_len)
                       : fmt::format("~{:.1f}", row.draft_len_mean);
}

std::string speeds(std::span<const LoadRow> rows) {
  std::vector<Cells> cells;
  for (const LoadRow& row : rows) {
    const Spread& speed = row.output_tokens_per_second;
    cells.push_back({label(row), draft_len(row), number(speed.median),
                     number(speed.min) + "-" + number(speed.max), ratio(row.speedup_fp16),
                     ratio(row.speedup_int8),
                     row.acceptance_rate ? fmt::format("{:.3f}", *row.acceptance_rate) : "-",
                     row.identical ? (*row.identical ? "yes" : "NO") : "-"});
  }
  return table({"plan", "len", "tok/s", "min-max", "fp16", "int8", "accept", "same"},
               std::move(cells));
}

std::string times(std::span<const LoadRow> rows) {
  std::vector<Cells> cells;
  for (const LoadRow& row : rows) {
    cells.push_back({label(row), draft_len(row), number(row.ttft.p50), number(row.ttft.p99),
                     number(row.itl.p50), number(row.itl.p99), number(row.tpot.p50),
                     fmt::format("{:.1f}", row.streams_per_round), number(row.draft_ms),
                     number(row.other_ms)});
  }
  return table({"plan", "len", "ttft", "p99", "itl", "p99", "tpot", "rows", "draft", "rest"},
               std::move(cells));
}

// Beside those without it.
std::string late(std::span<const LoadRow> rows) {
  if (!rows.front().late) return {};
  std::vector<Cells> cells;
  for (const LoadRow& row : rows) {
    const LoadRow::Late& late = *row.late;
    cells.push_back({label(row), draft_len(row), number(row.itl.p50), number(row.itl.p99),
                     number(late.itl.p50), number(late.itl.p99),
                     fmt::format("{:.2f}", late.itl.p99 / row.itl.p99),
                     late.ttft_ms ? number(*late.ttft_ms) : "-"});
  }
  return table({"plan", "len", "itl", "p99", "late itl", "late p99", "ratio", "late ttft"},
               std::move(cells));
}

std::string memory(std::span<const LoadRow> rows) {
  std::vector<Cells> cells;
  for (const LoadRow& row : rows) {
    const MemoryPlan& memory = row.memory;
    cells.push_back({label(row), draft_len(row), megabytes(memory.total()),
                     megabytes(memory.draft_weights_bytes), megabytes(memory.kv_bytes),
                     megabytes(memory.ring_bytes), megabytes(memory.prefill_bytes),
                     std::to_string(row.cached_tokens), std::to_string(row.moves.preemptions)});
  }
  return table({"plan", "len", "peak", "drafts", "KV", "rings", "scratch", "cached", "preempt"},
               std::move(cells));
}

std::string over_time(std::span<const LoadRow> rows) {
  Cells titles = {"len by tenths"};
  for (std::size_t i = 1; i <= rows.front().over_time.size(); ++i) {
    titles.push_back(std::to_string(i));
  }
  std::vector<Cells> cells;
  for (const LoadRow& row : rows) {
    if (row.draft_len || row.over_time.empty()) continue;
    cells.push_back({label(row)});
    for (const LoadMoment& moment : row.over_time) {
      cells.back().push_back(fmt::format("{:.1f}", moment.draft_len));
    }
  }
  return cells.empty() ? std::string() : table(titles, std::move(cells));
}

std::string title(const LoadRow& row) {
  const std::string load =
      row.context ? fmt::format("{} streams, {} tokens of context", row.streams, *row.context)
                  : fmt::format("a trace of {} requests, {} at once", row.requests, row.streams);
  return fmt::format("## {}, temperature {:g}\n\n", load, row.temperature);
}

std::string repeats(const LoadRow& row) {
  const std::string of = row.tokens ? fmt::format(" of {} tokens a stream", *row.tokens) : "";
  return fmt::format("{} repeat{}{}.\n\n", row.repeats, row.repeats == 1 ? "" : "s", of);
}

}  // namespace

std::string markdown_head(const LoadMeta& meta, FieldNames names) {
  const ReportHead& head = meta.head;
  std::string text = markdown_title(meta.trace.empty() ? "Streams" : "Trace", head);
  if (!meta.trace.empty()) text += item(one_line("trace: " + meta.trace));
  text += fmt::format("- {} sampling, seed {}; {} warm-up tokens are not counted\n",
                      name_of(meta.spec_sampling), meta.seed, meta.warm_up);
  if (!head.draft_store.empty()) {
    text += fmt::format("- draft weights: {}\n", one_line(head.draft_store));
  }
  if (meta.late_prompt > 0) {
    text += fmt::format("- late: while a prompt of {} tokens was read beside the streams\n",
                        meta.late_prompt);
  }
  if (meta.page_memory > 0) {
    text += fmt::format("- 8-bit pages take {} MB at most\n", megabytes(meta.page_memory));
  }
  if (meta.host_cache > 0) {
    text += fmt::format("- {} MB of the host's memory are for what pages have no room for\n",
                        megabytes(meta.host_cache));
  }
  const std::string left_out = describe(meta.left_out).text(names);
  if (!left_out.empty()) text += item(one_line(left_out));
  return text +
         "\nplan@N: with a budget of N tokens; len: draft length, ~ the mean where it is\n"
         "chosen; tok/s: tokens written per second, all streams together, median and\n"
         "min-max of the repeats; fp16, int8: speed-up over plain decoding with that KV;\n"
         "accept: accepted of all that was drafted; same: the tokens of plain decoding.\n"
         "ttft: ms to the first token, median and p99; itl: ms between two arrivals of\n"
         "tokens at a client; tpot: ms per token of a stream, median; rows: streams in a\n"
         "round; draft, rest: ms of a round. Memory in MB; peak: the model's weights too;\n"
         "drafts: weights that drafts read; KV: pages; cached: prompt tokens that were\n"
         "found and not read; preempt: preemptions.\n\n";
}

std::string markdown_rows(std::span<const LoadRow> rows) {
  std::string text;
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t end = first;
    while (end < rows.size() && rows[end].temperature == rows[first].temperature) ++end;
    const auto part = rows.subspan(first, end - first);
    text += title(part.front()) + repeats(part.front());
    text += speeds(part) + times(part) + late(part) + over_time(part) + memory(part);
    first = end;
  }
  return text;
}

Json to_json(const LoadMeta& meta, FieldNames names) {
  Json json = quantspec::to_json(meta.head);
  json.update({{"streams", meta.streams},
               {"trace", meta.trace},
               {"requests", meta.requests},
               {"late_prompt", meta.late_prompt},
               {"page_memory", meta.page_memory},
               {"host_cache", meta.host_cache},
               {"repeats", meta.repeats},
               {"warm_up", meta.warm_up},
               {"seed", meta.seed},
               {"spec_sampling", name_of(meta.spec_sampling)},
               {"left_out", to_json(meta.left_out, names)}});
  return json;
}

Json to_json(const LoadRow& row) {
  Json json;
  json["streams"] = row.streams;
  json["context"] = or_null(row.context);
  json["plan"] = row.plan;
  json["draft_len"] = row.draft_len ? Json(*row.draft_len) : Json("auto");
  json["temperature"] = as_typed(row.temperature);
  json["draft_budget"] = or_null(row.draft_budget);
  json["chosen_plan"] = row.chosen_plan.empty() ? Json(nullptr) : Json(row.chosen_plan);
  json["requests"] = row.requests;
  json["repeats"] = row.repeats;
  json["tokens"] = or_null(row.tokens);
  put(json, "output_tokens_per_second", row.output_tokens_per_second);
  put(json, "speedup_fp16", row.speedup_fp16);
  put(json, "speedup_int8", row.speedup_int8);
  put(json, "ttft", row.ttft);
  put(json, "itl", row.itl);
  put(json, "tpot", row.tpot);
  json["acceptance_rate"] = or_null(row.acceptance_rate);
  json["acceptance_per_token"] = or_null(row.acceptance_per_token);
  json["draft_len_mean"] = row.draft_len_mean;
  json["streams_per_round"] = row.streams_per_round;
  json["draft_ms"] = row.draft_ms;
  json["other_ms"] = row.other_ms;
  json["cached_tokens"] = row.cached_tokens;
  json["preemptions"] = row.moves.preemptions;
  json["swaps"] = row.moves.swaps;
  json["replays"] = row.moves.replays;
  json["pages_swapped_out"] = row.moves.pages_swapped_out;
  json["pages_swapped_in"] = row.moves.pages_swapped_in;
  json["prefix_pages_to_host"] = row.moves.prefix_pages_to_host;
  json["prefix_pages_from_host"] = row.moves.prefix_pages_from_host;
  put(json, row.memory);
  json["process_peak_bytes"] = row.process_peak_bytes;
  json["identical"] = or_null(row.identical);
  json["tokens_hash"] = fmt::format("{:016x}", row.tokens_hash);
  put(json, row.late);
  put(json, row.over_time);
  return json;
}

}  // namespace bench

std::string load_head(BenchFormat format, const LoadMeta& meta, FieldNames names) {
  if (format == BenchFormat::kMarkdown) return bench::markdown_head(meta, names);
  return bench::data_head(format, bench::to_json(meta, names));
}

std::string load_rows(BenchFormat format, std::span<const LoadRow> rows, bool first) {
  if (format == BenchFormat::kMarkdown) return bench::markdown_rows(rows);
  std::vector<bench::Json> json;
  for (const LoadRow& row : rows) json.push_back(bench::to_json(row));
  return bench::data_rows(format, json, first);
}

}  // namespace quantspec
