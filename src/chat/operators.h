// Python's operators on values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "chat/value.h"

namespace quantspec::jinja {

enum class Arithmetic : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kRemainder,
  kPower,
};
enum class Comparison : std::uint8_t {
  kEqual,
  kUnequal,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

Value calculate(Arithmetic operation, const Value& a, const Value& b, Memory& memory);
Value negated(const Value& value);
bool equal(const Value& a, const Value& b, Memory& memory);
bool compare(Comparison comparison, const Value& a, const Value& b, Memory& memory);

// The values that iterating gives: a copy. Of an iterator, what it has not given yet, which it then
// has given. Throws for what cannot be iterated over.
std::vector<Value> iterated(const Value& value, Memory& memory);
// len(); throws for what has none.
std::size_t length(const Value& value, Memory& memory);

// text % value
std::string percent_formatted(std::string_view text, const Value& value, Memory& memory);
// The characters that HTML would take for markup, replaced.
std::string escaped_markup(std::string_view text);

// The stable order of values by <, as indices.
std::vector<std::size_t> sorted_order(const std::vector<Value>& values, bool reverse,
                                      Memory& memory);

// value[index], and value[start:stop:step] with undefined for what is not said. Undefined where
// there is nothing, as Jinja has it.
Value item_of(const Value& value, const Value& index, Memory& memory);
Value slice_of(const Value& value, const Value& start, const Value& stop, const Value& step,
               Memory& memory);

}  // namespace quantspec::jinja
