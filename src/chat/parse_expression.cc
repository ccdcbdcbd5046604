#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/shown.h"
#include "chat/parser.h"

namespace quantspec::jinja {

namespace {

// Counts the nesting of what is parsed.
class Nest {
 public:
  Nest(std::size_t& nesting, std::uint32_t line) : nesting_(nesting) {
    if (nesting_ >= kMaxNesting)
      refuse_construct(line, fmt::format("nested deeper than {} levels", kMaxNesting));
    ++nesting_;
  }
  ~Nest() { --nesting_; }
  Nest(const Nest&) = delete;

 private:
  std::size_t& nesting_;
};

std::string without_marks(std::string_view digits) {
  std::string out(digits);
  std::erase(out, '_');
  return out;
}

}  // namespace

Expr Parser::node(ExprType type, std::vector<Expr> parts, std::string_view text) const {
  Expr expr;
  expr.type = type;
  expr.line = current().line;
  expr.text = text;
  expr.parts = std::move(parts);
  check_depth(expr);
  return expr;
}

void Parser::check_depth(Expr& expr) const {
  for (const Expr& part : expr.parts) expr.depth = std::max(expr.depth, part.depth + 1);
  if (expr.depth > kMaxNesting)
    refuse_construct(current().line, fmt::format("nested deeper than {} levels", kMaxNesting));
}

void Parser::add_depth(Expr& expr, const Arguments& arguments) {
  const auto add = [&](const Expr& part) { expr.depth = std::max(expr.depth, part.depth + 1); };
  for (const Expr& part : arguments.positional) add(part);
  for (const auto& [name, part] : arguments.named) add(part);
  add(arguments.list);
  add(arguments.map);
}

Expr Parser::expression() {
  const Nest nest(nesting_, current().line);
  Expr value = disjunction();
  while (skip_name("if")) {
    Expr test = disjunction();
    Expr otherwise = skip_name("else") ? expression() : Expr();
    std::vector<Expr> parts;
    parts.push_back(std::move(value));
    parts.push_back(std::move(test));
    parts.push_back(std::move(otherwise));
    value = node(ExprType::kIf, std::move(parts));
  }
  return value;
}

Expr Parser::condition() {
  const Nest nest(nesting_, current().line);
  return disjunction();
}

Expr Parser::disjunction() {
  std::vector<Expr> parts;
  parts.push_back(conjunction());
  while (skip_name("or")) parts.push_back(conjunction());
  return parts.size() == 1 ? std::move(parts[0]) : node(ExprType::kOr, std::move(parts));
}

Expr Parser::conjunction() {
  std::vector<Expr> parts;
  parts.push_back(negation());
  while (skip_name("and")) parts.push_back(negation());
  return parts.size() == 1 ? std::move(parts[0]) : node(ExprType::kAnd, std::move(parts));
}

Expr Parser::negation() {
  std::size_t num = 0;
  while (skip_name("not")) ++num;
  Expr expr = comparison();
  for (; num > 0; --num) {
    std::vector<Expr> parts;
    parts.push_back(std::move(expr));
    expr = node(ExprType::kNot, std::move(parts));
  }
  return expr;
}

Expr Parser::comparison() {
  constexpr std::pair<std::string_view, Comparison> kSigns[] = {
      {"==", Comparison::kEqual},  {"!=", Comparison::kUnequal},
      {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
      {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual},
  };
  std::vector<Expr> parts;
  std::vector<std::uint8_t> operators;
  parts.push_back(sum());
  for (;;) {
    std::optional<Comparison> found;
    for (const auto& [sign, comparison] : kSigns) {
      if (sees(sign)) found = comparison;
    }
    if (found) {
      take();
    } else if (skip_name("in")) {
      found = Comparison::kIn;
    } else if (sees_name("not") && following().type == TokenType::kName &&
               following().text == "in") {
      take();
      take();
      found = Comparison::kNotIn;
    } else {
      break;
    }
    operators.push_back(static_cast<std::uint8_t>(*found));
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  Expr expr = node(ExprType::kCompare, std::move(parts));
  expr.operators = std::move(operators);
  return expr;
}

Expr Parser::sum() {
  std::vector<Expr> parts;
  std::vector<std::uint8_t> operators;
  parts.push_back(concatenation());
  while (sees("+") || sees("-")) {
    operators.push_back(
        static_cast<std::uint8_t>(take().text == "+" ? Arithmetic::kAdd : Arithmetic::kSubtract));
    parts.push_back(concatenation());
  }
  if (operators.empty()) return std::move(parts[0]);
  Expr expr = node(ExprType::kArithmetic, std::move(parts));
  expr.operators = std::move(operators);
  return expr;
}

Expr Parser::concatenation() {
  std::vector<Expr> parts;
  parts.push_back(product());
  while (skip("~")) parts.push_back(product());
  return parts.size() == 1 ? std::move(parts[0]) : node(ExprType::kConcat, std::move(parts));
}

Expr Parser::product() {
  constexpr std::pair<std::string_view, Arithmetic> kSigns[] = {
      {"*", Arithmetic::kMultiply},
      {"/", Arithmetic::kDivide},
      {"//", Arithmetic::kFloorDivide},
      {"%", Arithmetic::kRemainder},
  };
  std::vector<Expr> parts;
  std::vector<std::uint8_t> operators;
  parts.push_back(power());
  for (;;) {
    const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                    [&](const auto& known) { return sees(known.first); });
    if (sign == std::end(kSigns)) break;
    take();
    operators.push_back(static_cast<std::uint8_t>(sign->second));
    parts.push_back(power());
  }
  if (operators.empty()) return std::move(parts[0]);
  Expr expr = node(ExprType::kArithmetic, std::move(parts));
  expr.operators = std::move(operators);
  return expr;
}

Expr Parser::power() {
  std::vector<Expr> parts;
  parts.push_back(unary(true));
  while (skip("**")) parts.push_back(unary(true));
  if (parts.size() == 1) return std::move(parts[0]);
  Expr expr = node(ExprType::kArithmetic, std::move(parts));
  expr.operators.assign(expr.parts.size() - 1, static_cast<std::uint8_t>(Arithmetic::kPower));
  return expr;
}

Expr Parser::unary(bool with_filters) {
  Expr expr;
  if (sees("-") || sees("+")) {
    const Nest nest(nesting_, current().line);
    const ExprType type = take().text == "-" ? ExprType::kNegative : ExprType::kPositive;
    std::vector<Expr> parts;
    parts.push_back(unary(false));
    expr = node(type, std::move(parts));
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filters ? filters_and_tests(std::move(expr)) : std::move(expr);
}

Expr Parser::name_or_constant() {
  const std::string_view name = current().text;
  Expr expr;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr = node(ExprType::kConstant);
    expr.constant = Value(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr = node(ExprType::kConstant);
    expr.constant = Value::none();
  } else {
    expr = name_node(name);
  }
  take();
  return expr;
}

Expr Parser::primary() {
  if (current().type == TokenType::kName) return name_or_constant();
  if (sees("[")) return list();
  if (sees("{")) return dict();
  if (skip("(")) {
    Expr expr = tuple(&Parser::expression, {}, true);
    expect(")");
    return expr;
  }
  Expr expr = node(ExprType::kConstant);
  const Token token = current();
  if (token.type == TokenType::kString) {
    take();
    std::string_view text = token.text;
    if (current().type == TokenType::kString) {  // strings side by side are one
      std::string all(text);
      while (current().type == TokenType::kString) all += take().text;
      text = result_.literals.emplace_back(std::move(all));
    }
    expr.constant = Value(text);
  } else if (token.type == TokenType::kInteger) {
    const std::string digits = without_marks(take().text);
    std::int64_t value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
      refuse_construct(token.line, "integers of more than 64 bits are not supported");
    expr.constant = Value(value);
  } else if (token.type == TokenType::kFloat) {
    const std::string digits = without_marks(take().text);
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
      refuse_construct(token.line, fmt::format("the number {} is out of range", shown(digits)));
    expr.constant = Value(value);
  } else {
    refuse_token();
  }
  return expr;
}

Expr Parser::list() {
  expect("[");
  std::vector<Expr> items;
  while (!sees("]")) {
    if (!items.empty()) expect(",");
    if (sees("]")) break;
    items.push_back(expression());
  }
  expect("]");
  return node(ExprType::kList, std::move(items));
}

Expr Parser::dict() {
  expect("{");
  std::vector<Expr> items;
  while (!sees("}")) {
    if (!items.empty()) expect(",");
    if (sees("}")) break;
    items.push_back(expression());
    expect(":");
    items.push_back(expression());
  }
  expect("}");
  return node(ExprType::kDict, std::move(items));
}

// One element, or several between commas: a tuple. `end_name`: a word that ends it.
Expr Parser::tuple(Expr (Parser::*element)(), std::string_view end_name, bool in_parentheses) {
  const auto ends = [&] {
    return current().type == TokenType::kVariableEnd || current().type == TokenType::kBlockEnd ||
           sees(")") || (!end_name.empty() && sees_name(end_name));
  };
  std::vector<Expr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect(",");
    if (ends()) break;
    items.push_back((this->*element)());
    if (!sees(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) refuse_token();
  return node(ExprType::kTuple, std::move(items));
}

Expr Parser::postfix(Expr expr) {
  for (;;) {
    if (sees(".") || sees("[")) {
      expr = subscript(std::move(expr));
    } else if (sees("(")) {
      expr = call(std::move(expr));
    } else {
      return expr;
    }
  }
}

Expr Parser::subscript(Expr expr) {
  std::vector<Expr> parts;
  parts.push_back(std::move(expr));
  if (skip(".")) {
    if (current().type == TokenType::kName)
      return node(ExprType::kAttribute, std::move(parts), take().text);
    if (current().type != TokenType::kInteger) refuse_token();
    parts.push_back(primary());
    return node(ExprType::kItem, std::move(parts));
  }
  expect("[");
  Expr index = subscribed();
  if (sees(",")) refuse_construct(current().line, "an index of several parts is not supported");
  expect("]");
  if (index.type != ExprType::kSlice) {
    parts.push_back(std::move(index));
    return node(ExprType::kItem, std::move(parts));
  }
  for (Expr& bound : index.parts) parts.push_back(std::move(bound));
  return node(ExprType::kSlice, std::move(parts));
}

// An index, or a kSlice of its three bounds.
Expr Parser::subscribed() {
  std::vector<Expr> bounds(3);
  if (!sees(":")) {
    bounds[0] = expression();
    if (!sees(":")) return std::move(bounds[0]);
  }
  for (std::size_t i = 1; i < 3 && skip(":"); ++i) {
    if (!sees(":") && !sees("]") && !sees(",")) bounds[i] = expression();
  }
  return node(ExprType::kSlice, std::move(bounds));
}

Expr Parser::filters_and_tests(Expr expr) {
  for (;;) {
    if (sees("|")) {
      expr = filters(std::move(expr), false);
    } else if (sees_name("is")) {
      expr = test(std::move(expr));
    } else if (sees("(")) {
      expr = call(std::move(expr));
    } else {
      return expr;
    }
  }
}

// `first_is_named`: no | stands before it.
Expr Parser::filters(Expr expr, bool first_is_named) {
  while (first_is_named || sees("|")) {
    if (!first_is_named) take();
    first_is_named = false;
    const Token name = expect(TokenType::kName, "a filter's name");
    if (sees("."))
      refuse_construct(name.line, "filters with dots in their names are not supported");
    std::vector<Expr> parts;
    parts.push_back(std::move(expr));
    expr = node(ExprType::kFilter, std::move(parts), name.text);
    expr.arguments = sees("(") ? arguments() : std::make_unique<Arguments>();
    add_depth(expr, *expr.arguments);
    check_depth(expr);
  }
  return expr;
}

Expr Parser::test(Expr expr) {
  expect_name("is");
  const bool negated = skip_name("not");
  const Token name = expect(TokenType::kName, "a test's name");
  std::vector<Expr> parts;
  parts.push_back(std::move(expr));
  expr = node(ExprType::kTest, std::move(parts), name.text);
  expr.arguments = std::make_unique<Arguments>();
  const bool ends = sees_name("else") || sees_name("or") || sees_name("and");
  const TokenType type = current().type;
  if (sees("(")) {
    expr.arguments = arguments();
  } else if (!ends &&
             (type == TokenType::kName || type == TokenType::kString ||
              type == TokenType::kInteger || type == TokenType::kFloat || sees("[") || sees("{"))) {
    if (sees_name("is")) refuse_syntax(current().line, "tests cannot be chained with is");
    expr.arguments->positional.push_back(postfix(primary()));
  }
  add_depth(expr, *expr.arguments);
  check_depth(expr);
  if (!negated) return expr;
  std::vector<Expr> inner;
  inner.push_back(std::move(expr));
  return node(ExprType::kNot, std::move(inner));
}

std::unique_ptr<Arguments> Parser::arguments() {
  expect("(");
  auto all = std::make_unique<Arguments>();
  for (bool first = true; !sees(")"); first = false) {
    if (!first) {
      expect(",");
      if (sees(")")) break;
    }
    argument(*all);
  }
  expect(")");
  return all;
}

void Parser::argument(Arguments& all) {
  const auto require = [&](bool in_order) {
    if (!in_order) refuse_syntax(current().line, "arguments in an order that no call has");
  };
  const bool has_list = all.list.type != ExprType::kNothing;
  const bool has_map = all.map.type != ExprType::kNothing;
  if (skip("*")) {
    require(!has_list && !has_map);
    all.list = expression();
  } else if (skip("**")) {
    require(!has_map);
    all.map = expression();
  } else if (current().type == TokenType::kName && following().type == TokenType::kOperator &&
             following().text == "=") {
    require(!has_map);
    const std::string_view name = take().text;
    take();
    all.named.emplace_back(name, expression());
  } else {
    require(!has_list && !has_map && all.named.empty());
    all.positional.push_back(expression());
  }
}

Expr Parser::call(Expr function) {
  std::vector<Expr> parts;
  parts.push_back(std::move(function));
  Expr expr = node(ExprType::kCall, std::move(parts));
  expr.arguments = arguments();
  add_depth(expr, *expr.arguments);
  check_depth(expr);
  return expr;
}

}  // namespace quantspec::jinja
