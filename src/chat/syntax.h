// A template as a tree. It does not change once it is parsed, so that many threads may render it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/operators.h"
#include "chat/value.h"

namespace quantspec::jinja {

using Symbol = std::uint32_t;  // a variable's number in Template::names

enum class ExprType : std::uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       // keys and values by turns
  kAttribute,  // parts[0] . text
  kItem,       // parts[0] [parts[1]]
  kSlice,      // parts[0] [parts[1] : parts[2] : parts[3]]; what is not said is a kNothing
  kNothing,
  kCall,    // parts[0] (arguments)
  kFilter,  // parts[0] | text (arguments); kNothing: of a block's text
  kTest,    // parts[0] is text (arguments)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kCompare,     // parts[0] operators[0] parts[1] operators[1] ...
  kArithmetic,  // likewise, from the left
  kConcat,
  kIf,                  // parts[0] if parts[1] else parts[2], which may be kNothing
  kNamespaceAttribute,  // symbol . text, as a target
};

struct Arguments;

struct Expr {
  ExprType type = ExprType::kNothing;
  std::uint32_t line = 0;
  std::uint32_t depth = 1;  // of the tree
  Symbol symbol = 0;
  std::string_view text;
  Value constant;
  std::vector<Expr> parts;
  std::vector<std::uint8_t> operators;
  std::unique_ptr<Arguments> arguments;
};

struct Arguments {
  std::vector<Expr> positional;
  std::vector<std::pair<std::string_view, Expr>> named;
  Expr list, map;  // *list, **map; kNothing: there is none
};

enum class StmtType : std::uint8_t {
  kText,
  kPrint,
  kIf,        // exprs are the conditions of bodies; one body more: else
  kFor,       // exprs: target, iterable, condition or kNothing; bodies: loop, else
  kSet,       // exprs: target, value
  kSetBlock,  // exprs: target, filters or kNothing
  kMacro,
  kCall,    // exprs: the call; its block is a macro
  kFilter,  // exprs: the filters
  kWith,    // exprs: targets and values by turns
  kBreak,
  kContinue,
};

struct Stmt;
using Body = std::vector<Stmt>;
struct MacroShape;

struct Stmt {
  StmtType type = StmtType::kText;
  std::uint32_t line = 0;
  bool recursive = false;
  std::string_view text;
  std::vector<Expr> exprs;
  std::vector<Body> bodies;
  std::unique_ptr<MacroShape> macro;
};

struct MacroShape {
  std::string_view name;
  Symbol symbol = 0;
  std::vector<std::pair<std::string_view, Symbol>> parameters;
  std::vector<Expr> defaults;  // of the last parameters
  Body body;
  bool takes_list = false, takes_map = false, takes_caller = false;
};

struct Template {
  std::string source;                // normalized; what the tree points into
  std::deque<std::string> literals;  // so is this
  std::vector<std::string_view> names;
  Body body;
  Symbol caller = 0, varargs = 0, kwargs = 0, loop = 0;
};

inline constexpr std::size_t kMaxSource = std::size_t{1} << 20;
inline constexpr std::size_t kMaxNesting = 64;  // of expressions and of tags in the source

// Throws Error: kCorruptFile for what is no template, kUnsupportedModel for what is not supported.
std::shared_ptr<const Template> parse_template(std::string_view source);

}  // namespace quantspec::jinja
