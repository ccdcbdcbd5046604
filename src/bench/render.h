// The pieces of a report in one format each. Private to bench/.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "bench/bench.h"

namespace quantspec::bench {

// Keys in the order of docs/bench.md.
nlohmann::ordered_json to_json(const BenchMeta& meta, FieldNames names = plain_name);
nlohmann::ordered_json to_json(const BenchRow& row);

std::string markdown_head(const BenchMeta& meta, FieldNames names = plain_name);
// REQUIRES: rows of one context.
std::string markdown_rows(std::span<const BenchRow> rows);

}  // namespace quantspec::bench
