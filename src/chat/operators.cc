#include "chat/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/text.h"
#include "chat/written.h"

namespace quantspec::jinja {

namespace {

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void refuse_types(const char* sign, const Value& a, const Value& b) {
  for (const Value& value : {a, b}) {
    if (value.is_undefined()) refuse(std::string(value.text()));
  }
  refuse(fmt::format("unsupported operand types for {}: '{}' and '{}'", sign, type_name(a),
                     type_name(b)));
}

[[noreturn]] void refuse_overflow() { refuse("an integer of more than 64 bits"); }

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) refuse("division by zero");
  if (b == -1) {
    if (a == std::numeric_limits<std::int64_t>::min()) refuse_overflow();
    return -a;
  }
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

std::int64_t floor_remainder(std::int64_t a, std::int64_t b) {
  if (b == 0) refuse("division by zero");
  if (b == -1) return 0;  // which a % b is not, of the least a
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) refuse("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value(exponent == 0 ? std::int64_t{1} : base);
  if (base == -1) return Value(std::int64_t{exponent % 2 == 0 ? 1 : -1});
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {  // 63 times at most, or it overflows
    if (__builtin_mul_overflow(result, base, &result)) refuse_overflow();
  }
  return Value(result);
}

Value calculate_integers(Arithmetic operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  switch (operation) {
    case Arithmetic::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case Arithmetic::kSubtract:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case Arithmetic::kMultiply:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case Arithmetic::kDivide:
      if (b == 0) refuse("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Arithmetic::kFloorDivide:
      return Value(floor_divide(a, b));
    case Arithmetic::kRemainder:
      return Value(floor_remainder(a, b));
    case Arithmetic::kPower:
      return power(a, b);
  }
  if (overflows) refuse_overflow();
  return Value(result);
}

double remainder_of(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

Value calculate_reals(Arithmetic operation, double a, double b) {
  if (b == 0 && operation >= Arithmetic::kDivide && operation != Arithmetic::kPower)
    refuse("division by zero");
  switch (operation) {
    case Arithmetic::kAdd:
      return Value(a + b);
    case Arithmetic::kSubtract:
      return Value(a - b);
    case Arithmetic::kMultiply:
      return Value(a * b);
    case Arithmetic::kDivide:
      return Value(a / b);
    case Arithmetic::kFloorDivide:
      return Value(std::floor((a - remainder_of(a, b)) / b + 0.5));
    case Arithmetic::kRemainder:
      return Value(remainder_of(a, b));
    case Arithmetic::kPower:
      break;
  }
  const double result = std::pow(a, b);
  if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) refuse("a complex number");
  return Value(result);
}

Value repeated(const Value& value, std::int64_t times, Memory& memory) {
  if (times < 0) times = 0;
  const std::size_t size = value.is_string() ? value.size : value.list->items.size();
  const std::size_t most = value.is_string() ? kMaxOutput : kMaxSteps;
  if (size > 0 && static_cast<std::uint64_t>(times) > most / size) {
    refuse(fmt::format("* makes more than {} {}", most, value.is_string() ? "bytes" : "elements"));
  }
  if (value.is_string()) {
    std::string out;
    for (; times > 0 && size > 0; --times) out += value.text();
    return memory.text(std::move(out));
  }
  memory.spend(size * static_cast<std::size_t>(times));
  std::vector<Value> items;
  for (; times > 0 && size > 0; --times)
    items.insert(items.end(), value.list->items.begin(), value.list->items.end());
  return memory.list(value.kind, std::move(items));
}

Value added_texts(const Value& a, const Value& b, Memory& memory) {
  if (a.is_markup == b.is_markup) {
    Value sum = memory.text(std::string(a.text()).append(b.text()));
    sum.is_markup = a.is_markup;
    return sum;
  }
  std::string out = a.is_markup ? std::string(a.text()) : escaped_markup(a.text());
  out += b.is_markup ? std::string(b.text()) : escaped_markup(b.text());
  Value sum = memory.text(std::move(out));
  sum.is_markup = true;
  return sum;
}

bool can_repeat(const Value& value) {
  return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple);
}

class Comparer {
 public:
  explicit Comparer(Memory& memory) : memory_(memory) {}

  bool equal(const Value& a, const Value& b) {
    memory_.spend();
    if (a.is_number() && b.is_number()) return compared_numbers(a, b) == 0;
    if (a.is_string() && b.is_string()) {
      memory_.spend_bytes(std::min(a.size, b.size));
      return a.text() == b.text();
    }
    if (a.kind != b.kind) return false;
    const Descent descent(depth_, kMaxDepth, "values are nested");
    switch (a.kind) {
      case Kind::kNone:
      case Kind::kUndefined:
        return true;
      case Kind::kList:
      case Kind::kTuple:
      case Kind::kRange:
      case Kind::kView:
        return a.list->items.size() == b.list->items.size() &&
               first_unequal(a, b) == a.list->items.size();
      case Kind::kDict:
        return equal_dicts(*a.dict, *b.dict);
      case Kind::kCallable:
        return a.callable == b.callable;
      default:
        return a.bytes == b.bytes;
    }
  }

  // <0, 0, 1; unordered (NaN): 2.
  int order(const Value& a, const Value& b, const char* sign) {
    memory_.spend();
    if (a.is_number() && b.is_number()) return as_int(compared_numbers(a, b));
    if (a.is_string() && b.is_string()) {
      memory_.spend_bytes(std::min(a.size, b.size));
      const int order = a.text().compare(b.text());
      return order < 0 ? -1 : int(order > 0);
    }
    if (a.kind != b.kind || (!a.is(Kind::kList) && !a.is(Kind::kTuple))) refuse_types(sign, a, b);
    const Descent descent(depth_, kMaxDepth, "values are nested");
    const auto &x = a.list->items, &y = b.list->items;
    const std::size_t at = first_unequal(a, b);
    if (at < std::min(x.size(), y.size())) return order(x[at], y[at], sign);
    return x.size() < y.size() ? -1 : int(x.size() > y.size());
  }

 private:
  static int as_int(std::partial_ordering order) {
    if (order == std::partial_ordering::unordered) return 2;
    return order < 0 ? -1 : int(order > 0);
  }
  std::size_t first_unequal(const Value& a, const Value& b) {
    const auto &x = a.list->items, &y = b.list->items;
    std::size_t i = 0;
    while (i < std::min(x.size(), y.size()) && equal(x[i], y[i])) ++i;
    return i;
  }
  bool equal_dicts(const Dict& a, const Dict& b) {
    if (a.entries.size() != b.entries.size()) return false;
    for (const auto& [key, value] : a.entries) {
      const Value* other = b.find(key, memory_);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }

  Memory& memory_;
  std::size_t depth_ = 0;
};

bool contains(const Value& container, const Value& value, Memory& memory) {
  if (container.is_string()) {
    if (!value.is_string()) {
      refuse(
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(value)));
    }
    memory.spend_bytes(container.size);
    return find(container.text(), value.text()) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) return container.dict->find(value, memory) != nullptr;
  for (const Value& item : iterated(container, memory)) {
    if (equal(item, value, memory)) return true;
  }
  return false;
}

}  // namespace

Value calculate(Arithmetic operation, const Value& a, const Value& b, Memory& memory) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer())
      return calculate_integers(operation, a.as_int(), b.as_int());
    return calculate_reals(operation, a.as_float(), b.as_float());
  }
  if (operation == Arithmetic::kAdd && a.is_string() && b.is_string())
    return added_texts(a, b, memory);
  if (operation == Arithmetic::kAdd && a.kind == b.kind &&
      (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    memory.spend(a.list->items.size());
    std::vector<Value> items = a.list->items;
    items.insert(items.end(), b.list->items.begin(), b.list->items.end());
    return memory.list(a.kind, std::move(items));
  }
  if (operation == Arithmetic::kMultiply) {
    if (can_repeat(a) && b.is_integer()) return repeated(a, b.as_int(), memory);
    if (can_repeat(b) && a.is_integer()) return repeated(b, a.as_int(), memory);
  }
  if (operation == Arithmetic::kRemainder && a.is_string())
    return memory.text(percent_formatted(a.text(), b, memory));
  refuse_types(kSigns[static_cast<int>(operation)], a, b);
}

Value negated(const Value& value) {
  if (value.is(Kind::kFloat)) return Value(-value.real);
  if (value.is_integer()) {
    if (value.as_int() == std::numeric_limits<std::int64_t>::min()) refuse_overflow();
    return Value(-value.as_int());
  }
  if (value.is_undefined()) refuse(std::string(value.text()));
  refuse(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

bool equal(const Value& a, const Value& b, Memory& memory) { return Comparer(memory).equal(a, b); }

bool compare(Comparison comparison, const Value& a, const Value& b, Memory& memory) {
  Comparer comparer(memory);
  const auto order = [&](const char* sign) { return comparer.order(a, b, sign); };
  int result = 0;
  switch (comparison) {
    case Comparison::kEqual:
      return comparer.equal(a, b);
    case Comparison::kUnequal:
      return !comparer.equal(a, b);
    case Comparison::kLess:
      return order("<") < 0;
    case Comparison::kLessEqual:
      return order("<=") <= 0;
    case Comparison::kGreater:
      return order(">") == 1;
    case Comparison::kGreaterEqual:
      result = order(">=");
      return result == 0 || result == 1;
    case Comparison::kIn:
      return contains(b, a, memory);
    case Comparison::kNotIn:
      return !contains(b, a, memory);
  }
  return false;
}

std::string escaped_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&#34;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

// NOTE: std::sort may go astray where < is no order, as with NaN.
std::vector<std::size_t> sorted_order(const std::vector<Value>& values, bool reverse,
                                      Memory& memory) {
  std::vector<std::size_t> order(values.size()), merged(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // As Python's reverse=True keeps what is equal in order.
  const auto before = [&](std::size_t a, std::size_t b) {
    return reverse ? compare(Comparison::kLess, values[b], values[a], memory)
                   : compare(Comparison::kLess, values[a], values[b], memory);
  };
  for (std::size_t width = 1; width < order.size(); width *= 2) {
    for (std::size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, order.size());
      const std::size_t end = std::min(begin + 2 * width, order.size());
      std::size_t left = begin, right = middle;
      for (std::size_t at = begin; at < end; ++at) {
        const bool from_right =
            right < end && (left == middle || before(order[right], order[left]));
        merged[at] = from_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  return order;
}

}  // namespace quantspec::jinja
