// What stands behind `is`.
#include <fmt/format.h>

#include <unordered_map>

#include "base/shown.h"
#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/text.h"
#include "chat/written.h"

namespace quantspec::jinja {

namespace {

using Test = bool (*)(Interpreter&, const Value&, const CallArguments&);

const Value& other(const CallArguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    refuse("a test that compares takes one argument");
  return arguments.positional[0];
}

template <Comparison comparison>
bool compares(Interpreter& in, const Value& value, const CallArguments& arguments) {
  return compare(comparison, value, other(arguments), in.memory());
}

template <Kind kind>
bool is_kind(Interpreter&, const Value& value, const CallArguments&) {
  return value.is(kind);
}

template <bool wanted>
bool is_bool(Interpreter&, const Value& value, const CallArguments&) {
  return value.is(Kind::kBool) && value.truth == wanted;
}

bool leaves(Interpreter& in, const Value& value, std::int64_t divisor, std::int64_t rest) {
  const Value left = calculate(Arithmetic::kRemainder, value, Value(divisor), in.memory());
  return equal(left, Value(rest), in.memory());
}

bool is_iterable(Interpreter&, const Value& value, const CallArguments&) {
  return value.is_items() || value.is_string() || value.is(Kind::kDict) || value.is_undefined() ||
         value.is(Kind::kLoop);
}

bool is_sequence(Interpreter&, const Value& value, const CallArguments&) {
  return value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange) ||
         value.is_string() || value.is(Kind::kDict) || value.is_undefined();
}

bool is_same(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const Value& as = other(arguments);
  if (value.kind != as.kind) return false;
  const bool is_plain = value.is_number() || value.is_string() || value.is(Kind::kNone);
  return is_plain ? equal(value, as, in.memory()) : value.bytes == as.bytes;
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> all = {
      {"defined",
       [](Interpreter&, const Value& v, const CallArguments&) { return !v.is_undefined(); }},
      {"undefined", is_kind<Kind::kUndefined>},
      {"none", is_kind<Kind::kNone>},
      {"string", is_kind<Kind::kString>},
      {"mapping", is_kind<Kind::kDict>},
      {"boolean", is_kind<Kind::kBool>},
      {"integer", is_kind<Kind::kInt>},
      {"float", is_kind<Kind::kFloat>},
      {"number", [](Interpreter&, const Value& v, const CallArguments&) { return v.is_number(); }},
      {"true", is_bool<true>},
      {"false", is_bool<false>},
      {"iterable", is_iterable},
      {"sequence", is_sequence},
      {"sameas", is_same},
      {"callable",
       [](Interpreter&, const Value& v, const CallArguments&) {
         return v.is(Kind::kCallable) || v.is(Kind::kLoop) || v.is_undefined();
       }},
      {"escaped", [](Interpreter&, const Value& v, const CallArguments&) { return v.is_markup; }},
      {"odd",
       [](Interpreter& in, const Value& v, const CallArguments&) { return leaves(in, v, 2, 1); }},
      {"even",
       [](Interpreter& in, const Value& v, const CallArguments&) { return leaves(in, v, 2, 0); }},
      {"divisibleby",
       [](Interpreter& in, const Value& v, const CallArguments& a) {
         return equal(calculate(Arithmetic::kRemainder, v, other(a), in.memory()),
                      Value(std::int64_t{0}), in.memory());
       }},
      {"lower", [](Interpreter& in, const Value& v,
                   const CallArguments&) { return *ask(written(v, in.memory()), "islower"); }},
      {"upper", [](Interpreter& in, const Value& v,
                   const CallArguments&) { return *ask(written(v, in.memory()), "isupper"); }},
      {"filter",
       [](Interpreter&, const Value& v, const CallArguments&) {
         const std::string_view name = text_of(v, "a test");
         return text_filter(name) != nullptr || list_filter(name) != nullptr;
       }},
      {"test", [](Interpreter&, const Value& v,
                  const CallArguments&) { return is_test(text_of(v, "a test")); }},
      {"in", compares<Comparison::kIn>},
      {"==", compares<Comparison::kEqual>},
      {"eq", compares<Comparison::kEqual>},
      {"equalto", compares<Comparison::kEqual>},
      {"!=", compares<Comparison::kUnequal>},
      {"ne", compares<Comparison::kUnequal>},
      {"<", compares<Comparison::kLess>},
      {"lt", compares<Comparison::kLess>},
      {"lessthan", compares<Comparison::kLess>},
      {"<=", compares<Comparison::kLessEqual>},
      {"le", compares<Comparison::kLessEqual>},
      {">", compares<Comparison::kGreater>},
      {"gt", compares<Comparison::kGreater>},
      {"greaterthan", compares<Comparison::kGreater>},
      {">=", compares<Comparison::kGreaterEqual>},
      {"ge", compares<Comparison::kGreaterEqual>},
  };
  return all;
}

}  // namespace

bool is_test(std::string_view name) { return tests().contains(name); }

bool Interpreter::tested(std::string_view name, const Value& value,
                         const CallArguments& arguments) {
  arguments.spend(memory_);
  if (value.is_string()) memory_.spend_bytes(value.size);
  const auto found = tests().find(name);
  if (found == tests().end()) unsupported(fmt::format("the test {} is not supported", shown(name)));
  return found->second(*this, value, arguments);
}

}  // namespace quantspec::jinja
