#include "gguf/types.h"

#include <fmt/format.h>

#include <string_view>

namespace quantspec {

namespace {

struct Row {
  std::uint32_t id;
  std::string_view name;
  BlockSize size;
  bool supported;
};
constexpr Row kTypes[] = {
    {0, "F32", {1, 4}, true},          {1, "F16", {1, 2}, true},
    {30, "BF16", {1, 2}, true},        {8, "Q8_0", {32, 34}, true},
    {2, "Q4_0", {32, 18}, true},       {3, "Q4_1", {32, 20}, true},
    {6, "Q5_0", {32, 22}, true},       {7, "Q5_1", {32, 24}, true},
    {10, "Q2_K", {256, 84}, true},     {11, "Q3_K", {256, 110}, true},
    {12, "Q4_K", {256, 144}, true},    {13, "Q5_K", {256, 176}, true},
    {14, "Q6_K", {256, 210}, true},    {20, "IQ4_NL", {32, 18}, true},
    {23, "IQ4_XS", {256, 136}, true},  {39, "MXFP4", {32, 17}, true},
    {16, "IQ2_XXS", {256, 66}, false}, {17, "IQ2_XS", {256, 74}, false},
    {22, "IQ2_S", {256, 82}, false},   {18, "IQ3_XXS", {256, 98}, false},
    {21, "IQ3_S", {256, 110}, false},  {19, "IQ1_S", {256, 50}, false},
    {29, "IQ1_M", {256, 56}, false},   {34, "TQ1_0", {256, 54}, false},
    {35, "TQ2_0", {256, 66}, false},   {40, "NVFP4", {64, 36}, false},
    {41, "Q1_0", {128, 18}, false},    {24, "I8", {1, 1}, false},
    {25, "I16", {1, 2}, false},        {26, "I32", {1, 4}, false},
    {27, "I64", {1, 8}, false},        {28, "F64", {1, 8}, false},
};

const Row* find(GgmlType type) {
  for (const Row& row : kTypes) {
    if (row.id == static_cast<std::uint32_t>(type)) return &row;
  }
  return nullptr;
}

}  // namespace

std::optional<BlockSize> block_size(GgmlType type) {
  const Row* row = find(type);
  if (row == nullptr) return std::nullopt;
  return row->size;
}

std::string name_of(GgmlType type) {
  const Row* row = find(type);
  if (row == nullptr) return fmt::format("type {}", static_cast<std::uint32_t>(type));
  return std::string(row->name);
}

std::string supported_types() {
  std::string names;
  for (const Row& row : kTypes) {
    if (row.supported) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  return names;
}

bool is_supported(GgmlType type) {
  const Row* row = find(type);
  return row != nullptr && row->supported;
}

}  // namespace quantspec
