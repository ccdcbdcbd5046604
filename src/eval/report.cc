#include "eval/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"

namespace quantspec {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kColumns = 100;  // of a Markdown table
constexpr std::size_t kLeastText = 16;

struct TextOf {
  double scale = 1;

  std::string operator()(std::monostate) const { return "-"; }
  std::string operator()(bool value) const { return value ? "yes" : "no"; }
  std::string operator()(std::int64_t value) const {
    return scale == 1 ? std::to_string(value) : report_number(scale * static_cast<double>(value));
  }
  std::string operator()(double value) const { return report_number(scale * value); }
  std::string operator()(const std::string& value) const { return value; }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    return fmt::format("{}", fmt::join(values, ","));
  }
};

// Of meta.
std::string text_of(const OrderedJson& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return one_line(value.get<std::string>());
  if (value.is_number_float()) return report_number(value.get<double>());
  if (!value.is_array()) return dump_json(value);
  std::string list;
  for (const OrderedJson& one : value) list += (list.empty() ? "" : ",") + text_of(one);
  return list;
}

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

const ReportValue& value_of(const ReportRow& row, const std::string& key) {
  const auto found = std::ranges::find(row, key, &ReportRow::value_type::first);
  check(found != row.end(), "a row has the keys of its columns");
  return found->second;
}

std::string cell(const ReportRow& row, const ReportColumn& column) {
  const TextOf text{column.scale};
  const std::string first = std::visit(text, value_of(row, column.key));
  if (column.second.empty()) return first;
  const std::string second = std::visit(text, value_of(row, column.second));
  return second == "-" ? first : first + column.between + second;
}

// Characters, of which a UTF-8 sequence is one.
std::size_t width_of(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

// The end of a name says more than its beginning.
std::string shortened(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  std::size_t start = text.size(), left = width - 2;
  while (left > 0) left -= (text[--start] & 0xC0) != 0x80;
  return ".." + text.substr(start);
}

using Cells = std::vector<std::string>;

std::vector<std::size_t> widths_of(const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(line[i]));
    }
  }
  return widths;
}

// Makes the lines fit, at the cost of the first column.
void fit(std::vector<Cells>& lines) {
  const std::vector<std::size_t> widths = widths_of(lines);
  std::size_t others = 4;  // bars and spaces of the first column
  for (std::size_t i = 1; i < widths.size(); ++i) others += widths[i] + 3;
  const std::size_t most = std::max(kLeastText, kColumns - std::min(others, kColumns));
  for (Cells& line : lines) line[0] = shortened(line[0], most);
}

std::string line_of(const Cells& cells, const std::vector<std::size_t>& widths,
                    const std::vector<bool>& left) {
  std::string text;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::string padding(widths[i] - width_of(cells[i]), ' ');
    text += left[i] ? "| " + cells[i] + padding + " " : "| " + padding + cells[i] + " ";
  }
  return text + "|\n";
}

// Columns are aligned, so that the table can be read as it is.
std::string markdown_table(const ReportView& view, const std::vector<const ReportRow*>& rows) {
  std::vector<Cells> lines(1);
  std::vector<bool> left;
  for (const ReportColumn& column : view.columns) {
    lines[0].push_back(column.heading);
    left.push_back(std::holds_alternative<std::string>(value_of(*rows.front(), column.key)));
  }
  for (const ReportRow* row : rows) {
    lines.emplace_back();
    for (const ReportColumn& column : view.columns) {
      lines.back().push_back(cell(*row, column));
    }
  }
  fit(lines);
  for (Cells& line : lines) std::ranges::transform(line, line.begin(), table_cell);
  const std::vector<std::size_t> widths = widths_of(lines);
  std::string text = line_of(lines[0], widths, left);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    text += fmt::format("|{}{}", std::string(widths[i] + 1, '-'), left[i] ? "-" : ":");
  }
  text += "|\n";
  for (std::size_t n = 1; n < lines.size(); ++n) text += line_of(lines[n], widths, left);
  return text;
}

std::string markdown(const ReportTable& table, const ReportView& view, FieldNames names) {
  std::vector<const ReportRow*> rows;
  for (const ReportRow& row : table.rows) {
    const auto& [key, wanted] = view.where;
    if (key.empty() || value_of(row, key) == ReportValue(wanted)) rows.push_back(&row);
  }
  if (rows.empty()) return {};
  std::string text = fmt::format("\n{}\n\n{}", view.title.text(names), markdown_table(view, rows));
  if (!view.legend.empty()) text += fmt::format("\n{}\n", view.legend.text(names));
  return text;
}

// "key: value; key: value", in lines of kColumns.
std::string wrapped(const OrderedJson& meta) {
  std::string text, line;
  for (const auto& [key, value] : meta.items()) {
    const std::string item = fmt::format("{}: {}", key, text_of(value));
    if (!line.empty() && width_of(line) + 2 + width_of(item) > kColumns) {
      text += std::exchange(line, "") + "\n";
    }
    line += (line.empty() ? "" : "; ") + item;
  }
  return text + line + "\n";
}

}  // namespace

std::string report_number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size != 0 && size < 1e-3) return fmt::format("{:.2e}", value);
  return size < 10 ? fmt::format("{:.4f}", value) : fmt::format("{:.3f}", value);
}

bool Report::empty() const {
  return std::ranges::all_of(tables, [](const ReportTable& table) { return table.rows.empty(); });
}

std::string to_markdown(const OrderedJson& meta, const Report& report, FieldNames names) {
  std::string text = wrapped(meta);
  if (!report.complete) text += "\nINCOMPLETE: ended before everything was measured.\n";
  for (const ReportTable& table : report.tables) {
    for (const ReportView& view : table.views) text += markdown(table, view, names);
  }
  if (!report.conclusion.empty())
    text += fmt::format("\n{}\n", one_line(report.conclusion.text(names)));
  return text;
}

std::string to_json(const OrderedJson& meta, const Report& report, FieldNames names) {
  OrderedJson json = {{"meta", meta}, {"rows", OrderedJson::array()}};
  if (report.identical) {
    // What was not compared may differ.
    const bool known = report.complete || !*report.identical;
    json["meta"]["identical"] = known ? OrderedJson(*report.identical) : OrderedJson(nullptr);
  }
  json["meta"]["complete"] = report.complete;
  json["meta"]["conclusion"] =
      report.conclusion.empty() ? OrderedJson(nullptr) : OrderedJson(report.conclusion.text(names));
  for (const ReportTable& table : report.tables) {
    for (const ReportRow& row : table.rows) {
      OrderedJson entry = {{"kind", table.kind}};
      entry.update(json_of(row));
      json["rows"].push_back(std::move(entry));
    }
  }
  return dump_json(json) + "\n";
}

}  // namespace quantspec
