// Filters of texts and numbers, and what all filters go through.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/shown.h"
#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/text.h"
#include "chat/written.h"

namespace quantspec::jinja {

Value Interpreter::filtered(std::string_view name, const Value& value,
                            const CallArguments& arguments) {
  const Descent descent(filters_, kMaxDepth, "filters call each other");
  arguments.spend(memory_);
  if (value.is_string()) memory_.spend_bytes(value.size);
  Filter filter = text_filter(name);
  if (filter == nullptr) filter = list_filter(name);
  if (filter == nullptr) unsupported(fmt::format("the filter {} is not supported", shown(name)));
  return filter(*this, value, arguments);
}

namespace {

// str(value), unless it is one.
std::string_view soft_text(Interpreter& in, const Value& value) {
  if (value.is_string()) {
    in.memory().spend_bytes(value.size);
    return value.text();
  }
  return in.text(written(value, in.memory())).text();
}

Value trim(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("trim", {"chars"});
  const std::string_view text = soft_text(in, value);
  if (!is_given(bound[0])) return Value(strip(text, Side::kBoth));
  const std::string_view chars = text_of(bound[0], "trim");
  in.memory().spend(chars.size());
  return Value(strip(text, Side::kBoth, chars));
}

// A word begins behind white space and brackets.
Value title_filter(Interpreter& in, const Value& value, const CallArguments&) {
  std::string out;
  bool begins = true;
  std::string_view rest = soft_text(in, value);
  while (!rest.empty()) {
    const Utf8Step step = next_utf8(rest);
    const auto separates = [](char32_t code) {
      return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' ||
             code == '<';
    };
    if (begins || separates(step.code)) {
      out += upper(rest.substr(0, step.length));
      begins = separates(step.code);
      rest.remove_prefix(step.length);
      continue;
    }
    std::size_t end = 0;
    while (end < rest.size() && !separates(next_utf8(rest.substr(end)).code))
      end += next_utf8(rest.substr(end)).length;
    out += lower(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  return in.text(std::move(out));
}

Value replace_filter(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("replace", {"old", "new", "count"});
  const std::string_view from = soft_text(in, require(bound[0], "replace"));
  const std::string_view to = soft_text(in, require(bound[1], "replace"));
  const std::int64_t most = is_given(bound[2]) ? int_of(bound[2], -1, "replace") : -1;
  return replaced(in, soft_text(in, value), from, to, most);
}

Value indent(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("indent", {"width", "first", "blank"});
  std::string by(4, ' ');
  if (bound[0] && bound[0]->is_string()) {
    by = bound[0]->text();
  } else if (bound[0]) {
    const std::int64_t width = int_of(bound[0], 4, "indent");
    if (width > 1000) refuse("indent takes a width of up to 1000");
    by.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  const bool blank = bool_of(bound[2], false);
  std::string out = bool_of(bound[1], false) ? by : std::string();
  bool begins = true;
  const std::string text = std::string(text_of(value, "indent")) + "\n";
  for (const std::string_view line : split_lines(text, false)) {
    if (!begins) out += '\n';
    if (!begins && (blank || !line.empty())) out += by;
    begins = false;
    out += line;
    if (out.size() > kMaxOutput) break;  // which text() refuses
  }
  return in.text(std::move(out));
}

Value to_json(Interpreter& in, const Value& value, const CallArguments& arguments) {
  const auto bound =
      arguments.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = bool_of(bound[0], false);
  if (is_given(bound[1])) {
    if (bound[1]->is_string()) {
      style.indent = bound[1]->text();
    } else {
      const std::int64_t width = int_of(bound[1], 0, "tojson");
      if (width > 1000) refuse("tojson takes an indent of up to 1000");
      style.indent.emplace(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
    if (style.indent->size() > 1000) refuse("tojson takes an indent of up to 1000");
  }
  if (is_given(bound[2])) {
    const std::vector<Value> pair = iterated(*bound[2], in.memory());
    if (pair.size() != 2) refuse("tojson takes two separators");
    style.item_separator = text_of(pair[0], "tojson");
    style.key_separator = text_of(pair[1], "tojson");
  }
  style.sorted = bool_of(bound[3], false);
  return in.text(written_json(value, style, in.memory()));
}

Value default_filter(Interpreter&, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("default", {"default_value", "boolean"});
  const bool stays = bool_of(bound[1], false) ? truth(value) : !value.is_undefined();
  return stays ? value : bound[0].value_or(Value(std::string_view()));
}

// ---- Numbers ----

std::string without_marks(std::string_view text) {
  std::string out(strip(text, Side::kBoth));
  if (out.starts_with('+')) out.erase(0, 1);
  std::erase(out, '_');
  return out;
}

std::optional<double> parse_real(std::string_view text) {
  const std::string digits = without_marks(text);
  double number = 0;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (end.ec == std::errc::result_out_of_range) refuse("a number out of range");
  if (end.ec != std::errc() || end.ptr != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Value truncated(double number) {
  if (!(std::fabs(number) < 9.2e18)) refuse("an integer of more than 64 bits");
  return Value(static_cast<std::int64_t>(number));
}

Value to_int(Interpreter&, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("int", {"default", "base"});
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (value.is_integer()) return Value(value.as_int());
  if (value.is(Kind::kFloat)) return truncated(value.real);
  if (value.is_string()) {
    const std::int64_t base = int_of(bound[1], 10, "int");
    if (base < 2 || base > 36) unsupported("int takes a base of 2 to 36");
    std::string digits = without_marks(value.text());
    if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) digits.erase(0, 2);
    std::int64_t number = 0;
    const char* last = digits.data() + digits.size();
    const auto end = std::from_chars(digits.data(), last, number, static_cast<int>(base));
    if (end.ec == std::errc::result_out_of_range) refuse("an integer of more than 64 bits");
    if (end.ec == std::errc() && end.ptr == last) return Value(number);
    if (const std::optional<double> real = parse_real(value.text())) return truncated(*real);
  }
  return bound[0].value_or(Value(std::int64_t{0}));
}

Value to_float(Interpreter&, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("float", {"default"});
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (value.is_number()) return Value(value.as_float());
  if (value.is_string()) {
    if (const std::optional<double> real = parse_real(value.text())) return Value(*real);
  }
  return bound[0].value_or(Value(0.0));
}

Value absolute(Interpreter&, const Value& value, const CallArguments&) {
  if (value.is(Kind::kFloat)) return Value(std::fabs(value.real));
  return value.is_integer() && value.as_int() >= 0 ? Value(value.as_int()) : negated(value);
}

Value round_filter(Interpreter&, const Value& value, const CallArguments& arguments) {
  const auto bound = arguments.bind("round", {"precision", "method"});
  const std::int64_t precision = int_of(bound[0], 0, "round");
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (!value.is_number()) refuse("round needs a number");
  if (precision < -18 || precision > 100) unsupported("round takes a precision of -18 to 100");
  const std::string_view method = bound[1] ? text_of(bound[1], "round") : "common";
  const double number = value.as_float(), scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method == "floor") return Value(std::floor(number * scale) / scale);
  if (method != "common") refuse("method must be common, ceil or floor");
  if (value.is_integer() && precision >= 0) return Value(value.as_int());
  if (precision < 0) {
    const double rounded = std::nearbyint(number * scale) / scale;
    return value.is_integer() ? truncated(rounded) : Value(rounded);
  }
  if (!std::isfinite(number)) return value;
  return Value(*parse_real(fmt::format("{:.{}f}", number, precision)));
}

Value escape(Interpreter& in, const Value& value, const CallArguments&) {
  if (value.is_markup) return value;
  const std::string_view text = soft_text(in, value);
  in.memory().spend_bytes(5 * text.size());
  Value out = in.text(escaped_markup(text));
  out.is_markup = true;
  return out;
}

Value center(Interpreter& in, const Value& value, const CallArguments& arguments) {
  CallArguments width;
  width.positional.push_back(
      arguments.bind("center", {"width"})[0].value_or(Value(std::int64_t{80})));
  return call_text_method(in, soft_text(in, value), "center", width);
}

Value format(Interpreter& in, const Value& value, const CallArguments& arguments) {
  Value values = in.memory().list(Kind::kTuple, arguments.positional);
  if (!arguments.named.empty()) {
    Dict& dict = in.memory().dict();
    for (const auto& [name, one] : arguments.named) dict.set(Value(name), one, in.memory());
    values = Value(dict);
  }
  return in.text(percent_formatted(soft_text(in, value), values, in.memory()));
}

}  // namespace

Filter text_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> all = {
      {"trim", trim},
      {"title", title_filter},
      {"replace", replace_filter},
      {"indent", indent},
      {"tojson", to_json},
      {"default", default_filter},
      {"d", default_filter},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round_filter},
      {"escape", escape},
      {"e", escape},
      {"center", center},
      {"format", format},
      {"upper", [](Interpreter& in, const Value& value,
                   const CallArguments&) { return in.text(upper(soft_text(in, value))); }},
      {"lower", [](Interpreter& in, const Value& value,
                   const CallArguments&) { return in.text(lower(soft_text(in, value))); }},
      {"capitalize",
       [](Interpreter& in, const Value& value, const CallArguments&) {
         return in.text(capitalize(soft_text(in, value)));
       }},
      {"string",
       [](Interpreter& in, const Value& value, const CallArguments&) {
         return value.is_string() ? value : Value(soft_text(in, value));
       }},
      {"safe",
       [](Interpreter& in, const Value& value, const CallArguments&) {
         Value out = Value(soft_text(in, value));
         out.is_markup = true;
         return out;
       }},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace quantspec::jinja
