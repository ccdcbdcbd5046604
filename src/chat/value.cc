#include "chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>

namespace quantspec::jinja {

void refuse(std::string what) { throw Trouble{ErrorKind::kInvalidRequest, std::move(what)}; }
void unsupported(std::string what) { throw Trouble{ErrorKind::kUnsupportedModel, std::move(what)}; }

Value Value::none() {
  Value value;
  value.kind = Kind::kNone;
  return value;
}

Value Value::undefined(std::string_view why) {
  Value value(why);
  value.kind = Kind::kUndefined;
  return value;
}

// ---- Numbers ----

namespace {

std::partial_ordering compared(std::int64_t a, double b) {
  constexpr double kBeyond = 0x1p63;  // the least double above all integers
  if (std::isnan(b)) return std::partial_ordering::unordered;
  if (b >= kBeyond) return std::partial_ordering::less;
  if (b < -kBeyond) return std::partial_ordering::greater;
  const auto whole = static_cast<std::int64_t>(b);
  if (a != whole) return a <=> whole;
  return 0.0 <=> b - static_cast<double>(whole);
}

}  // namespace

std::partial_ordering compared_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.as_int() <=> b.as_int();
  if (a.is_integer()) return compared(a.as_int(), b.real);
  if (b.is_integer()) {
    const std::partial_ordering other_way = compared(b.as_int(), a.real);
    return other_way < 0   ? std::partial_ordering::greater
           : other_way > 0 ? std::partial_ordering::less
                           : other_way;
  }
  return a.real <=> b.real;
}

// ---- Dict ----

namespace {

// Numbers, then texts, then none, then tuples.
int rank(const Value& key) {
  if (key.is_number()) return 0;
  if (key.is_string()) return 1;
  if (key.is(Kind::kNone) || key.is_undefined()) return 2;
  return 3;
}

bool is_nan(const Value& number) { return number.is(Kind::kFloat) && std::isnan(number.real); }

// REQUIRES: both are keys.
bool key_before(const Value& a, const Value& b) {
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  if (rank(a) == 0) {
    if (is_nan(a) || is_nan(b)) return is_nan(a) && !is_nan(b);
    return compared_numbers(a, b) < 0;
  }
  if (rank(a) == 1) return a.text() < b.text();
  if (rank(a) == 2) return a.kind < b.kind;
  return std::lexicographical_compare(a.list->items.begin(), a.list->items.end(),
                                      b.list->items.begin(), b.list->items.end(), key_before);
}

bool same_key(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return a.text() == b.text();
  return !key_before(a, b) && !key_before(b, a);
}

// Throws for what is no key, and counts what it takes to compare it.
void require_key(const Value& key, bool in_tuple, Memory& memory) {
  memory.spend(1);
  if (key.is_string()) memory.spend_bytes(key.size);
  if (rank(key) < 3) return;
  if (!key.is(Kind::kTuple)) refuse(fmt::format("unhashable type: '{}'", type_name(key)));
  if (in_tuple) unsupported("a key of tuples in tuples is not supported");
  for (const Value& item : key.list->items) require_key(item, true, memory);
}

}  // namespace

bool KeyBefore::operator()(const Value& a, const Value& b) const { return key_before(a, b); }

const Value* Dict::find(const Value& key, Memory& memory) const {
  require_key(key, false, memory);
  if (index_.empty()) {
    for (const Entry& entry : entries) {
      if (same_key(entry.first, key)) return &entry.second;
    }
    return nullptr;
  }
  const auto at = index_.find(key);
  return at == index_.end() ? nullptr : &entries[at->second].second;
}

void Dict::set(const Value& key, const Value& value, Memory& memory) {
  if (const Value* there = find(key, memory)) {
    const_cast<Value&>(*there) = value;
    return;
  }
  entries.emplace_back(key, value);
  if (entries.size() <= kFew) return;
  for (std::size_t i = index_.size(); i < entries.size(); ++i) index_.emplace(entries[i].first, i);
}

// ---- Values ----

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return value.list->name;
    case Kind::kIterator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
  }
  return "";
}

bool truth(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.truth;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
      return value.size != 0;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !value.list->items.empty();
    case Kind::kDict:
      return !value.dict->entries.empty();
    default:
      return true;
  }
}

// ---- Memory ----

void Memory::spend(std::size_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) refuse(fmt::format("takes more than {} steps", kMaxSteps));
}

Value Memory::text(std::string text) {
  if (text.size() > kMaxOutput)
    refuse(fmt::format("makes a text of more than {} bytes", kMaxOutput));
  spend(1 + text.size() / kBytesPerStep);
  return Value(std::string_view(texts_.emplace_back(std::move(text))));
}

Value Memory::undefined(std::string why) {
  spend(1 + why.size() / kBytesPerStep);
  return Value::undefined(texts_.emplace_back(std::move(why)));
}

Value Memory::list(Kind of, std::vector<Value> items, std::string_view name) {
  spend(1 + items.size());
  List& list = lists_.emplace_back();
  list.items = std::move(items);
  list.name = name;
  return Value(of, list);
}

Value Memory::pair(const Value& first, const Value& second) {
  return list(Kind::kTuple, {first, second});
}

Dict& Memory::dict() {
  spend();
  return dicts_.emplace_back();
}

Namespace& Memory::space() {
  spend();
  return spaces_.emplace_back();
}

Descent::Descent(std::size_t& depth, std::size_t most, const char* what) : depth_(depth) {
  if (depth >= most) refuse(fmt::format("{} deeper than {} levels", what, most));
  ++depth;
}

}  // namespace quantspec::jinja
