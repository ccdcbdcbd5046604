// Filters of lists and dicts.
#include <fmt/format.h>

#include <unordered_map>

#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/text.h"
#include "chat/written.h"

namespace quantspec::jinja {

namespace {

// What makes a key of an element: an attribute ("a.b.0"), in lower case where case does not count.
struct Getter {
  Interpreter& in;
  Argument attribute;
  Argument otherwise = std::nullopt;
  bool ignores_case = false;

  Value operator()(Value value) const {
    if (is_given(attribute)) value = part(value, *attribute);
    return folded(value);
  }
  Value folded(const Value& value) const {
    return ignores_case && value.is_string() ? in.text(lower(value.text())) : value;
  }

 private:
  Value step(const Value& value, const Value& index) const {
    const Value found = in.item(value, index);
    return found.is_undefined() && is_given(otherwise) ? *otherwise : found;
  }
  Value part(Value value, const Value& path) const {
    if (!path.is_string()) return step(value, path);
    for (const std::string_view name : split(path.text(), ".", -1)) {
      in.memory().spend();
      CallArguments none;
      const bool is_number = ask(name, "isdigit").value_or(false) && name.size() < 10;
      const Value index = is_number ? in.filtered("int", Value(name), none) : Value(name);
      value = step(value, index);
    }
    return value;
  }
};

std::vector<Value> mapped(const std::vector<Value>& items, const Getter& getter) {
  std::vector<Value> out;
  for (const Value& item : items) out.push_back(getter(item));
  return out;
}

Value iterator(Interpreter& in, std::vector<Value> items) {
  return in.memory().list(Kind::kIterator, std::move(items));
}

Value first(Interpreter& in, const Value& value, const CallArguments&) {
  if (value.is(Kind::kIterator)) {
    List& list = *value.list;
    if (list.next < list.items.size()) return list.items[list.next++];
  } else if (value.is_string()) {
    if (value.size > 0) return Value(value.text().substr(0, next_utf8(value.text()).length));
  } else {
    const std::vector<Value> items = iterated(value, in.memory());
    if (!items.empty()) return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last(Interpreter& in, const Value& value, const CallArguments&) {
  if (value.is(Kind::kIterator)) refuse("'generator' object is not reversible");
  const std::vector<Value> items = iterated(value, in.memory());
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value length_filter(Interpreter& in, const Value& value, const CallArguments&) {
  return Value(static_cast<std::int64_t>(length(value, in.memory())));
}

Value list(Interpreter& in, const Value& value, const CallArguments&) {
  return in.memory().list(Kind::kList, iterated(value, in.memory()));
}

Value join(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("join", {"d", "attribute"});
  const std::string separator = bound[0] ? written(*bound[0], in.memory()) : "";
  const Getter getter{in, bound[1]};
  std::string out;
  bool begins = true;
  for (const Value& item : iterated(value, in.memory())) {
    if (!begins) out += separator;
    begins = false;
    const Value part = getter(item);
    if (part.is_string()) {
      out += part.text();
    } else {
      out += written(part, in.memory());
    }
    if (out.size() > kMaxOutput) break;  // which text() refuses
  }
  return in.text(std::move(out));
}

Value items(Interpreter& in, const Value& value, const CallArguments&) {
  if (value.is_undefined()) return iterator(in, {});
  if (!value.is(Kind::kDict)) refuse("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, one] : value.dict->entries) pairs.push_back(in.memory().pair(key, one));
  return iterator(in, std::move(pairs));
}

Value dict_sort(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("dictsort", {"case_sensitive", "by", "reverse"});
  const std::string_view by = bound[1] ? text_of(bound[1], "dictsort") : "key";
  if (by != "key" && by != "value") refuse("You can only sort by either \"key\" or \"value\"");
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (!value.is(Kind::kDict)) refuse("dictsort needs a dict");
  const Getter getter{in, std::nullopt, std::nullopt, !bool_of(bound[0], false)};
  std::vector<Value> keys, sorted;
  for (const auto& [key, one] : value.dict->entries)
    keys.push_back(getter(by == "key" ? key : one));
  for (const std::size_t at : sorted_order(keys, bool_of(bound[2], false), in.memory())) {
    const auto& [key, one] = value.dict->entries[at];
    sorted.push_back(in.memory().pair(key, one));
  }
  return in.memory().list(Kind::kList, std::move(sorted));
}

Value sort(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("sort", {"reverse", "case_sensitive", "attribute"});
  const bool ignores_case = !bool_of(bound[1], false);
  const std::vector<Value> all = iterated(value, in.memory());
  std::vector<Value> attributes;
  if (is_given(bound[2]) && bound[2]->is_string()) {
    for (const std::string_view name : split(bound[2]->text(), ",", -1))
      attributes.emplace_back(name);
  }
  std::vector<Value> keys;
  for (const Value& item : all) {
    if (attributes.empty()) {
      keys.push_back(Getter{in, bound[2], std::nullopt, ignores_case}(item));
      continue;
    }
    std::vector<Value> parts;
    for (const Value& name : attributes)
      parts.push_back(Getter{in, name, std::nullopt, ignores_case}(item));
    keys.push_back(in.memory().list(Kind::kList, std::move(parts)));
  }
  std::vector<Value> sorted;
  for (const std::size_t at : sorted_order(keys, bool_of(bound[0], false), in.memory()))
    sorted.push_back(all[at]);
  return in.memory().list(Kind::kList, std::move(sorted));
}

Value unique(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("unique", {"case_sensitive", "attribute"});
  const Getter getter{in, bound[1], std::nullopt, !bool_of(bound[0], false)};
  Dict& seen = in.memory().dict();
  std::vector<Value> out;
  for (const Value& item : iterated(value, in.memory())) {
    const Value key = getter(item);
    if (seen.find(key, in.memory()) != nullptr) continue;
    seen.set(key, Value(true), in.memory());
    out.push_back(item);
  }
  return iterator(in, std::move(out));
}

Value extreme(Interpreter& in, const Value& value, const CallArguments& arguments,
              Comparison better) {
  const auto bound = arguments.bind("min and max", {"case_sensitive", "attribute"});
  const Getter getter{in, bound[1], std::nullopt, !bool_of(bound[0], false)};
  const std::vector<Value> all = iterated(value, in.memory());
  if (all.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  Value best_key = getter(all[0]);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Value key = getter(all[i]);
    if (!compare(better, key, best_key, in.memory())) continue;
    best = i;
    best_key = key;
  }
  return all[best];
}

Value sum(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("sum", {"attribute", "start"});
  const Getter getter{in, bound[0]};
  Value total = bound[1].value_or(Value(std::int64_t{0}));
  if (total.is_string()) refuse("sum() can't sum strings");
  for (const Value& item : iterated(value, in.memory()))
    total = calculate(Arithmetic::kAdd, total, getter(item), in.memory());
  return total;
}

Value reverse(Interpreter& in, const Value& value, const CallArguments&) {
  std::vector<Value> all = iterated(value, in.memory());
  std::vector<Value> back(all.rbegin(), all.rend());
  if (!value.is_string()) {
    return value.is(Kind::kIterator) ? in.memory().list(Kind::kList, std::move(back))
                                     : iterator(in, std::move(back));
  }
  std::string out;
  for (const Value& character : back) out += character.text();
  return in.text(std::move(out));
}

Value batch(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("batch", {"linecount", "fill_with"});
  const std::int64_t size = int_of(require(bound[0], "batch"), 1, "batch");
  if (size < 1 || size > 100'000) refuse("batch takes a size of 1 to 100000");
  std::vector<Value> lines, line;
  for (const Value& item : iterated(value, in.memory())) {
    if (static_cast<std::int64_t>(line.size()) == size)
      lines.push_back(in.memory().list(Kind::kList, std::exchange(line, {})));
    line.push_back(item);
  }
  if (!line.empty()) {
    if (is_given(bound[1])) line.resize(static_cast<std::size_t>(size), *bound[1]);
    lines.push_back(in.memory().list(Kind::kList, std::move(line)));
  }
  return iterator(in, std::move(lines));
}

Value group_by(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("groupby", {"attribute", "default", "case_sensitive"});
  require(bound[0], "groupby");
  const Getter key_of{in, bound[0], bound[1], !bool_of(bound[2], false)};
  const Getter shown_key{in, bound[0], bound[1]};
  const std::vector<Value> all = iterated(value, in.memory());
  const std::vector<Value> keys = mapped(all, key_of);
  std::vector<Value> groups, group;
  const std::vector<std::size_t> order = sorted_order(keys, false, in.memory());
  for (std::size_t i = 0; i < order.size(); ++i) {
    group.push_back(all[order[i]]);
    if (i + 1 < order.size() && equal(keys[order[i]], keys[order[i + 1]], in.memory())) continue;
    const Value key = shown_key(group.front());
    const Value members = in.memory().list(Kind::kList, std::exchange(group, {}));
    groups.push_back(in.memory().list(Kind::kTuple, {key, members}, kGroup));
  }
  return in.memory().list(Kind::kList, std::move(groups));
}

// The arguments behind the first `num`, which are for a filter or a test.
CallArguments behind(const CallArguments& arguments, std::size_t num, Memory& memory) {
  memory.spend(arguments.positional.size() + arguments.named.size());
  CallArguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + std::ptrdiff_t(num));
  return rest;
}

Value map(Interpreter& in, const Value& value, const CallArguments& arguments) {
  if (!truth(value)) return iterator(in, {});
  const std::vector<Value> all = iterated(value, in.memory());
  if (arguments.positional.empty()) {
    const auto bound = arguments.bind("map", {"attribute", "default"});
    if (!bound[0]) refuse("map requires a filter argument");
    return iterator(in, mapped(all, Getter{in, bound[0], bound[1]}));
  }
  const std::string_view name = text_of(arguments.positional[0], "map");
  const CallArguments rest = behind(arguments, 1, in.memory());
  std::vector<Value> out;
  for (const Value& item : all) out.push_back(in.filtered(name, item, rest));
  return iterator(in, std::move(out));
}

// select and its kin: those elements for which a test of them, or of an attribute, says `wanted`.
Value chosen(Interpreter& in, const Value& value, const CallArguments& arguments, bool of_attribute,
             bool wanted) {
  if (!truth(value)) return iterator(in, {});
  const std::vector<Argument> given(arguments.positional.begin(), arguments.positional.end());
  if (of_attribute && given.empty()) refuse("Missing parameter for attribute name");
  const Getter getter{in, of_attribute ? given[0] : std::nullopt};
  const std::size_t at = of_attribute ? 1 : 0;
  std::vector<Value> out;
  const CallArguments rest =
      given.size() > at ? behind(arguments, at + 1, in.memory()) : CallArguments();
  for (const Value& item : iterated(value, in.memory())) {
    const Value subject = getter(item);
    const bool says = given.size() > at ? in.tested(text_of(*given[at], "a test"), subject, rest)
                                        : truth(subject);
    if (says == wanted) out.push_back(item);
  }
  return iterator(in, std::move(out));
}

Value attribute(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const std::string_view name = text_of(arguments.bind("attr", {"name"})[0], "attr");
  if (value.is(Kind::kDict) && method_kind(value, name) == MethodKind::kNone)
    return in.memory().undefined(fmt::format("'dict' has no attribute '{}'", name));
  return in.attribute(value, name);
}

}  // namespace

Filter list_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> all = {
      {"first", first},
      {"last", last},
      {"length", length_filter},
      {"count", length_filter},
      {"list", list},
      {"join", join},
      {"items", items},
      {"dictsort", dict_sort},
      {"sort", sort},
      {"unique", unique},
      {"sum", sum},
      {"reverse", reverse},
      {"batch", batch},
      {"groupby", group_by},
      {"map", map},
      {"attr", attribute},
      {"min", [](Interpreter& in, const Value& v,
                 const CallArguments& a) { return extreme(in, v, a, Comparison::kLess); }},
      {"max", [](Interpreter& in, const Value& v,
                 const CallArguments& a) { return extreme(in, v, a, Comparison::kGreater); }},
      {"select", [](Interpreter& in, const Value& v,
                    const CallArguments& a) { return chosen(in, v, a, false, true); }},
      {"reject", [](Interpreter& in, const Value& v,
                    const CallArguments& a) { return chosen(in, v, a, false, false); }},
      {"selectattr", [](Interpreter& in, const Value& v,
                        const CallArguments& a) { return chosen(in, v, a, true, true); }},
      {"rejectattr", [](Interpreter& in, const Value& v,
                        const CallArguments& a) { return chosen(in, v, a, true, false); }},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace quantspec::jinja
