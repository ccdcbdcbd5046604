#include <fmt/format.h>

#include "chat/interpreter.h"
#include "chat/written.h"

namespace quantspec::jinja {

Interpreter::Interpreter(const Template& shape, Memory& memory, const std::tm& now)
    : shape_(shape), memory_(memory), now_(now) {}

std::string Interpreter::run(std::vector<std::optional<Value>> variables) {
  variables_ = std::move(variables);
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (variables_[i]) continue;
    const std::string_view name = shape_.names[i];
    if (const Callable::Function function = global_function(name))
      variables_[i] = Value(memory_.make(callables_, Callable{name, function}));
  }
  Scope& scope = memory_.make(scopes_, nullptr);
  std::string out;
  out_ = &out;
  execute(shape_.body, scope);
  return out;
}

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope) {
  for (const Stmt& stmt : body) {
    const Flow flow = execute(stmt, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt, Scope& scope) {
  const Descent descent(frames_, kMaxFrames, "calls and blocks are nested");
  memory_.spend();
  line_ = stmt.line;
  switch (stmt.type) {
    case StmtType::kText:
      append(stmt.text);
      break;
    case StmtType::kPrint:
      for (const Expr& expr : stmt.exprs) print(evaluate(expr, scope));
      break;
    case StmtType::kIf:
      return execute_if(stmt, scope);
    case StmtType::kFor:
      return execute_for(stmt, scope, evaluate(stmt.exprs[1], scope), 0);
    case StmtType::kSet: {
      const Value value = evaluate(stmt.exprs[1], scope);
      assign(value, stmt.exprs[0], scope);
      break;
    }
    case StmtType::kSetBlock: {
      const Value text = captured(stmt.bodies[0], inner(scope));
      assign(with_filters(stmt.exprs[1], text, scope), stmt.exprs[0], scope);
      break;
    }
    case StmtType::kMacro:
      define(scope, stmt.macro->symbol,
             Value(memory_.make(callables_,
                                Callable{stmt.macro->name, nullptr, stmt.macro.get(), &scope})));
      break;
    case StmtType::kCall:
      execute_call(stmt, scope);
      break;
    case StmtType::kFilter:
      print(with_filters(stmt.exprs[0], captured(stmt.bodies[0], inner(scope)), scope));
      break;
    case StmtType::kWith:
      return execute_with(stmt, scope);
    case StmtType::kBreak:
      return Flow::kBreak;
    case StmtType::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Stmt& stmt, Scope& scope) {
  for (std::size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (truth(evaluate(stmt.exprs[i], scope))) return execute(stmt.bodies[i], scope);
  }
  if (stmt.bodies.size() == stmt.exprs.size()) return Flow::kNext;
  return execute(stmt.bodies.back(), scope);
}

Interpreter::Flow Interpreter::execute_with(const Stmt& stmt, Scope& scope) {
  Scope& within = inner(scope);
  std::vector<Value> values;
  for (std::size_t i = 1; i < stmt.exprs.size(); i += 2)
    values.push_back(evaluate(stmt.exprs[i], scope));
  for (std::size_t i = 0; i < values.size(); ++i) assign(values[i], stmt.exprs[2 * i], within);
  return execute(stmt.bodies[0], within);
}

Interpreter::Flow Interpreter::execute_for(const Stmt& stmt, const Scope& scope, const Value& over,
                                           std::size_t depth) {
  Loop& loop = memory_.make(loops_, *this, stmt, scope, over, depth);
  bool any = false;  // turns that went to their end, as jinja2 counts
  while (const std::optional<Value> item = loop.advance()) {
    Scope& turn = inner(scope);
    assign(*item, stmt.exprs[0], turn);
    define(turn, shape_.loop, Value(loop));
    const Flow flow = execute(stmt.bodies[0], turn);
    if (flow == Flow::kBreak) break;
    any |= flow == Flow::kNext;
  }
  return any ? Flow::kNext : execute(stmt.bodies[1], inner(scope));
}

void Interpreter::execute_call(const Stmt& stmt, Scope& scope) {
  const Expr& call = stmt.exprs[0];
  const Value function = evaluate(call.parts[0], scope);
  CallArguments arguments = evaluate_arguments(*call.arguments, scope);
  const Value caller(
      memory_.make(callables_, Callable{"caller", nullptr, stmt.macro.get(), &scope}));
  arguments.named.emplace_back("caller", caller);
  print(called(function, arguments));
}

void Interpreter::assign(const Value& value, const Expr& target, Scope& scope) {
  memory_.spend();
  if (target.type == ExprType::kNamespaceAttribute) {
    set_attribute(target, value, scope);
  } else if (target.type == ExprType::kName) {
    define(scope, target.symbol, value);
  } else {
    const std::vector<Value> items = iterated(value, memory_);
    if (items.size() != target.parts.size()) {
      refuse(
          fmt::format("cannot unpack {} values into {} names", items.size(), target.parts.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(items[i], target.parts[i], scope);
  }
}

void Interpreter::set_attribute(const Expr& target, const Value& value, const Scope& scope) {
  Expr name;
  name.type = ExprType::kName;
  name.symbol = target.symbol;
  const Value space = variable(name, scope);
  if (!space.is(Kind::kNamespace)) refuse("cannot assign attribute on non-namespace object");
  memory_.spend(space.space->attributes.size() / 16);
  for (auto& [known, old] : space.space->attributes) {
    if (known == target.text) {
      old = value;
      return;
    }
  }
  space.space->attributes.emplace_back(target.text, value);
}

void Interpreter::define(Scope& scope, Symbol symbol, const Value& value) {
  memory_.spend(scope.variables.size() / 16);
  for (auto& [known, old] : scope.variables) {
    if (known == symbol) {
      old = value;
      return;
    }
  }
  scope.variables.emplace_back(symbol, value);
}

void Interpreter::print(const Value& value) {
  if (value.is_string()) {
    append(value.text());
  } else {
    append(written(value, memory_));
  }
}

void Interpreter::append(std::string_view text) {
  memory_.spend_bytes(text.size());
  if (text.size() > kMaxOutput - out_->size())
    refuse(fmt::format("makes a text of more than {} bytes", kMaxOutput));
  *out_ += text;
}

Value Interpreter::captured(const Body& body, Scope& scope) {
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  execute(body, scope);
  out_ = before;
  return memory_.text(std::move(text));
}

// A block's text through its filters, of which the first takes it.
Value Interpreter::with_filters(const Expr& filters, const Value& text, const Scope& scope) {
  if (filters.type == ExprType::kNothing) return text;
  return evaluate_filter(filters, with_filters(filters.parts[0], text, scope), scope);
}

}  // namespace quantspec::jinja
