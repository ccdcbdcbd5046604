#include <fmt/format.h>

#include <algorithm>

#include "base/shown.h"
#include "chat/interpreter.h"

namespace quantspec::jinja {

std::vector<std::optional<Value>> CallArguments::bind(
    std::string_view function, std::initializer_list<std::string_view> parameters) const {
  if (positional.size() > parameters.size()) {
    refuse(fmt::format("{} takes up to {} arguments, got {}", function, parameters.size(),
                       positional.size()));
  }
  std::vector<std::optional<Value>> bound(parameters.size());
  std::copy(positional.begin(), positional.end(), bound.begin());
  for (const auto& [name, value] : named) {
    const auto* at = std::find(parameters.begin(), parameters.end(), name);
    if (at == parameters.end())
      refuse(fmt::format("{} takes no argument {}", function, shown(name)));
    std::optional<Value>& place = bound[static_cast<std::size_t>(at - parameters.begin())];
    if (place) refuse(fmt::format("{} got two values for {}", function, shown(name)));
    place = value;
  }
  return bound;
}

void CallArguments::spend(Memory& memory) const {
  memory.spend(1 + (positional.size() + named.size()) / 16);
  for (const Value& value : positional) {
    if (value.is_string()) memory.spend_bytes(value.size);
  }
  for (const auto& [name, value] : named) {
    if (value.is_string()) memory.spend_bytes(value.size);
  }
}

Value Interpreter::called(const Value& function, const CallArguments& arguments) {
  arguments.spend(memory_);
  if (function.is(Kind::kLoop)) return recurse(*function.loop, arguments);
  if (function.is_denied) unsupported(std::string(function.text()));
  if (function.is_undefined()) refuse(std::string(function.text()));
  if (!function.is(Kind::kCallable))
    refuse(fmt::format("'{}' object is not callable", type_name(function)));
  const Callable& callable = *function.callable;
  if (callable.macro != nullptr) return call_macro(callable, arguments);
  if (callable.function != nullptr) return callable.function(*this, arguments);
  return call_method(*this, callable.self, callable.name, arguments);
}

Value Interpreter::call_macro(const Callable& callable, const CallArguments& arguments) {
  const Descent descent(calls_, kMaxDepth, "macros call each other");
  const MacroShape& macro = *callable.macro;
  Scope& scope = inner(*callable.scope);
  bind_macro(macro, arguments, scope);
  return captured(macro.body, scope);
}

void Interpreter::bind_macro(const MacroShape& macro, const CallArguments& arguments,
                             Scope& scope) {
  const std::size_t num = macro.parameters.size();
  const std::size_t num_required = num - macro.defaults.size();
  std::size_t num_named = 0;
  for (std::size_t i = 0; i < num; ++i) {
    const auto& [name, symbol] = macro.parameters[i];
    if (i < arguments.positional.size()) {
      define(scope, symbol, arguments.positional[i]);
      continue;
    }
    memory_.spend(arguments.named.size() / 16);
    const auto given = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& one) { return one.first == name; });
    if (given != arguments.named.end()) {
      define(scope, symbol, given->second);
      ++num_named;
    } else if (i >= num_required) {
      define(scope, symbol, evaluate(macro.defaults[i - num_required], scope));
    } else {
      define(scope, symbol,
             memory_.undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  bind_rest(macro, arguments, num_named, scope);
}

// What a macro was given beyond its parameters.
void Interpreter::bind_rest(const MacroShape& macro, const CallArguments& arguments,
                            std::size_t num_named, Scope& scope) {
  const std::size_t num = macro.parameters.size();
  const auto is_parameter = [&](std::string_view name) {
    return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                       [&](const auto& one) { return one.first == name; });
  };
  std::optional<Value> caller;
  Dict& rest = memory_.dict();
  if (num_named < arguments.named.size()) {
    memory_.spend(num * arguments.named.size() / 16);
    for (const auto& [name, value] : arguments.named) {
      if (is_parameter(name)) continue;
      if (name == "caller" && macro.takes_caller) {
        caller = value;
      } else if (macro.takes_map) {
        rest.set(Value(name), value, memory_);
      } else {
        refuse(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, name));
      }
    }
  }
  if (arguments.positional.size() > num && !macro.takes_list)
    refuse(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, num));
  if (macro.takes_list) {
    std::vector<Value> more;
    if (arguments.positional.size() > num)
      more.assign(arguments.positional.begin() + std::ptrdiff_t(num), arguments.positional.end());
    define(scope, shape_.varargs, memory_.list(Kind::kTuple, std::move(more)));
  }
  if (macro.takes_map) define(scope, shape_.kwargs, Value(rest));
  if (macro.takes_caller && !is_parameter("caller"))
    define(scope, shape_.caller, caller.value_or(Value::undefined("No caller defined")));
}

Value Interpreter::recurse(Loop& loop, const CallArguments& arguments) {
  if (!loop.stmt.recursive)
    refuse("The loop must have the 'recursive' marker to be called recursively.");
  const Descent descent(calls_, kMaxDepth, "loops call themselves");
  const Value over = arguments.bind("loop", {"iterable"})[0].value_or(Value::undefined(""));
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  execute_for(loop.stmt, loop.scope, over, loop.depth + 1);
  out_ = before;
  return memory_.text(std::move(text));
}

}  // namespace quantspec::jinja
