#include <fmt/format.h>

#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/written.h"

namespace quantspec::jinja {

Value Interpreter::evaluate(const Expr& expr, const Scope& scope) {
  const Descent descent(frames_, kMaxFrames, "calls and expressions are nested");
  memory_.spend();
  switch (expr.type) {
    case ExprType::kConstant:
      return expr.constant;
    case ExprType::kNothing:
      return {};
    case ExprType::kName:
    case ExprType::kNamespaceAttribute:
      line_ = expr.line;
      return variable(expr, scope);
    case ExprType::kList:
    case ExprType::kTuple:
    case ExprType::kDict:
      return evaluate_display(expr, scope);
    case ExprType::kAttribute:
    case ExprType::kItem:
    case ExprType::kSlice:
    case ExprType::kCall:
      return evaluate_postfix(expr, scope);
    case ExprType::kFilter:
      return evaluate_filter(expr, evaluate(expr.parts[0], scope), scope);
    case ExprType::kTest: {
      const Value value = evaluate(expr.parts[0], scope);
      const CallArguments arguments = evaluate_arguments(*expr.arguments, scope);
      line_ = expr.line;
      return Value(tested(expr.text, value, arguments));
    }
    case ExprType::kNot:
    case ExprType::kAnd:
    case ExprType::kOr:
    case ExprType::kIf:
      return evaluate_logic(expr, scope);
    case ExprType::kNegative:
    case ExprType::kPositive:
    case ExprType::kCompare:
    case ExprType::kArithmetic:
      return evaluate_operators(expr, scope);
    case ExprType::kConcat:
      return evaluate_concat(expr, scope);
  }
  return {};
}

Value Interpreter::variable(const Expr& name, const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->outer) {
    memory_.spend(at->variables.size() / 16);
    for (const auto& [symbol, value] : at->variables) {
      if (symbol == name.symbol) return value;
    }
  }
  if (const std::optional<Value>& value = variables_[name.symbol]) return *value;
  return memory_.undefined(fmt::format("'{}' is undefined", shape_.names[name.symbol]));
}

Value Interpreter::evaluate_display(const Expr& expr, const Scope& scope) {
  if (expr.type == ExprType::kDict) {
    Dict& dict = memory_.dict();
    for (std::size_t i = 0; i + 1 < expr.parts.size(); i += 2) {
      const Value key = evaluate(expr.parts[i], scope);
      dict.set(key, evaluate(expr.parts[i + 1], scope), memory_);
    }
    return Value(dict);
  }
  std::vector<Value> items;
  for (const Expr& part : expr.parts) items.push_back(evaluate(part, scope));
  return memory_.list(expr.type == ExprType::kList ? Kind::kList : Kind::kTuple, std::move(items));
}

Value Interpreter::evaluate_logic(const Expr& expr, const Scope& scope) {
  if (expr.type == ExprType::kNot) return Value(!truth(evaluate(expr.parts[0], scope)));
  if (expr.type == ExprType::kIf) {
    if (truth(evaluate(expr.parts[1], scope))) return evaluate(expr.parts[0], scope);
    if (expr.parts[2].type != ExprType::kNothing) return evaluate(expr.parts[2], scope);
    return Value::undefined("an inline if is false and has no else");
  }
  Value value;
  for (const Expr& part : expr.parts) {
    value = evaluate(part, scope);
    if (truth(value) == (expr.type == ExprType::kOr)) break;
  }
  return value;
}

Value Interpreter::evaluate_operators(const Expr& expr, const Scope& scope) {
  Value value = evaluate(expr.parts[0], scope);
  if (expr.type == ExprType::kNegative) return negated(value);
  if (expr.type == ExprType::kPositive) return negated(negated(value));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    const Value right = evaluate(expr.parts[i + 1], scope);
    line_ = expr.line;
    if (expr.type == ExprType::kArithmetic) {
      value = calculate(static_cast<Arithmetic>(expr.operators[i]), value, right, memory_);
    } else {
      if (!compare(static_cast<Comparison>(expr.operators[i]), value, right, memory_))
        return Value(false);
      value = right;
    }
  }
  return expr.type == ExprType::kCompare ? Value(true) : value;
}

Value Interpreter::evaluate_concat(const Expr& expr, const Scope& scope) {
  std::string out;
  for (const Expr& part : expr.parts) {
    const Value value = evaluate(part, scope);
    if (value.is_string()) {
      out += value.text();
    } else {
      out += written(value, memory_);
    }
    if (out.size() > kMaxOutput)
      refuse(fmt::format("makes a text of more than {} bytes", kMaxOutput));
  }
  return memory_.text(std::move(out));
}

Value Interpreter::evaluate_postfix(const Expr& expr, const Scope& scope) {
  const Value value = evaluate(expr.parts[0], scope);
  switch (expr.type) {
    case ExprType::kAttribute:
      line_ = expr.line;
      return attribute(value, expr.text);
    case ExprType::kItem: {
      const Value index = evaluate(expr.parts[1], scope);
      line_ = expr.line;
      return item(value, index);
    }
    case ExprType::kSlice: {
      const Value start = evaluate(expr.parts[1], scope);
      const Value stop = evaluate(expr.parts[2], scope);
      const Value step = evaluate(expr.parts[3], scope);
      line_ = expr.line;
      return slice_of(value, start, stop, step, memory_);
    }
    default: {
      const CallArguments arguments = evaluate_arguments(*expr.arguments, scope);
      line_ = expr.line;
      return called(value, arguments);
    }
  }
}

Value Interpreter::evaluate_filter(const Expr& expr, const Value& value, const Scope& scope) {
  const CallArguments arguments = evaluate_arguments(*expr.arguments, scope);
  line_ = expr.line;
  return filtered(expr.text, value, arguments);
}

CallArguments Interpreter::evaluate_arguments(const Arguments& arguments, const Scope& scope) {
  CallArguments all;
  for (const Expr& expr : arguments.positional) all.positional.push_back(evaluate(expr, scope));
  for (const auto& [name, expr] : arguments.named)
    all.named.emplace_back(name, evaluate(expr, scope));
  if (arguments.list.type != ExprType::kNothing) {
    for (const Value& value : iterated(evaluate(arguments.list, scope), memory_))
      all.positional.push_back(value);
  }
  if (arguments.map.type != ExprType::kNothing) {
    const Value map = evaluate(arguments.map, scope);
    if (!map.is(Kind::kDict)) refuse("argument after ** must be a mapping");
    memory_.spend(map.dict->entries.size());
    for (const auto& [key, value] : map.dict->entries) {
      if (!key.is_string()) refuse("keywords must be strings");
      all.named.emplace_back(key.text(), value);
    }
  }
  return all;
}

// ---- Attributes ----

Value Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (value.is(Kind::kNamespace)) {
    memory_.spend(value.space->attributes.size() / 16);
    for (const auto& [known, found] : value.space->attributes) {
      if (known == name) return found;
    }
  } else if (value.is(Kind::kLoop)) {
    if (const std::optional<Value> found = value.loop->attribute(name)) return *found;
  } else if (value.is(Kind::kTuple) && value.list->name == kGroup) {
    if (name == "grouper") return value.list->items[0];
    if (name == "list") return value.list->items[1];
  } else if (value.is(Kind::kCallable) && value.callable->macro != nullptr && name == "name") {
    return Value(value.callable->macro->name);
  }
  switch (method_kind(value, name)) {
    case MethodKind::kThere:
      return method(value, name);
    case MethodKind::kRefused:
      return denied(value, name);
    case MethodKind::kNone:
      break;
  }
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.dict->find(Value(name), memory_)) return *found;
  }
  return memory_.undefined(fmt::format("'{}' has no attribute '{}'", type_name(value), name));
}

Value Interpreter::denied(const Value& value, std::string_view name) {
  Value method = memory_.undefined(
      fmt::format("'{}' of a {} changes it, which a template may not", name, type_name(value)));
  method.is_denied = true;
  return method;
}

Value Interpreter::item(const Value& value, const Value& index) {
  const Value found = item_of(value, index, memory_);
  // As Jinja: what is no element may be an attribute.
  if (!found.is_undefined() || !index.is_string()) return found;
  if (value.is(Kind::kDict) && value.dict->find(index, memory_) != nullptr) return found;
  return attribute(value, index.text());
}

Value Interpreter::method(const Value& value, std::string_view name) {
  Callable callable;
  callable.name = name;
  callable.self = value;
  return Value(memory_.make(callables_, callable));
}

}  // namespace quantspec::jinja
