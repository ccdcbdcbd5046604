#include "chat/interpreter.h"
#include "chat/operators.h"

namespace quantspec::jinja {

Loop::Loop(Interpreter& interpreter, const Stmt& stmt, const Scope& scope, const Value& over,
           std::size_t depth)
    : stmt(stmt), scope(scope), depth(depth), interpreter_(interpreter), over_(over) {
  if (!over.is(Kind::kIterator)) items_ = iterated(over, interpreter.memory());
}

std::optional<Value> Loop::pull() {
  for (;;) {
    std::vector<Value>& items = over_.is(Kind::kIterator) ? over_.list->items : items_;
    std::size_t& next = over_.is(Kind::kIterator) ? over_.list->next : next_;
    if (next == items.size()) return std::nullopt;
    const Value item = items[next++];
    const Expr& condition = stmt.exprs[2];
    if (condition.type == ExprType::kNothing) return item;
    Scope& turn = interpreter_.inner(scope);
    interpreter_.assign(item, stmt.exprs[0], turn);
    if (truth(interpreter_.evaluate(condition, turn))) return item;
  }
}

bool Loop::peek() {
  if (pending_.empty()) {
    if (const std::optional<Value> item = pull()) pending_.push_back(*item);
  }
  return !pending_.empty();
}

std::optional<Value> Loop::advance() {
  if (!peek()) return std::nullopt;
  before_ = current_;
  current_ = pending_.front();
  pending_.pop_front();
  ++index_;
  return current_;
}

std::size_t Loop::length() {
  if (!length_) {
    if (stmt.exprs[2].type == ExprType::kNothing && !over_.is(Kind::kIterator)) {
      length_ = items_.size();
    } else {
      while (const std::optional<Value> item = pull()) pending_.push_back(*item);
      length_ = static_cast<std::size_t>(index_ + 1) + pending_.size();
    }
  }
  return *length_;
}

std::optional<Value> Loop::attribute(std::string_view name) {
  const auto size = [&] { return static_cast<std::int64_t>(length()); };
  if (name == "index0") return Value(index_);
  if (name == "index") return Value(index_ + 1);
  if (name == "first") return Value(index_ == 0);
  if (name == "last") return Value(!peek());
  if (name == "length") return Value(size());
  if (name == "revindex") return Value(size() - index_);
  if (name == "revindex0") return Value(size() - index_ - 1);
  if (name == "depth") return Value(static_cast<std::int64_t>(depth) + 1);
  if (name == "depth0") return Value(static_cast<std::int64_t>(depth));
  if (name == "previtem")
    return index_ == 0 ? Value::undefined("there is no previous item") : before_;
  if (name == "nextitem")
    return peek() ? pending_.front() : Value::undefined("there is no next item");
  return std::nullopt;
}

bool Loop::changed(const std::vector<Value>& values) {
  Memory& memory = interpreter_.memory();
  bool same = last_ && last_->size() == values.size();
  for (std::size_t i = 0; same && i < values.size(); ++i)
    same = equal((*last_)[i], values[i], memory);
  last_ = values;
  return !same;
}

Value Loop::cycled(const std::vector<Value>& values) const {
  if (values.empty()) refuse("no items for cycling given");
  return values[static_cast<std::size_t>(index_) % values.size()];
}

}  // namespace quantspec::jinja
