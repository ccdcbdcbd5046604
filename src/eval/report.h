// Results as rows of named values, to be printed as a Markdown table or as JSON. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace quantspec {

// Nothing is null in JSON and a dash in Markdown; so is a number that is not finite.
using ReportValue = std::variant<std::monostate, std::int64_t, double, std::string>;

// In the order in which they are shown; rows of one kind have the same keys.
using ReportRow = std::vector<std::pair<std::string, ReportValue>>;

struct ReportTable {
  std::string kind;   // the value of "kind" in every JSON row
  std::string title;  // above the Markdown table
  std::vector<ReportRow> rows;
};

struct Report {
  std::vector<ReportTable> tables;
};

// meta: what was measured on what.
std::string to_markdown(const ReportRow& meta, const Report& report);
// {"meta": {...}, "rows": [{"kind": ..., ...}, ...]}, rows of all tables in order.
std::string to_json(const ReportRow& meta, const Report& report);

}  // namespace quantspec
