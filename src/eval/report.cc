#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace quantspec {

namespace {

using OrderedJson = nlohmann::ordered_json;

// Enough digits to tell values apart, few enough to read: KL goes down to 1e-7.
std::string number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size != 0 && size < 1e-3) return fmt::format("{:.2e}", value);
  return size < 10 ? fmt::format("{:.4f}", value) : fmt::format("{:.3f}", value);
}

struct TextOf {
  std::string operator()(std::monostate) const { return "-"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const {
    std::string text;
    for (const char c : value) text += c == '|' ? std::string("\\|") : std::string(1, c);
    return text;
  }
};

struct JsonOf {
  OrderedJson operator()(std::monostate) const { return nullptr; }
  OrderedJson operator()(double value) const {
    return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
  }
  template <typename T>
  OrderedJson operator()(const T& value) const {
    return value;
  }
};

OrderedJson json_of(const ReportRow& row) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [key, value] : row) json[key] = std::visit(JsonOf{}, value);
  return json;
}

// A Markdown table whose columns are aligned, so that it can be read as it is.
std::string markdown_table(const std::vector<ReportRow>& rows) {
  std::vector<std::vector<std::string>> cells(1);
  for (const auto& [key, value] : rows.front()) cells[0].push_back(key);
  for (const ReportRow& row : rows) {
    cells.emplace_back();
    for (const auto& [key, value] : row) cells.back().push_back(std::visit(TextOf{}, value));
  }
  std::vector<std::size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (std::size_t n = 0; n < cells.size(); ++n) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const bool left = std::holds_alternative<std::string>(rows.front()[i].second);
      text += left ? fmt::format("| {:<{}} ", cells[n][i], widths[i])
                   : fmt::format("| {:>{}} ", cells[n][i], widths[i]);
    }
    text += "|\n";
    if (n > 0) continue;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const bool left = std::holds_alternative<std::string>(rows.front()[i].second);
      text += fmt::format("|{}{}", std::string(widths[i] + 1, '-'), left ? "-" : ":");
    }
    text += "|\n";
  }
  return text;
}

}  // namespace

std::string to_markdown(const ReportRow& meta, const Report& report) {
  std::string text;
  for (const auto& [key, value] : meta) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", key, std::visit(TextOf{}, value));
  }
  text += "\n";
  for (const ReportTable& table : report.tables) {
    if (table.rows.empty()) continue;
    text += fmt::format("\n{}\n\n{}", table.title, markdown_table(table.rows));
  }
  return text;
}

std::string to_json(const ReportRow& meta, const Report& report) {
  OrderedJson json = {{"meta", json_of(meta)}, {"rows", OrderedJson::array()}};
  for (const ReportTable& table : report.tables) {
    for (const ReportRow& row : table.rows) {
      OrderedJson entry = {{"kind", table.kind}};
      entry.update(json_of(row));
      json["rows"].push_back(std::move(entry));
    }
  }
  return json.dump() + "\n";
}

}  // namespace quantspec
