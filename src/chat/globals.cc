// The functions that every template sees.
#include <fmt/format.h>

#include <unordered_map>

#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/written.h"

namespace quantspec::jinja {

namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as jinja2's sandbox

Value range(Interpreter& in, const CallArguments& arguments) {
  auto bound = arguments.bind("range", {"start", "stop", "step"});
  if (!bound[1]) bound = {Value(std::int64_t{0}), bound[0], std::nullopt};
  require(bound[1], "range");
  const std::int64_t start = int_of(bound[0], 0, "range"), stop = int_of(bound[1], 0, "range");
  const std::int64_t step = int_of(bound[2], 1, "range");
  if (step == 0) refuse("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      refuse(fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
                         kMaxRange));
    }
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  std::string name = fmt::format("range({}, {}", start, stop);
  name += step == 1 ? ")" : fmt::format(", {})", step);
  return in.memory().list(Kind::kRange, std::move(items), in.text(std::move(name)).text());
}

Value dict(Interpreter& in, const CallArguments& arguments) {
  if (arguments.positional.size() > 1) refuse("dict expected at most 1 argument");
  Memory& memory = in.memory();
  Dict& dict = memory.dict();
  for (const Value& from : arguments.positional) {
    if (from.is(Kind::kDict)) {
      memory.spend(from.dict->entries.size());
      for (const auto& [key, value] : from.dict->entries) dict.set(key, value, memory);
      continue;
    }
    for (const Value& entry : iterated(from, memory)) {
      const std::vector<Value> pair = iterated(entry, memory);
      if (pair.size() != 2) refuse("dict() needs pairs of a key and a value");
      dict.set(pair[0], pair[1], memory);
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(Value(name), value, memory);
  return Value(dict);
}

Value make_namespace(Interpreter& in, const CallArguments& arguments) {
  const Value from = dict(in, arguments);
  Namespace& space = in.memory().space();
  in.memory().spend(from.dict->entries.size());
  for (const auto& [key, value] : from.dict->entries) {
    if (!key.is_string()) refuse("a namespace's attributes have names that are str");
    space.attributes.emplace_back(key.text(), value);
  }
  return Value(space);
}

Value raise_exception(Interpreter& in, const CallArguments& arguments) {
  refuse(written(require(arguments.bind("raise_exception", {"message"})[0], "raise_exception"),
                 in.memory()));
}

Value strftime_now(Interpreter& in, const CallArguments& arguments) {
  const std::string format(text_of(arguments.bind("strftime_now", {"format"})[0], "strftime_now"));
  if (format.empty()) return Value(std::string_view());
  char buffer[1024];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &in.now());
  if (size == 0) refuse("strftime_now makes a text that is empty or of more than 1023 bytes");
  return in.text(std::string(buffer, size));
}

}  // namespace

Callable::Function global_function(std::string_view name) {
  static const std::unordered_map<std::string_view, Callable::Function> all = {
      {"range", range},
      {"dict", dict},
      {"namespace", make_namespace},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace quantspec::jinja
