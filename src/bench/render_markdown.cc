// The report for people: Markdown tables that also read well as they are. With plans of short names
// they fit 80 columns; long names may take them to 100.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/shown.h"
#include "bench/markdown.h"
#include "bench/render.h"

namespace quantspec::bench {

namespace {

std::string range(const Spread& spread) { return number(spread.min) + "-" + number(spread.max); }
std::string ratio(const Spread& spread) { return fmt::format("{:.2f}", spread.median); }
std::string share(const std::optional<Spread>& spread) {
  return spread ? fmt::format("{:.3f}", spread->median) : "-";
}
// As asked for; "~2.1" is the mean of those that were chosen.
std::string draft_len(const BenchRow& row) {
  return row.draft_len ? std::to_string(*row.draft_len)
                       : fmt::format("~{:.1f}", row.draft_len_mean);
}

std::string name_of(const BenchRow& row) {
  return table_cell(plan_label(row.plan, row.draft_budget));
}

std::string speeds(std::span<const BenchRow> rows) {
  std::vector<Cells> cells;
  for (const BenchRow& row : rows) {
    const Spread& speed = row.decode_tokens_per_second;
    cells.push_back({name_of(row), draft_len(row), number(speed.median), range(speed),
                     ratio(row.speedup_fp16), ratio(row.speedup_int8), share(row.acceptance_rate),
                     share(row.acceptance_per_token)});
  }
  return table({"plan", "len", "tok/s", "min-max", "fp16", "int8", "accept", "a/tok"},
               std::move(cells));
}

std::string rounds(std::span<const BenchRow> rows) {
  std::vector<Cells> cells;
  for (const BenchRow& row : rows) {
    cells.push_back(
        {name_of(row), draft_len(row), fmt::format("{:.2f}", row.tokens_per_round.median),
         number(row.draft_ms.median), number(row.verify_ms.median), number(row.commit_ms.median),
         number(row.ms_per_token.median), number(row.predicted_ms_per_token)});
  }
  return table({"plan", "len", "t/rd", "draft", "verify", "commit", "ms/t", "pred"},
               std::move(cells));
}

// A plan's memory does not depend on its draft length.
std::string memory(std::span<const BenchRow> rows) {
  std::vector<Cells> cells;
  for (const BenchRow& row : rows) {
    const bool listed =
        std::ranges::any_of(cells, [&](const Cells& other) { return other[0] == name_of(row); });
    if (listed) continue;
    const MemoryPlan& memory = row.memory;
    cells.push_back({name_of(row), number(row.prefill_ms.median / 1e3),
                     megabytes(memory.total() + row.gathered_bytes),
                     megabytes(memory.weights_bytes), megabytes(memory.draft_weights_bytes),
                     megabytes(memory.kv_bytes + memory.ring_bytes), megabytes(row.gathered_bytes),
                     megabytes(memory.prefill_bytes)});
  }
  return table({"plan", "prefill", "peak", "weights", "draft", "KV", "its KV", "scratch"},
               std::move(cells));
}

std::string choices(std::span<const BenchRow> rows) {
  std::string text;
  for (const BenchRow& row : rows) {
    if (!row.plan.starts_with("auto") && !row.plan.ends_with("+lookup")) continue;
    text += row.chosen_plan.empty() ? fmt::format("{} mostly did not draft.\n", one_line(row.plan))
                                    : fmt::format("{} drafted mostly by {}.\n", one_line(row.plan),
                                                  one_line(row.chosen_plan));
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace

std::string markdown_title(const char* what, const ReportHead& head) {
  std::string text =
      fmt::format("# {} of {} on {}\n\n", what, one_line(head.model), one_line(head.dataset));
  text += fmt::format("- quantspec {}, commit {}, {}\n", head.version, head.commit, head.date);
  text += fmt::format("- {}\n- {}; pages of {} tokens\n", head.backend, head.cpu, head.page_size);
  return text;
}

std::string markdown_head(const BenchMeta& meta, FieldNames names) {
  const ReportHead& head = meta.head;
  std::string text = markdown_title("Bench", head);
  text += fmt::format("- memory read at {:.1f} GB/s, {:.1f} GFLOP/s; predictions are for {}\n",
                      meta.machine.bandwidth / 1e9, meta.machine.flops / 1e9, meta.machine.name);
  text += fmt::format("- {} sampling, seed {}; {} warm-up tokens are not counted\n",
                      name_of(meta.spec_sampling), meta.seed, meta.warm_up);
  if (head.recall_distance > 0) {
    text += fmt::format("- recall distance: {} tokens\n", head.recall_distance);
  }
  text += fmt::format("- target weights: {}\n", head.target_weights);
  if (!head.draft_store.empty())
    text += fmt::format("- draft weights: {}\n", one_line(head.draft_store));
  const std::string doubt = doubt_of(meta.machine);
  const std::string left_out = describe(meta.left_out).text(names);
  if (!doubt.empty()) text += item("in doubt: " + doubt);
  if (!left_out.empty()) text += item(one_line(left_out));
  text +=
      "\nplan@N: with a budget of N tokens; len: draft length, ~ the mean where it is\n"
      "chosen; tok/s: decoded tokens per second, median and min-max of the repeats;\n"
      "fp16, int8: speed-up over plain decoding with that KV; accept: accepted of all\n"
      "that was drafted; a/tok: acceptance per token, accepted of what the target\n"
      "judged, which in a draft ends with the first rejected token; t/rd: tokens per\n"
      "round; draft, verify, commit: ms of a round; ms/t: ms per token, and pred by the\n"
      "roofline. Memory in MB, prefill in s; draft: weights that drafts read; KV: pages\n"
      "and ring; its KV: tokens that a draft keeps for itself.\n\n";
  return text;
}

std::string markdown_rows(std::span<const BenchRow> rows) {
  std::string text;
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t end = first;
    while (end < rows.size() && rows[end].temperature == rows[first].temperature) ++end;
    const auto part = rows.subspan(first, end - first);
    const BenchRow& row = part.front();
    text +=
        fmt::format("## {} tokens of context, temperature {:g}\n\n", row.context, row.temperature);
    text += fmt::format("{} prompt{} x {} repeat{} of {} tokens.\n\n", row.prompts,
                        row.prompts == 1 ? "" : "s", row.repeats, row.repeats == 1 ? "" : "s",
                        row.tokens);
    text += speeds(part) + rounds(part) + choices(part);
    if (end == rows.size()) text += memory(part);
    first = end;
  }
  return text;
}

}  // namespace quantspec::bench
