// Results as rows of named values, to be printed as Markdown tables for people or as JSON for
// programs. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/message.h"

namespace quantspec {

// Nothing is null in JSON and a dash in Markdown; so is a number that is not finite.
using ReportValue = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                                 std::vector<std::int64_t>, std::vector<double>>;

// Rows of one kind have the same keys.
using ReportRow = std::vector<std::pair<std::string, ReportValue>>;

// A column of a Markdown table: a value of each row or, with `second`, two of them: "a ± b".
struct ReportColumn {
  std::string heading;  // short, with the unit
  std::string key;
  std::string second = {};
  std::string between = " ± ";
  double scale = 1;  // numbers are shown times this
};

// A Markdown table: some of the columns of all rows, or of those whose `where` has a value.
struct ReportView {
  Message title;
  std::vector<ReportColumn> columns;
  Message legend;  // one line under the table; empty: none
  std::pair<std::string, std::string> where = {};
};

struct ReportTable {
  std::string kind;  // the value of "kind" in every JSON row
  std::vector<ReportView> views;
  std::vector<ReportRow> rows;
};

struct Report {
  std::vector<ReportTable> tables;
  Message conclusion = {};             // in words; empty: none
  std::optional<bool> identical = {};  // of measurements that compare texts: no row differs
  bool complete = true;                // false: ended before everything was measured

  bool empty() const;  // no rows
};

// As people are shown it: enough digits to tell values apart, few enough to read (KL goes down to
// 1e-7). A dash for what is not finite.
std::string report_number(double value);

// meta: what was measured on what, an object of plain values and lists of them. At most 100 columns
// wide, but for values of meta that are longer; the first column of a table is cut at its beginning
// where need be. `names`: how the text calls what can be set.
std::string to_markdown(const nlohmann::ordered_json& meta, const Report& report,
                        FieldNames names = plain_name);
// {"meta": {..., "complete": ..., "conclusion": ...}, "rows": [{"kind": ..., ...}, ...]}, rows of
// all tables in order.
std::string to_json(const nlohmann::ordered_json& meta, const Report& report,
                    FieldNames names = plain_name);

}  // namespace quantspec
