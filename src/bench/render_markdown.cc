// The report for people: Markdown tables that also read well as they are. With plans of short names
// they fit 80 columns; long names may take them to 100.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/shown.h"
#include "bench/render.h"

namespace quantspec::bench {

namespace {

constexpr std::size_t kColumns = 100;

// Three digits.
std::string number(double value) {
  if (value < 5e-4) return "0";
  return fmt::format("{:.{}f}", value, value < 1 ? 3 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}
std::string range(const Spread& spread) { return number(spread.min) + "-" + number(spread.max); }
std::string ratio(const Spread& spread) { return fmt::format("{:.2f}", spread.median); }
std::string share(const std::optional<Spread>& spread) {
  return spread ? fmt::format("{:.3f}", spread->median) : "-";
}
std::string megabytes(std::size_t bytes) { return number(static_cast<double>(bytes) / 1e6); }

// As asked for; "~2.1" is the mean of those that were chosen.
std::string draft_len(const BenchRow& row) {
  return row.draft_len ? std::to_string(*row.draft_len)
                       : fmt::format("~{:.1f}", row.draft_len_mean);
}

std::string name_of(const BenchRow& row) {
  return table_cell(plan_label(row.plan, row.draft_budget));
}

// The end of a name that is too long says more than its beginning.
std::string shortened(const std::string& name, std::size_t width) {
  return name.size() <= width ? name : ".." + name.substr(name.size() - (width - 2));
}

using Cells = std::vector<std::string>;

// The first column is text and takes what the others leave.
std::string table(const Cells& titles, std::vector<Cells> rows) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < titles.size(); ++i) {
    widths.push_back(titles[i].size());
    for (const Cells& row : rows) widths[i] = std::max(widths[i], row[i].size());
  }
  std::size_t others = 4;  // the first column's share of the lines
  for (std::size_t i = 1; i < widths.size(); ++i) others += widths[i] + 3;
  widths[0] = std::min(widths[0], kColumns - std::min(others, kColumns - 10));
  const auto line = [&](const Cells& cells) {
    std::string text = fmt::format("| {:<{}} |", shortened(cells[0], widths[0]), widths[0]);
    for (std::size_t i = 1; i < cells.size(); ++i) {
      text += fmt::format(" {:>{}} |", cells[i], widths[i]);
    }
    return text + "\n";
  };
  std::string text = line(titles) + "|:" + std::string(widths[0] + 1, '-') + "|";
  for (std::size_t i = 1; i < widths.size(); ++i) text += std::string(widths[i] + 1, '-') + ":|";
  text += "\n";
  for (const Cells& row : rows) text += line(row);
  return text + "\n";
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
    cells.push_back({name_of(row), number(row.prefill_ms.median / 1e3), megabytes(memory.total()),
                     megabytes(memory.weights_bytes), megabytes(memory.draft_weights_bytes),
                     megabytes(memory.kv_bytes + memory.ring_bytes),
                     megabytes(memory.gathered_bytes), megabytes(memory.prefill_bytes)});
  }
  return table({"plan", "prefill", "peak", "weights", "draft", "KV", "its KV", "scratch"},
               std::move(cells));
}

std::string choices(std::span<const BenchRow> rows) {
  std::string text;
  for (const BenchRow& row : rows) {
    if (row.plan != "auto") continue;
    text += row.chosen_plan.empty()
                ? std::string("auto mostly did not draft.\n")
                : fmt::format("auto drafted mostly by {}.\n", one_line(row.chosen_plan));
  }
  return text.empty() ? text : text + "\n";
}

// An item of a list, broken at spaces so that it fits 80 columns.
std::string item(std::string_view text) {
  constexpr std::size_t kWidth = 78;
  std::string lines;
  for (const char* mark = "- "; !text.empty(); mark = "  ") {
    std::size_t end = text.size() <= kWidth ? text.size() : text.rfind(' ', kWidth);
    if (end == text.npos) end = std::min(text.find(' '), text.size());
    lines += fmt::format("{}{}\n", mark, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::string markdown_head(const BenchMeta& meta, FieldNames names) {
  const ReportHead& head = meta.head;
  std::string text =
      fmt::format("# Bench of {} on {}\n\n", one_line(head.model), one_line(head.dataset));
  text += fmt::format("- quantspec {}, commit {}, {}\n", head.version, head.commit, head.date);
  text += fmt::format("- {}; {}; pages of {} tokens\n", head.backend, head.cpu, head.page_size);
  text += fmt::format("- memory read at {:.1f} GB/s, {:.1f} GFLOP/s; predictions are for {}\n",
                      meta.machine.bandwidth / 1e9, meta.machine.flops / 1e9, meta.machine.name);
  text += fmt::format("- {} sampling, seed {}; {} warm-up tokens are not counted\n",
                      meta.spec_sampling == SpecSampling::kCoupled ? "coupled" : "rejection",
                      meta.seed, meta.warm_up);
  if (head.recall_distance > 0) {
    text += fmt::format("- recall distance: {} tokens\n", head.recall_distance);
  }
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
