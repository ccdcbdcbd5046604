// Methods of lists, tuples, dicts and loops; those of texts are in text_methods.cc.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"

namespace quantspec::jinja {

namespace {

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 47> kOfTexts = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr std::array<std::string_view, 3> kOfLists = {"copy", "count", "index"};
constexpr std::array<std::string_view, 8> kChangesLists = {"append", "clear",  "extend",  "insert",
                                                           "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 6> kOfDicts = {"copy",  "fromkeys", "get",
                                                      "items", "keys",     "values"};
constexpr std::array<std::string_view, 5> kChangesDicts = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
constexpr std::array<std::string_view, 2> kOfTuples = {"count", "index"};
constexpr std::array<std::string_view, 2> kOfLoops = {"cycle", "changed"};

Value call_list_method(Interpreter& in, const Value& self, std::string_view name,
                       const CallArguments& arguments) {
  const std::vector<Value>& items = self.list->items;
  if (name == "copy") return in.memory().list(self.kind, items);
  const auto bound = arguments.bind(name, {"value", "start", "stop"});
  const Value wanted = require(bound[0], name);
  if (name == "count") {
    std::int64_t num = 0;
    for (const Value& item : items) num += equal(item, wanted, in.memory());
    return Value(num);
  }
  const auto size = static_cast<std::int64_t>(items.size());
  const auto place = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const std::int64_t stop = place(int_of(bound[2], size, name));
  for (std::int64_t i = place(int_of(bound[1], 0, name)); i < stop; ++i) {
    if (equal(items[static_cast<std::size_t>(i)], wanted, in.memory())) return Value(i);
  }
  refuse("index: the value is not in the list");
}

Value call_dict_method(Interpreter& in, const Value& self, std::string_view name,
                       const CallArguments& arguments) {
  Memory& memory = in.memory();
  const Dict& dict = *self.dict;
  if (name == "get") {
    const auto bound = arguments.bind(name, {"key", "default"});
    const Value* found = dict.find(require(bound[0], name), memory);
    return found != nullptr ? *found : bound[1].value_or(Value::none());
  }
  if (name == "fromkeys") unsupported("dict.fromkeys() is not supported");
  (void)arguments.bind(name, {});
  memory.spend(dict.entries.size());
  if (name == "copy") return Value(memory.dict() = dict);
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries)
    items.push_back(name == "keys" ? key : name == "values" ? value : memory.pair(key, value));
  const char* type = name == "keys" ? "dict_keys" : name == "values" ? "dict_values" : "dict_items";
  return memory.list(Kind::kView, std::move(items), type);
}

}  // namespace

MethodKind method_kind(const Value& value, std::string_view name) {
  switch (value.kind) {
    case Kind::kString:
      return is_one_of(name, kOfTexts) ? MethodKind::kThere : MethodKind::kNone;
    case Kind::kList:
      if (is_one_of(name, kChangesLists)) return MethodKind::kRefused;
      return is_one_of(name, kOfLists) ? MethodKind::kThere : MethodKind::kNone;
    case Kind::kTuple:
    case Kind::kRange:
      return is_one_of(name, kOfTuples) ? MethodKind::kThere : MethodKind::kNone;
    case Kind::kDict:
      if (is_one_of(name, kChangesDicts)) return MethodKind::kRefused;
      return is_one_of(name, kOfDicts) ? MethodKind::kThere : MethodKind::kNone;
    case Kind::kLoop:
      return is_one_of(name, kOfLoops) ? MethodKind::kThere : MethodKind::kNone;
    default:
      return MethodKind::kNone;
  }
}

Value call_method(Interpreter& in, const Value& self, std::string_view name,
                  const CallArguments& arguments) {
  switch (self.kind) {
    case Kind::kString:
      in.memory().spend_bytes(self.size);
      return call_text_method(in, self.text(), name, arguments);
    case Kind::kDict:
      return call_dict_method(in, self, name, arguments);
    case Kind::kLoop:
      if (name == "cycle") return self.loop->cycled(arguments.positional);
      return Value(self.loop->changed(arguments.positional));
    default:
      return call_list_method(in, self, name, arguments);
  }
}

}  // namespace quantspec::jinja
