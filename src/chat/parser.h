// Makes a tree of a template's tokens, by jinja2's grammar.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/lexer.h"
#include "chat/syntax.h"

namespace quantspec::jinja {

class Parser {
 public:
  // Fills `result`, whose source is there.
  explicit Parser(Template& result);
  void run();

 private:
  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool sees(std::string_view op) const;
  bool sees_name(std::string_view name) const;
  bool skip(std::string_view op);
  bool skip_name(std::string_view name);
  void expect(std::string_view op);
  void expect_name(std::string_view name);
  Token expect(TokenType type, std::string_view what);
  [[noreturn]] void refuse_token() const;

  // Nodes.
  Symbol symbol(std::string_view name);
  Expr node(ExprType type, std::vector<Expr> parts = {}, std::string_view text = {}) const;
  Expr name_node(std::string_view name);
  void check_depth(Expr& expr) const;

  // Expressions (parse_expression.cc), from the loosest binding to the tightest.
  Expr expression();
  Expr condition();  // without a trailing `if`
  Expr disjunction();
  Expr conjunction();
  Expr negation();
  Expr comparison();
  Expr sum();
  Expr concatenation();
  Expr product();
  Expr power();
  Expr unary(bool with_filters);
  Expr primary();
  Expr name_or_constant();
  Expr list();
  Expr dict();
  Expr tuple(Expr (Parser::*element)(), std::string_view end_name, bool in_parentheses);
  Expr postfix(Expr expr);
  Expr subscript(Expr expr);
  Expr subscribed();
  Expr filters_and_tests(Expr expr);
  Expr filters(Expr expr, bool first_is_named);
  Expr test(Expr expr);
  std::unique_ptr<Arguments> arguments();
  void argument(Arguments& arguments);
  Expr call(Expr function);
  static void add_depth(Expr& expr, const Arguments& arguments);

  // Statements (parse_statement.cc).
  Body statements(std::initializer_list<std::string_view> ends);
  Body block(std::initializer_list<std::string_view> ends);
  Body only_block(std::string_view end);
  Stmt statement();
  Stmt if_statement();
  Stmt for_statement();
  Stmt set_statement();
  Stmt macro_statement();
  Stmt call_statement();
  Stmt filter_statement();
  Stmt with_statement();
  Stmt generation_statement();
  Stmt print_statement();
  void signature(MacroShape& macro);
  void macro_body(MacroShape& macro, std::string_view end);
  Expr target(bool with_namespace, std::string_view end_name = {});
  void check_target(const Expr& expr) const;

  Template& result_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::map<std::string_view, Symbol> symbols_;
  std::size_t nesting_ = 0;
  std::size_t loops_ = 0;            // around, within the same macro or block of text
  std::vector<MacroShape*> macros_;  // around
};

}  // namespace quantspec::jinja
