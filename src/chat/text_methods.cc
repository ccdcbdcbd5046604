// Methods of texts.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/text.h"

namespace quantspec::jinja {

namespace {

// A call of self.name(arguments).
struct Call {
  Interpreter& in;
  std::string_view self;
  std::string_view name;
  const CallArguments& arguments;

  std::vector<Argument> bind(std::initializer_list<std::string_view> parameters) const {
    return arguments.bind(name, parameters);
  }
  Value list_of(const std::vector<std::string_view>& parts, Kind kind = Kind::kList) const {
    in.memory().spend(parts.size());
    std::vector<Value> items;
    for (const std::string_view part : parts) items.emplace_back(part);
    return in.memory().list(kind, std::move(items));
  }
};

Value strip_with(const Call& call, Side side) {
  const auto bound = call.bind({"chars"});
  if (!is_given(bound[0])) return Value(strip(call.self, side));
  const std::string_view chars = text_of(bound[0], call.name);
  call.in.memory().spend(chars.size());
  return Value(strip(call.self, side, chars));
}

Value split_with(const Call& call, bool from_right) {
  const auto bound = call.bind({"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (is_given(bound[0])) separator = text_of(bound[0], call.name);
  if (separator && separator->empty()) refuse("empty separator");
  const std::int64_t most = int_of(bound[1], -1, call.name);
  return call.list_of(from_right ? rsplit(call.self, separator, most)
                                 : split(call.self, separator, most));
}

// The part of the text that [start, end) names, and its first character's number.
struct Part {
  std::string_view text;
  std::int64_t first;
  bool is_there;  // start is not behind end
};

Part part_of(const Call& call, const Argument& start, const Argument& end) {
  if (!is_given(start) && !is_given(end)) return {call.self, 0, true};
  const auto size = static_cast<std::int64_t>(num_characters(call.self));
  const auto place = [&](const Argument& bound, std::int64_t otherwise) {
    const std::int64_t at = is_given(bound) ? int_of(bound, 0, call.name) : otherwise;
    return std::max<std::int64_t>(at < 0 ? at + size : at, 0);
  };
  const std::int64_t from = place(start, 0), to = std::min(place(end, size), size);
  if (from > to) return {{}, from, false};
  const std::size_t first = byte_of(call.self, static_cast<std::size_t>(from));
  const std::string_view rest = call.self.substr(first);
  return {rest.substr(0, byte_of(rest, static_cast<std::size_t>(to - from))), from, true};
}

Value find_with(const Call& call, bool from_right, bool must_be_there) {
  const auto bound = call.bind({"sub", "start", "end"});
  const std::string_view what = text_of(bound[0], call.name);
  const Part part = part_of(call, bound[1], bound[2]);
  std::size_t at = part.text.npos;
  if (part.is_there && !from_right) at = find(part.text, what);
  if (part.is_there && from_right) {
    if (what.empty()) {
      at = part.text.size();
    } else if (const auto parts = rsplit(part.text, what, 1); parts.size() == 2) {
      at = parts[0].size();
    }
  }
  if (at != part.text.npos)
    return Value(part.first + static_cast<std::int64_t>(num_characters(part.text.substr(0, at))));
  if (must_be_there) refuse("substring not found");
  return Value(std::int64_t{-1});
}

Value affix_with(const Call& call, bool (*has)(std::string_view, std::string_view)) {
  const auto bound = call.bind({"affix", "start", "end"});
  const Part part = part_of(call, bound[1], bound[2]);
  const Value& affix = require(bound[0], call.name);
  if (!part.is_there) return Value(false);
  if (!affix.is(Kind::kTuple)) return Value(has(part.text, text_of(affix, call.name)));
  for (const Value& one : affix.list->items) {
    const std::string_view text = text_of(one, call.name);
    call.in.memory().spend(1 + std::min(text.size(), part.text.size()) / kBytesPerStep);
    if (has(part.text, text)) return Value(true);
  }
  return Value(false);
}

bool has_prefix(std::string_view text, std::string_view affix) { return text.starts_with(affix); }
bool has_suffix(std::string_view text, std::string_view affix) { return text.ends_with(affix); }

Value partition_with(const Call& call, bool from_right) {
  const std::string_view separator = text_of(call.bind({"sep"})[0], call.name);
  if (separator.empty()) refuse("empty separator");
  const auto parts = from_right ? rsplit(call.self, separator, 1) : split(call.self, separator, 1);
  if (parts.size() == 2) return call.list_of({parts[0], separator, parts[1]}, Kind::kTuple);
  if (from_right) return call.list_of({{}, {}, call.self}, Kind::kTuple);
  return call.list_of({call.self, {}, {}}, Kind::kTuple);
}

// center(), ljust(), rjust(), zfill(): what stands left and right of the text.
Value padded(const Call& call) {
  const auto bound = call.bind({"width", "fillchar"});
  const std::int64_t width = int_of(require(bound[0], call.name), 0, call.name);
  std::string_view fill = call.name == "zfill" ? "0" : " ";
  if (bound[1]) fill = text_of(bound[1], call.name);
  if (num_characters(fill) != 1) refuse("the fill character must be exactly one character long");
  const auto size = static_cast<std::int64_t>(num_characters(call.self));
  if (width <= size) return Value(call.self);
  if (static_cast<std::uint64_t>(width) > kMaxOutput / 4) refuse("a width of too many characters");
  const auto total = static_cast<std::size_t>(width - size);
  std::size_t left = 0;
  if (call.name == "rjust" || call.name == "zfill") left = total;
  if (call.name == "center") left = total / 2 + (total & static_cast<std::size_t>(width) & 1);
  std::string_view text = call.self;
  std::string out;
  if (call.name == "zfill" && (text.starts_with('-') || text.starts_with('+'))) {
    out += text.front();
    text.remove_prefix(1);
  }
  for (std::size_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (std::size_t i = left; i < total; ++i) out += fill;
  return call.in.text(std::move(out));
}

Value join_with(const Call& call) {
  std::string out;
  bool first = true;
  for (const Value& item :
       iterated(require(call.bind({"iterable"})[0], call.name), call.in.memory())) {
    if (!first) out += call.self;
    first = false;
    out += text_of(item, "join");
    if (out.size() > kMaxOutput) break;  // which text() refuses
  }
  return call.in.text(std::move(out));
}

Value replace_with(const Call& call) {
  const auto bound = call.bind({"old", "new", "count"});
  return replaced(call.in, call.self, text_of(bound[0], call.name), text_of(bound[1], call.name),
                  int_of(bound[2], -1, call.name));
}

using Method = Value (*)(const Call&);

const std::unordered_map<std::string_view, Method>& methods() {
  static const std::unordered_map<std::string_view, Method> all = {
      {"strip", [](const Call& c) { return strip_with(c, Side::kBoth); }},
      {"lstrip", [](const Call& c) { return strip_with(c, Side::kLeft); }},
      {"rstrip", [](const Call& c) { return strip_with(c, Side::kRight); }},
      {"split", [](const Call& c) { return split_with(c, false); }},
      {"rsplit", [](const Call& c) { return split_with(c, true); }},
      {"splitlines",
       [](const Call& c) {
         return c.list_of(split_lines(c.self, bool_of(c.bind({"keepends"})[0], false)));
       }},
      {"startswith", [](const Call& c) { return affix_with(c, has_prefix); }},
      {"endswith", [](const Call& c) { return affix_with(c, has_suffix); }},
      {"removeprefix",
       [](const Call& c) {
         const std::string_view affix = text_of(c.bind({"prefix"})[0], c.name);
         return Value(c.self.substr(c.self.starts_with(affix) ? affix.size() : 0));
       }},
      {"removesuffix",
       [](const Call& c) {
         const std::string_view affix = text_of(c.bind({"suffix"})[0], c.name);
         return Value(
             c.self.substr(0, c.self.size() - (c.self.ends_with(affix) ? affix.size() : 0)));
       }},
      {"find", [](const Call& c) { return find_with(c, false, false); }},
      {"rfind", [](const Call& c) { return find_with(c, true, false); }},
      {"index", [](const Call& c) { return find_with(c, false, true); }},
      {"rindex", [](const Call& c) { return find_with(c, true, true); }},
      {"count",
       [](const Call& c) {
         const auto bound = c.bind({"sub", "start", "end"});
         const Part part = part_of(c, bound[1], bound[2]);
         const std::string_view what = text_of(bound[0], c.name);
         return Value(static_cast<std::int64_t>(part.is_there ? count(part.text, what) : 0));
       }},
      {"replace", replace_with},
      {"join", join_with},
      {"partition", [](const Call& c) { return partition_with(c, false); }},
      {"rpartition", [](const Call& c) { return partition_with(c, true); }},
      {"center", padded},
      {"ljust", padded},
      {"rjust", padded},
      {"zfill", padded},
      {"upper", [](const Call& c) { return c.in.text(upper(c.self)); }},
      {"lower", [](const Call& c) { return c.in.text(lower(c.self)); }},
      {"title", [](const Call& c) { return c.in.text(title(c.self)); }},
      {"capitalize", [](const Call& c) { return c.in.text(capitalize(c.self)); }},
      {"swapcase", [](const Call& c) { return c.in.text(swap_case(c.self)); }},
      {"format",
       [](const Call& c) { return c.in.text(brace_formatted(c.in, c.self, c.arguments)); }},
  };
  return all;
}

}  // namespace

Value replaced(Interpreter& in, std::string_view text, std::string_view from, std::string_view to,
               std::int64_t most) {
  // What it makes is known before it is made.
  const std::size_t num = count(text, from);
  const std::size_t times = most < 0 ? num : std::min(num, static_cast<std::size_t>(most));
  in.memory().spend_bytes(text.size());
  if (times > 0 && to.size() > kMaxOutput / times)
    refuse(fmt::format("makes a text of more than {} bytes", kMaxOutput));
  return in.text(replace(text, from, to, most));
}

Value call_text_method(Interpreter& in, std::string_view self, std::string_view name,
                       const CallArguments& arguments) {
  if (const std::optional<bool> answer = ask(self, name)) {
    (void)arguments.bind(name, {});
    return Value(*answer);
  }
  const auto found = methods().find(name);
  if (found == methods().end()) unsupported(fmt::format("str.{}() is not supported", name));
  return found->second(Call{in, self, name, arguments});
}

}  // namespace quantspec::jinja
