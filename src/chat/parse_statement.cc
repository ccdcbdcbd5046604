#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/shown.h"
#include "chat/parser.h"

namespace quantspec::jinja {

Parser::Parser(Template& result)
    : result_(result), tokens_(tokens_of(result.source, result.literals)) {
  result_.caller = symbol("caller");
  result_.varargs = symbol("varargs");
  result_.kwargs = symbol("kwargs");
  result_.loop = symbol("loop");
}

// ---- Tokens ----

Token Parser::take() {
  const Token token = current();
  if (token.type != TokenType::kEnd) ++at_;
  return token;
}

bool Parser::sees(std::string_view op) const {
  return current().type == TokenType::kOperator && current().text == op;
}

bool Parser::sees_name(std::string_view name) const {
  return current().type == TokenType::kName && current().text == name;
}

bool Parser::skip(std::string_view op) {
  const bool is_there = sees(op);
  if (is_there) take();
  return is_there;
}

bool Parser::skip_name(std::string_view name) {
  const bool is_there = sees_name(name);
  if (is_there) take();
  return is_there;
}

void Parser::expect(std::string_view op) {
  if (!skip(op)) {
    refuse_syntax(current().line, fmt::format("expected '{}', got {}", op, shown(current().text)));
  }
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    refuse_syntax(current().line,
                  fmt::format("expected '{}', got {}", name, shown(current().text)));
  }
}

Token Parser::expect(TokenType type, std::string_view what) {
  if (current().type != type)
    refuse_syntax(current().line, fmt::format("expected {}, got {}", what, shown(current().text)));
  return take();
}

void Parser::refuse_token() const {
  if (current().type == TokenType::kEnd)
    refuse_syntax(current().line, "the template ends within a tag");
  refuse_syntax(current().line,
                fmt::format("expected an expression, got {}", shown(current().text)));
}

Symbol Parser::symbol(std::string_view name) {
  const auto [at, is_new] = symbols_.emplace(name, static_cast<Symbol>(result_.names.size()));
  if (is_new) result_.names.push_back(name);
  return at->second;
}

Expr Parser::name_node(std::string_view name) {
  for (MacroShape* macro : macros_) {
    macro->takes_caller |= name == "caller";
    macro->takes_list |= name == "varargs";
    macro->takes_map |= name == "kwargs";
  }
  Expr expr = node(ExprType::kName, {}, name);
  expr.symbol = symbol(name);
  return expr;
}

// ---- Statements ----

void Parser::run() {
  result_.body = statements({});
  if (current().type != TokenType::kEnd) refuse_token();
}

// Up to a tag of one of these names, whose {% has been taken; without one: to the template's end.
Body Parser::statements(std::initializer_list<std::string_view> ends) {
  if (nesting_ >= kMaxNesting) {
    refuse_construct(current().line, fmt::format("nested deeper than {} levels", kMaxNesting));
  }
  ++nesting_;
  Body body;
  for (;;) {
    Stmt stmt;
    stmt.line = current().line;
    if (current().type == TokenType::kEnd) {
      if (ends.size() > 0) {
        refuse_syntax(current().line, fmt::format("the template ends where {{% {} %}} is missing",
                                                  *(ends.end() - 1)));
      }
      break;
    }
    if (current().type == TokenType::kData) {
      stmt.type = StmtType::kText;
      stmt.text = take().text;
    } else if (current().type == TokenType::kVariableBegin) {
      take();
      stmt.type = StmtType::kPrint;
      stmt.exprs.push_back(tuple(&Parser::expression, {}, false));
      expect(TokenType::kVariableEnd, "}}");
    } else {
      take();  // {%
      if (current().type == TokenType::kName &&
          std::find(ends.begin(), ends.end(), current().text) != ends.end())
        break;
      stmt = statement();
      expect(TokenType::kBlockEnd, "%}");
    }
    body.push_back(std::move(stmt));
  }
  --nesting_;
  return body;
}

// The end of a tag and what follows it, up to one of these names.
Body Parser::block(std::initializer_list<std::string_view> ends) {
  skip(":");
  expect(TokenType::kBlockEnd, "%}");
  return statements(ends);
}

Body Parser::only_block(std::string_view end) {
  Body body = block({end});
  take();
  return body;
}

Stmt Parser::statement() {
  const Token name = expect(TokenType::kName, "a tag's name");
  Stmt stmt;
  if (name.text == "if") {
    stmt = if_statement();
  } else if (name.text == "for") {
    stmt = for_statement();
  } else if (name.text == "set") {
    stmt = set_statement();
  } else if (name.text == "macro") {
    stmt = macro_statement();
  } else if (name.text == "call") {
    stmt = call_statement();
  } else if (name.text == "filter") {
    stmt = filter_statement();
  } else if (name.text == "with") {
    stmt = with_statement();
  } else if (name.text == "generation") {
    stmt = generation_statement();
  } else if (name.text == "print") {
    stmt = print_statement();
  } else if (name.text == "break" || name.text == "continue") {
    if (loops_ == 0) refuse_syntax(name.line, fmt::format("{} outside of a loop", name.text));
    stmt.type = name.text == "break" ? StmtType::kBreak : StmtType::kContinue;
  } else {
    refuse_construct(name.line,
                     fmt::format("the tag {} is not supported; supported are if, for, break, "
                                 "continue, set, macro, call, filter, with, raw, generation",
                                 shown(name.text)));
  }
  stmt.line = name.line;
  return stmt;
}

Stmt Parser::if_statement() {
  Stmt stmt;
  stmt.type = StmtType::kIf;
  for (;;) {
    stmt.exprs.push_back(tuple(&Parser::condition, {}, false));
    stmt.bodies.push_back(block({"elif", "else", "endif"}));
    const Token end = take();
    if (end.text == "elif") continue;
    if (end.text == "else") stmt.bodies.push_back(only_block("endif"));
    return stmt;
  }
}

Stmt Parser::for_statement() {
  Stmt stmt;
  stmt.type = StmtType::kFor;
  ++loops_;
  stmt.exprs.push_back(target(false, "in"));
  --loops_;
  expect_name("in");
  stmt.exprs.push_back(tuple(&Parser::condition, "recursive", false));
  stmt.exprs.push_back(skip_name("if") ? expression() : Expr());
  stmt.recursive = skip_name("recursive");
  ++loops_;
  stmt.bodies.push_back(block({"endfor", "else"}));
  --loops_;
  if (take().text != "else") {
    stmt.bodies.emplace_back();
    return stmt;
  }
  // `break` there is of the loop around; but as jinja2 has it, a recursive loop is a function.
  const std::size_t around = std::exchange(loops_, stmt.recursive ? 0 : loops_);
  stmt.bodies.push_back(only_block("endfor"));
  loops_ = around;
  return stmt;
}

// Names and tuples of names, or an attribute of a namespace.
Expr Parser::target(bool with_namespace, std::string_view end_name) {
  if (with_namespace && following().type == TokenType::kOperator && following().text == ".") {
    const Token name = expect(TokenType::kName, "a name");
    take();
    const Token attribute = expect(TokenType::kName, "a name");
    Expr expr = name_node(name.text);
    expr.type = ExprType::kNamespaceAttribute;
    expr.text = attribute.text;
    return expr;
  }
  Expr expr = tuple(&Parser::primary, end_name, false);
  check_target(expr);
  return expr;
}

void Parser::check_target(const Expr& expr) const {
  if (expr.type == ExprType::kTuple) {
    for (const Expr& part : expr.parts) check_target(part);
  } else if (expr.type != ExprType::kName) {
    refuse_syntax(expr.line, "only names can be assigned to");
  } else if (expr.text == "loop" && loops_ > 0) {
    refuse_syntax(expr.line, "loop cannot be assigned to in a loop");
  }
}

Stmt Parser::set_statement() {
  Stmt stmt;
  stmt.exprs.push_back(target(true));
  if (skip("=")) {
    stmt.type = StmtType::kSet;
    stmt.exprs.push_back(tuple(&Parser::expression, {}, false));
    return stmt;
  }
  stmt.type = StmtType::kSetBlock;
  stmt.exprs.push_back(filters(Expr(), false));
  const std::size_t loops = std::exchange(loops_, 0);
  stmt.bodies.push_back(only_block("endset"));
  loops_ = loops;
  return stmt;
}

void Parser::signature(MacroShape& macro) {
  expect("(");
  while (!sees(")")) {
    if (!macro.parameters.empty()) expect(",");
    const Token name = expect(TokenType::kName, "a parameter's name");
    macro.parameters.emplace_back(name.text, symbol(name.text));
    if (skip("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      refuse_syntax(name.line, "a parameter without a default follows one with a default");
    }
  }
  expect(")");
}

void Parser::macro_body(MacroShape& macro, std::string_view end) {
  macros_.push_back(&macro);
  const std::size_t loops = std::exchange(loops_, 0);
  macro.body = only_block(end);
  loops_ = loops;
  macros_.pop_back();
}

Stmt Parser::macro_statement() {
  Stmt stmt;
  stmt.type = StmtType::kMacro;
  stmt.macro = std::make_unique<MacroShape>();
  stmt.macro->name = expect(TokenType::kName, "a macro's name").text;
  stmt.macro->symbol = symbol(stmt.macro->name);
  signature(*stmt.macro);
  macro_body(*stmt.macro, "endmacro");
  return stmt;
}

Stmt Parser::call_statement() {
  Stmt stmt;
  stmt.type = StmtType::kCall;
  stmt.macro = std::make_unique<MacroShape>();
  stmt.macro->name = "caller";
  if (sees("(")) signature(*stmt.macro);
  stmt.exprs.push_back(expression());
  if (stmt.exprs[0].type != ExprType::kCall) refuse_syntax(current().line, "expected a call");
  macro_body(*stmt.macro, "endcall");
  return stmt;
}

// What Hugging Face's trainers mark; here it is text like any other, in a scope of its own.
Stmt Parser::generation_statement() {
  Stmt stmt;
  stmt.type = StmtType::kWith;
  const std::size_t loops = std::exchange(loops_, 0);
  stmt.bodies.push_back(only_block("endgeneration"));
  loops_ = loops;
  return stmt;
}

Stmt Parser::filter_statement() {
  Stmt stmt;
  stmt.type = StmtType::kFilter;
  stmt.exprs.push_back(filters(Expr(), true));
  const std::size_t loops = std::exchange(loops_, 0);
  stmt.bodies.push_back(only_block("endfilter"));
  loops_ = loops;
  return stmt;
}

Stmt Parser::with_statement() {
  Stmt stmt;
  stmt.type = StmtType::kWith;
  while (current().type != TokenType::kBlockEnd) {
    if (!stmt.exprs.empty()) expect(",");
    stmt.exprs.push_back(target(false));
    expect("=");
    stmt.exprs.push_back(expression());
  }
  stmt.bodies.push_back(only_block("endwith"));
  return stmt;
}

Stmt Parser::print_statement() {
  Stmt stmt;
  stmt.type = StmtType::kPrint;
  while (current().type != TokenType::kBlockEnd) {
    if (!stmt.exprs.empty()) expect(",");
    stmt.exprs.push_back(expression());
  }
  return stmt;
}

std::shared_ptr<const Template> parse_template(std::string_view source) {
  if (source.size() > kMaxSource) {
    fail(ErrorKind::kUnsupportedModel, "chat template of {} bytes: supported are up to {}",
         source.size(), kMaxSource);
  }
  auto result = std::make_shared<Template>();
  result->source = normalized_source(source);
  Parser(*result).run();
  return result;
}

}  // namespace quantspec::jinja
