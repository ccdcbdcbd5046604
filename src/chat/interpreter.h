// Renders a template: walks its tree with the variables of one rendering.
#pragma once

#include <ctime>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/syntax.h"
#include "chat/value.h"

namespace quantspec::jinja {

// Of statements and expressions in each other, of 1 KiB of stack or less.
inline constexpr std::size_t kMaxFrames = 1000;

// The variables of a macro, of one turn of a loop, of a block; the outermost has the template's.
struct Scope {
  explicit Scope(const Scope* outer) : outer(outer) {}
  const Scope* outer;
  std::vector<std::pair<Symbol, Value>> variables;
};

// What a call is given.
struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
  void spend(Memory& memory) const;  // for reading them
  // Those of a function with these parameters, in their order; nullopt: not given. Throws for more.
  std::vector<std::optional<Value>> bind(std::string_view function,
                                         std::initializer_list<std::string_view> parameters) const;
};

class Interpreter;

struct Callable {
  using Function = Value (*)(Interpreter&, const CallArguments&);
  std::string_view name;
  Function function = nullptr;        // a function of the globals
  const MacroShape* macro = nullptr;  // a macro
  const Scope* scope = nullptr;       // where it stands
  Value self = {};                    // of a method: what it is of
};

// `loop` of one turn after another. Elements are taken as late as can be, since the condition of a
// loop may depend on what its turns do.
class Loop {
 public:
  Loop(Interpreter& interpreter, const Stmt& stmt, const Scope& scope, const Value& over,
       std::size_t depth);

  // The next turn's element; nullopt: there is none.
  std::optional<Value> advance();
  // `loop.name`; nullopt: no such attribute.
  std::optional<Value> attribute(std::string_view name);
  bool changed(const std::vector<Value>& values);
  Value cycled(const std::vector<Value>& values) const;

  const Stmt& stmt;
  const Scope& scope;  // around the loop
  const std::size_t depth;

 private:
  std::optional<Value> pull();  // from what is iterated over
  bool peek();                  // whether there is one more, which is then pending
  std::size_t length();

  Interpreter& interpreter_;
  Value over_;
  std::vector<Value> items_;
  std::size_t next_ = 0;  // of items_
  std::deque<Value> pending_;
  std::int64_t index_ = -1;
  std::optional<std::size_t> length_;
  Value before_, current_;
  std::optional<std::vector<Value>> last_;  // of changed()
};

class Interpreter {
 public:
  // `variables`: by symbol; nullopt: not set. `now`: for strftime_now.
  Interpreter(const Template& shape, Memory& memory, const std::tm& now);
  std::string run(std::vector<std::optional<Value>> variables);
  std::uint32_t line() const { return line_; }  // where it is, for messages

  // What filters, tests and methods need.
  Memory& memory() { return memory_; }
  const std::tm& now() const { return now_; }
  Value text(std::string text) { return memory_.text(std::move(text)); }
  Value filtered(std::string_view name, const Value& value, const CallArguments& arguments);
  bool tested(std::string_view name, const Value& value, const CallArguments& arguments);
  Value called(const Value& function, const CallArguments& arguments);
  Value attribute(const Value& value, std::string_view name);  // value.name
  Value item(const Value& value, const Value& index);          // value[index]
  void assign(const Value& value, const Expr& target, Scope& scope);
  Value evaluate(const Expr& expr, const Scope& scope);

 private:
  friend class Loop;
  enum class Flow { kNext, kBreak, kContinue };

  // Statements (statements.cc).
  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Stmt& stmt, Scope& scope);
  Flow execute_if(const Stmt& stmt, Scope& scope);
  Flow execute_with(const Stmt& stmt, Scope& scope);
  // How its `else` ended, which belongs to the loop around.
  Flow execute_for(const Stmt& stmt, const Scope& scope, const Value& over, std::size_t depth);
  void execute_call(const Stmt& stmt, Scope& scope);
  void set_attribute(const Expr& target, const Value& value, const Scope& scope);
  void print(const Value& value);
  void append(std::string_view text);
  Value captured(const Body& body, Scope& scope);  // its output as a text
  Value with_filters(const Expr& filters, const Value& text, const Scope& scope);
  Scope& inner(const Scope& outer) { return memory_.make(scopes_, &outer); }
  void define(Scope& scope, Symbol symbol, const Value& value);

  // Expressions (expressions.cc).
  Value variable(const Expr& name, const Scope& scope);
  Value evaluate_operators(const Expr& expr, const Scope& scope);
  Value evaluate_display(const Expr& expr, const Scope& scope);
  Value evaluate_logic(const Expr& expr, const Scope& scope);
  Value evaluate_postfix(const Expr& expr, const Scope& scope);
  Value evaluate_filter(const Expr& expr, const Value& value, const Scope& scope);
  Value evaluate_concat(const Expr& expr, const Scope& scope);
  CallArguments evaluate_arguments(const Arguments& arguments, const Scope& scope);

  // Calls (calls.cc).
  Value call_macro(const Callable& callable, const CallArguments& arguments);
  void bind_macro(const MacroShape& macro, const CallArguments& arguments, Scope& scope);
  void bind_rest(const MacroShape& macro, const CallArguments& arguments, std::size_t num_named,
                 Scope& scope);
  Value recurse(Loop& loop, const CallArguments& arguments);
  Value method(const Value& value, std::string_view name);
  Value denied(const Value& value, std::string_view name);  // undefined: such a method

  const Template& shape_;
  Memory& memory_;
  const std::tm& now_;
  std::vector<std::optional<Value>> variables_;
  std::deque<Scope> scopes_;
  std::deque<Callable> callables_;
  std::deque<Loop> loops_;
  std::string* out_ = nullptr;
  std::uint32_t line_ = 0;
  std::size_t frames_ = 0, calls_ = 0, filters_ = 0;
};

// The function of the globals that is called so; nullptr: none.
Callable::Function global_function(std::string_view name);

using Filter = Value (*)(Interpreter&, const Value&, const CallArguments&);
// nullptr: there is none of that name.
Filter text_filter(std::string_view name);
Filter list_filter(std::string_view name);
bool is_test(std::string_view name);

// Whether Python has such a method of such a value, and whether it may be used.
enum class MethodKind { kNone, kThere, kRefused };
MethodKind method_kind(const Value& value, std::string_view name);
Value call_method(Interpreter& in, const Value& self, std::string_view name,
                  const CallArguments& arguments);
Value call_text_method(Interpreter& in, std::string_view self, std::string_view name,
                       const CallArguments& arguments);

// Throws before it makes what is too long.
Value replaced(Interpreter& in, std::string_view text, std::string_view from, std::string_view to,
               std::int64_t most);
// text.format(...)
std::string brace_formatted(Interpreter& in, std::string_view text, const CallArguments& arguments);

}  // namespace quantspec::jinja
