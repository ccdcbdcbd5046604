// The pieces of a report in one format each. Private to bench/.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bench/load.h"

namespace quantspec::bench {

using Json = nlohmann::ordered_json;

// Keys in the order of docs/bench.md.
Json to_json(const BenchMeta& meta, FieldNames names = plain_name);
Json to_json(const BenchRow& row);
Json to_json(const LoadMeta& meta, FieldNames names = plain_name);
Json to_json(const LoadRow& row);

// A part of those: four keys of a spread, all of a memory plan. gathered: in its peak, too; none:
// nothing could be.
void put(Json& json, const std::string& key, const Spread& spread);
void put(Json& json, const std::string& key, const std::optional<Spread>& spread);
void put(Json& json, const MemoryPlan& memory, std::optional<std::size_t> gathered = {});
Json to_json(std::span<const LeftOut> left_out, FieldNames names);
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
std::string_view name_of(SpecSampling how);

// In the formats that are data: JSON, lines of JSON, CSV.
std::string data_head(BenchFormat format, const Json& meta);
std::string data_rows(BenchFormat format, std::span<const Json> rows, bool first);

// Of any report: what was measured by what program and where.
std::string markdown_title(const char* what, const ReportHead& head);
std::string markdown_head(const BenchMeta& meta, FieldNames names = plain_name);
std::string markdown_head(const LoadMeta& meta, FieldNames names = plain_name);
// REQUIRES: rows of one context; of a load, of one number of streams as well.
std::string markdown_rows(std::span<const BenchRow> rows);
std::string markdown_rows(std::span<const LoadRow> rows);

}  // namespace quantspec::bench
