#include "bench/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quantspec::bench {

namespace {

constexpr std::size_t kColumns = 100;

// The end of a name that is too long says more than its beginning.
std::string shortened(const std::string& name, std::size_t width) {
  return name.size() <= width ? name : ".." + name.substr(name.size() - (width - 2));
}

}  // namespace

std::string number(double value) {
  if (std::isnan(value)) return "-";
  if (value < 5e-4) return "0";
  return fmt::format("{:.{}f}", value, value < 1 ? 3 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string megabytes(std::size_t bytes) { return number(static_cast<double>(bytes) / 1e6); }

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

}  // namespace quantspec::bench
