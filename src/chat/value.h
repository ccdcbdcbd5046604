// The values that a template computes with, as Python has them, and the memory that they lie in.
//
// A Value is small and copied freely; texts, lists and the like belong to the Memory of a
// rendering, or to what outlives it: the template, the request's JSON. Nothing is freed before the
// rendering ends, so that neither rings nor deep nesting need care.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quantspec::jinja {

// What a rendering cannot do. render() adds the line of the template.
struct Trouble {
  ErrorKind kind;
  std::string what;
};
[[noreturn]] void refuse(std::string what);       // kInvalidRequest: the request's values cause it
[[noreturn]] void unsupported(std::string what);  // kUnsupportedModel

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,
  kView,      // a dict's keys(), values(), items()
  kIterator,  // what map, select and others give: read once, without a length
  kDict,
  kNamespace,
  kLoop,
  kCallable,
};

struct List;
struct Dict;
struct Namespace;
class Loop;
struct Callable;
class Memory;

struct Value {
  Kind kind = Kind::kUndefined;
  bool is_markup = false;  // of a text: `safe` has marked it
  bool is_denied = false;  // of what is undefined: the sandbox denies it
  std::uint32_t size = 0;  // of a text, in bytes
  union {
    bool truth;
    std::int64_t integer;
    double real;
    const char* bytes;  // of a text; of what is undefined, of the reason why
    List* list;         // kList to kIterator
    Dict* dict;
    Namespace* space;
    Loop* loop;
    const Callable* callable;
  };

  Value() : bytes(nullptr) {}
  explicit Value(bool value) : kind(Kind::kBool), truth(value) {}
  explicit Value(std::int64_t value) : kind(Kind::kInt), integer(value) {}
  explicit Value(double value) : kind(Kind::kFloat), real(value) {}
  explicit Value(std::string_view text)
      : kind(Kind::kString), size(static_cast<std::uint32_t>(text.size())), bytes(text.data()) {}
  explicit Value(Kind of, List& value) : kind(of), list(&value) {}
  explicit Value(Dict& value) : kind(Kind::kDict), dict(&value) {}
  explicit Value(Namespace& value) : kind(Kind::kNamespace), space(&value) {}
  explicit Value(Loop& value) : kind(Kind::kLoop), loop(&value) {}
  explicit Value(const Callable& value) : kind(Kind::kCallable), callable(&value) {}
  static Value none();
  static Value undefined(std::string_view why);  // `why` outlives it

  bool is(Kind other) const { return kind == other; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_number() const {
    return kind == Kind::kInt || kind == Kind::kFloat || kind == Kind::kBool;
  }
  bool is_integer() const { return kind == Kind::kInt || kind == Kind::kBool; }  // as Python counts
  bool is_items() const { return kind >= Kind::kList && kind <= Kind::kIterator; }
  // REQUIRES: is_string(), or is_undefined().
  std::string_view text() const { return {bytes, size}; }
  std::int64_t as_int() const { return kind == Kind::kBool ? truth : integer; }
  double as_float() const { return kind == Kind::kFloat ? real : static_cast<double>(as_int()); }
};

inline constexpr std::string_view kGroup = "group";  // a tuple of groupby has this name

struct List {
  std::vector<Value> items;
  std::size_t next = 0;   // of an iterator: what it has not given yet
  std::string_view name;  // of a view: dict_items; of a range: as it is printed
};

// As Python has it, where no integer is rounded. REQUIRES: both are numbers.
std::partial_ordering compared_numbers(const Value& a, const Value& b);

// A total order of keys, in which those that Python holds for equal are equal, and NaN is before
// all other numbers and equal to itself.
struct KeyBefore {
  bool operator()(const Value& a, const Value& b) const;
};

// In the order of insertion. Few are found by looking at each, many by an index.
struct Dict {
  using Entry = std::pair<Value, Value>;
  std::vector<Entry> entries;

  // nullptr: it is not there. Throws for a key that Python cannot hash; tuples have no tuples in
  // them.
  const Value* find(const Value& key, Memory& memory) const;
  // Replaces the value of a key that is there.
  void set(const Value& key, const Value& value, Memory& memory);

 private:
  static constexpr std::size_t kFew = 8;
  std::map<Value, std::size_t, KeyBefore> index_;  // of entries; none while they are few
};

struct Namespace {
  std::vector<std::pair<std::string_view, Value>> attributes;
};

// The name that Python gives its type: 'str', 'list'.
std::string_view type_name(const Value& value);
bool truth(const Value& value);

// How much one rendering may do: steps are nodes of the template, elements, and 256 bytes of text.
inline constexpr std::size_t kMaxSteps = 1'000'000;
inline constexpr std::size_t kBytesPerStep = 256;
inline constexpr std::size_t kMaxOutput = std::size_t{4} << 20;  // also of any one text
inline constexpr std::size_t kMaxDepth = 64;                     // of values in values, and calls

class Memory {
 public:
  // Throws once a rendering has taken more than kMaxSteps.
  void spend(std::size_t steps = 1);
  void spend_bytes(std::size_t bytes) { spend(bytes / kBytesPerStep); }

  // Throws for a text larger than kMaxOutput.
  Value text(std::string text);
  Value undefined(std::string why);
  // With room for `items`, which are steps. REQUIRES: of is a kind of items.
  Value list(Kind of, std::vector<Value> items, std::string_view name = {});
  Value pair(const Value& first, const Value& second);
  Dict& dict();
  Namespace& space();
  template <typename T, typename... Args>
  T& make(std::deque<T>& of, Args&&... args) {
    spend();
    return of.emplace_back(std::forward<Args>(args)...);
  }

 private:
  std::size_t steps_ = 0;
  std::deque<std::string> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
};

// Counts how deep a recursion is. REQUIRES: the counter outlives it.
class Descent {
 public:
  Descent(std::size_t& depth, std::size_t most, const char* what);
  ~Descent() { --depth_; }
  Descent(const Descent&) = delete;

 private:
  std::size_t& depth_;
};

}  // namespace quantspec::jinja
