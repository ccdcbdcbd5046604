// The report for people: Markdown tables that also read well as they are.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/shown.h"
#include "roofline/analysis.h"

namespace quantspec {

namespace {

using roofline::Analysis;
using roofline::Part;
using roofline::Point;
using roofline::Rounds;

constexpr std::size_t kColumnsAtOnce = 7;  // of batches in a plane: 80 characters

// Three digits and a decimal prefix: 13.2 G, 412 M, 0.98.
std::string si(double value, const char* space = " ") {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  std::size_t prefix = 0;
  for (; value >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, decimals, prefix > 0 ? space : "", kPrefixes[prefix]);
}

// With its unit: 12.3 ks, 371 ms.
std::string duration(double seconds) {
  if (seconds >= 0.9995) return si(seconds) + (seconds < 999.5 ? " s" : "s");
  return seconds >= 0.9995e-3 ? fmt::format("{:.3g} ms", 1e3 * seconds)
                              : fmt::format("{:.3g} us", 1e6 * seconds);
}

std::string milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return fmt::format("{:.{}f}", ms, ms < 10 ? 3 : ms < 1000 ? 1 : 0);
}

std::string row(const std::vector<std::string>& cells, const std::vector<int>& widths) {
  std::string line = "|";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const int width = widths[i];
    line += width < 0 ? fmt::format(" {:<{}} |", cells[i], -width)
                      : fmt::format(" {:>{}} |", cells[i], width);
  }
  return line + "\n";
}

// `widths`: of the columns, negative for text, which stands to the left.
std::string table(const std::vector<std::string>& titles,
                  const std::vector<std::vector<std::string>>& rows, std::vector<int> widths) {
  std::string rule = "|";
  for (const int width : widths) {
    const std::string dashes(std::abs(width) + 1, '-');
    rule += width < 0 ? ":" + dashes + "|" : dashes + ":|";
  }
  std::string text = row(titles, widths) + rule + "\n";
  for (const auto& cells : rows) text += row(cells, widths);
  return text + "\n";
}

// Where drafts find their weights.
std::string draft_weights(const RooflineRequest& request, const Analysis& analysis) {
  const WeightBytes& bytes = request.weights;
  const double store = analysis.draft_weight_bytes;
  if (store == analysis.draft_read_bytes) return "a 4-bit store beside the target's";
  if (store > 0) {
    return fmt::format("of the target's own codes, and a 4-bit store of {}B", si(store));
  }
  if (bytes.upper == bytes.target) return "all of the target's own; they save KV alone";
  return "the upper four bits of the target's own";
}

std::string head(const RooflineRequest& request, const Analysis& analysis) {
  const Machine& machine = request.machine;
  std::string text = fmt::format("# Roofline of {} on {}\n\n", one_line(request.model_name),
                                 machine.name == "this" ? "this machine" : machine.name);
  text += fmt::format("- machine: {}B/s from memory, {}FLOP/s, {}B of memory\n",
                      si(machine.bandwidth), si(machine.flops), si(machine.memory));
  const std::string doubt = doubt_of(machine);
  if (!doubt.empty()) text += fmt::format("- in doubt: {}\n", doubt);
  text +=
      fmt::format("- ridge point: {} FLOP/byte; above it is compute-bound, below memory-bound\n",
                  si(machine.ridge()));
  text += fmt::format("- weights: {} parameters, {}B\n", si(stored_parameters(request.model)),
                      si(analysis.weight_bytes));
  text += fmt::format("- drafts read {}B of weights: {}\n", si(analysis.draft_read_bytes),
                      draft_weights(request, analysis));
  text += fmt::format("- KV of a token: fp16 {}B, both planes {}B, upper plane {}B\n\n",
                      si(analysis.kv_token_fp16), si(analysis.kv_token_both),
                      si(analysis.kv_token_upper));
  return text;
}

std::string asymptotics() {
  return "B sequences of S tokens, hidden size d, k generated tokens.\n\n" +
         table({"phase", "part", "FLOPs", "bytes", "FLOP/byte"},
               {{"prefill", "linear", "B S d^2", "B S d + d^2", "B S d / (B S + d)"},
                {"prefill", "attention", "B S^2 d", "B S d", "S"},
                {"prefill", "aggregate", "B S d (d + S)", "B S d + d^2", "d + S, as B S >> d"},
                {"decode", "linear", "k B d^2", "k (B d + d^2)", "B, as d >> B"},
                {"decode", "attention", "k B S d", "k B S d", "1"},
                {"decode", "aggregate", "k B d (d + S)", "k d (B + d + B S)", "B; 1 as B S >> d"}},
               {-7, -9, -13, -17, -18});
}

std::string table1(const RooflineRequest& request, const Analysis& analysis) {
  std::string text = "## FLOPs and bytes (Table 1)\n\n";
  text += asymptotics();
  text +=
      fmt::format("Batch {}; decode: {} tokens. bound: what sets the time at that intensity.\n\n",
                  request.batches.front(), request.generated);
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const Point& point, const char* phase, const StepCost& step) {
    for (const Part& part : roofline::kParts) {
      const Cost cost = part.of(step);
      rows.push_back({std::to_string(point.context), phase, part.name, si(cost.flops),
                      si(cost.bytes), si(cost.intensity()),
                      cost.compute_bound(request.machine) ? "compute" : "memory",
                      duration(part_seconds(step, part, request.machine))});
    }
  };
  for (const Point& point : analysis.points) {
    if (point.batch != request.batches.front()) continue;
    add(point, "prefill", point.prefill);
    add(point, "decode", point.decode);
  }
  return text + table({"context", "phase", "part", "FLOPs", "bytes", "FLOP/B", "bound", "time"},
                      rows, {7, -7, -9, 6, 6, 6, -7, 7});
}

// A number for every context (down) and batch (across).
std::string plane(const RooflineRequest& request, const Analysis& analysis,
                  const std::function<std::string(const Point&)>& cell) {
  std::string text;
  const std::size_t batches = request.batches.size();
  for (std::size_t first = 0; first < batches; first += kColumnsAtOnce) {
    const std::size_t end = std::min(batches, first + kColumnsAtOnce);
    std::vector<std::string> titles = {"context"};
    for (std::size_t i = first; i < end; ++i) {
      titles.push_back(fmt::format("B={}", request.batches[i]));
    }
    std::vector<std::vector<std::string>> rows;
    for (std::size_t i = 0; i < request.contexts.size(); ++i) {
      rows.push_back({std::to_string(request.contexts[i])});
      for (std::size_t j = first; j < end; ++j) {
        rows.back().push_back(cell(analysis.points[i * batches + j]));
      }
    }
    std::vector<int> widths(titles.size(), 6);
    widths[0] = 7;
    text += table(titles, rows, widths);
  }
  return text;
}

std::string intensities(const RooflineRequest& request, const Analysis& analysis,
                        const std::string& phase, StepCost Point::*step) {
  std::string text;
  for (const Part& part : roofline::kParts) {
    text += fmt::format("{}, {}:\n\n", phase, part.name);
    text += plane(request, analysis, [&](const Point& point) {
      const Cost cost = part.of(point.*step);
      return si(cost.intensity(), "") + (cost.compute_bound(request.machine) ? "*" : " ");
    });
  }
  return text;
}

std::string planes(const RooflineRequest& request, const Analysis& analysis) {
  const auto share = [&](StepCost Point::*step) {
    return plane(request, analysis, [&request, step](const Point& point) {
      return fmt::format("{:.1f}", 100 * (point.*step).attention_share(request.machine));
    });
  };
  std::string text = fmt::format(
      "## Arithmetic intensity of decoding (Figure 2)\n\n"
      "FLOP/byte of {} tokens by context and batch (B). *: compute-bound, from {}."
      "\n\n",
      request.generated, si(request.machine.ridge()));
  text += intensities(request, analysis, "decode", &Point::decode);
  text += "Attention's share of the time, in percent:\n\n" + share(&Point::decode);
  text += "## Arithmetic intensity of prefill (Figure 5)\n\n";
  text += intensities(request, analysis, "prefill", &Point::prefill);
  return text + "Attention's share of the time, in percent:\n\n" + share(&Point::prefill);
}

std::string memory(const RooflineRequest& request, const Analysis& analysis) {
  std::string text = fmt::format(
      "## Bytes of the KV cache (Figure 6)\n\n"
      "!: more than the {}B of memory, with the weights.\n\nfp16:\n\n",
      si(request.machine.memory));
  const auto cell = [](double bytes, bool fits) { return si(bytes, "") + (fits ? " " : "!"); };
  text += plane(request, analysis,
                [&](const Point& point) { return cell(point.kv_fp16, point.fp16_fits); });
  text +=
      fmt::format("Both planes and the ring{}:\n\n",
                  analysis.draft_weight_bytes > 0 ? "; !: with the draft's 4-bit store, too" : "");
  return text + plane(request, analysis, [&](const Point& point) {
           return cell(point.kv_both, point.quantspec_fits);
         });
}

std::string rounds(const RooflineRequest& request, const Analysis& analysis) {
  std::string text = fmt::format(
      "## Predicted steps and rounds\n\n"
      "Batch {}; times in ms. fp16, 8-bit: plain decoding of a token with that KV.\n"
      "draft: 4-bit weights, upper plane; verify: len + 1 rows, both planes. len: the\n"
      "best from 0 to {}, if alpha is accepted of a token. x16, x8: gain over both.\n\n",
      request.batches.front(), request.max_draft_len);
  std::vector<std::vector<std::string>> rows;
  for (const Rounds& at : analysis.rounds) {
    if (at.batch != request.batches.front()) continue;
    const double per_token = at.best.seconds_per_token();
    rows.push_back({std::to_string(at.context), milliseconds(at.plain_fp16),
                    milliseconds(at.plain_int8), milliseconds(at.best.draft_seconds),
                    milliseconds(at.best.verify_seconds), fmt::format("{:.3g}", at.acceptance),
                    std::to_string(at.best.draft_len), milliseconds(per_token),
                    fmt::format("{:.2f}", at.plain_fp16 / per_token),
                    fmt::format("{:.2f}", at.plain_int8 / per_token)});
  }
  return text + table({"context", "fp16", "8-bit", "draft", "verify", "alpha", "len", "token",
                       "x16", "x8"},
                      rows, {7, 5, 5, 5, 6, 5, 3, 5, 4, 4});
}

}  // namespace

std::string roofline_markdown(const RooflineRequest& request) {
  const Analysis analysis = roofline::analyze(request);
  std::string text = head(request, analysis) + table1(request, analysis) +
                     planes(request, analysis) + memory(request, analysis) +
                     rounds(request, analysis);
  text.pop_back();
  return text;
}

}  // namespace quantspec
