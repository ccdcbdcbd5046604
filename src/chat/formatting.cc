// text % values, and text.format(values), with the conversions of numbers and texts that both have.
#include <fmt/format.h>

#include <cmath>

#include "chat/arguments.h"
#include "chat/interpreter.h"
#include "chat/operators.h"
#include "chat/text.h"
#include "chat/written.h"

namespace quantspec::jinja {

namespace {

constexpr std::size_t kMostWidth = 1000;

struct Style {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  std::size_t width = 0;
  std::optional<std::size_t> precision;
};

std::size_t take_number(std::string_view& text) {
  std::size_t number = 0;
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    number = number * 10 + static_cast<std::size_t>(text.front() - '0');
    if (number > kMostWidth) unsupported(fmt::format("a width of more than {}", kMostWidth));
    text.remove_prefix(1);
  }
  return number;
}

// A number's sign and digits, by the style and Python's letter for the conversion.
std::string number_text(const Value& value, char type, const Style& style) {
  std::string format = "{:";
  if (style.plus) format += '+';
  if (style.space && !style.plus) format += ' ';
  if (style.alternate) format += '#';
  if (type == 'd' || type == 'i' || type == 'u') {
    std::int64_t number = 0;
    if (value.is(Kind::kFloat)) {
      if (!(std::fabs(value.real) < 9e18)) refuse("a number that is no integer of 64 bits");
      number = static_cast<std::int64_t>(value.real);
    } else {
      number = value.as_int();
    }
    return fmt::format(fmt::runtime(format + "d}"), number);
  }
  if (type == 'x' || type == 'X' || type == 'o') {
    if (!value.is_integer()) refuse(fmt::format("%{} format: an integer is required", type));
    if (style.alternate && type == 'o') unsupported("%#o is not supported");
    return fmt::format(fmt::runtime(format + type + "}"), value.as_int());
  }
  format += fmt::format(".{}{}}}", style.precision.value_or(6), type);
  return fmt::format(fmt::runtime(format), value.as_float());
}

std::string padded(std::string text, const Style& style, bool is_number) {
  const std::size_t size = num_characters(text);
  if (size >= style.width) return text;
  const std::size_t missing = style.width - size;
  if (style.left) return text.append(missing, ' ');
  if (!style.zero || !is_number) return std::string(missing, ' ') + text;
  const std::size_t sign = text.find_first_of("0123456789in");
  return text.insert(sign == text.npos ? 0 : sign, missing, '0');
}

// One % conversion after another.
class PercentFormatter {
 public:
  PercentFormatter(const Value& value, Memory& memory) : value_(value), memory_(memory) {
    if (value.is(Kind::kTuple)) values_ = value.list->items;
    if (!value.is(Kind::kTuple)) values_ = {value};
  }

  std::string run(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const std::size_t at = std::min(text.find('%'), text.size());
      out += text.substr(0, at);
      text.remove_prefix(at);
      if (text.empty()) break;
      text.remove_prefix(1);
      memory_.spend();
      out += conversion(text);
      if (out.size() > kMaxOutput) refuse("a formatted text is too long");
    }
    if (next_ < values_.size() && !value_.is(Kind::kDict) &&
        !(next_ == 0 && value_.is(Kind::kList)))
      refuse("not all arguments converted during string formatting");
    return out;
  }

 private:
  const Value& next() {
    if (next_ == values_.size()) refuse("not enough arguments for format string");
    return values_[next_++];
  }

  std::string conversion(std::string_view& text) {
    std::optional<Value> named;
    if (text.starts_with('(')) {
      const std::size_t end = text.find(')');
      if (end == text.npos || !value_.is(Kind::kDict)) refuse("format requires a mapping");
      const Value* found = value_.dict->find(Value(text.substr(1, end - 1)), memory_);
      if (found == nullptr) refuse("format: a key is missing");
      named = *found;
      text.remove_prefix(end + 1);
    }
    const Style style = take_style(text);
    if (text.empty()) refuse("incomplete format");
    const char type = text.front();
    text.remove_prefix(1);
    if (type == '%') return "%";
    const Value value = named ? *named : next();
    if (type == 's' || type == 'r') {
      std::string out = type == 's' ? written(value, memory_) : quoted(value, memory_);
      if (style.precision) out.resize(byte_of(out, *style.precision));
      return padded(std::move(out), style, false);
    }
    if (std::string_view("diuxXofFeEgG").find(type) == std::string_view::npos)
      unsupported(fmt::format("the conversion %{} is not supported", type));
    if (!value.is_number())
      refuse(fmt::format("%{} format: a real number is required, not {}", type, type_name(value)));
    return padded(number_text(value, type, style), style, true);
  }

  static Style take_style(std::string_view& text) {
    Style style;
    for (; !text.empty(); text.remove_prefix(1)) {
      const char c = text.front();
      if (c == '-') {
        style.left = true;
      } else if (c == '+') {
        style.plus = true;
      } else if (c == ' ') {
        style.space = true;
      } else if (c == '0') {
        style.zero = true;
      } else if (c == '#') {
        style.alternate = true;
      } else {
        break;
      }
    }
    style.width = take_number(text);
    if (text.starts_with('.')) {
      text.remove_prefix(1);
      style.precision = take_number(text);
    }
    return style;
  }

  const Value& value_;
  Memory& memory_;
  std::vector<Value> values_;
  std::size_t next_ = 0;
};

// What a {} of format() is given: by number, by name, or the next.
const Value& field_value(std::string_view name, const CallArguments& arguments, std::size_t& next) {
  std::size_t index = next;
  if (name.empty()) {
    ++next;
  } else if (name.find_first_not_of("0123456789") == name.npos) {
    index = take_number(name);
  } else {
    if (name.find_first_of(".[!") != name.npos)
      unsupported("attributes, items and conversions in format() are not supported");
    for (const auto& [known, value] : arguments.named) {
      if (known == name) return value;
    }
    refuse(fmt::format("format: there is no argument '{}'", name));
  }
  if (index >= arguments.positional.size())
    refuse("Replacement index out of range for positional args tuple");
  return arguments.positional[index];
}

// [[fill]<>][sign][0][width][.precision][type], of which fill is left out.
std::string formatted(const Value& value, std::string_view spec, Memory& memory) {
  if (spec.empty()) return written(value, memory);
  const std::string_view whole = spec;
  Style style;
  style.left = value.is_string();
  if (spec.starts_with('<') || spec.starts_with('>')) {
    style.left = spec.front() == '<';
    spec.remove_prefix(1);
  }
  if (spec.starts_with('+')) {
    style.plus = true;
    spec.remove_prefix(1);
  }
  style.zero = spec.starts_with('0');
  style.width = take_number(spec);
  if (spec.starts_with('.')) {
    spec.remove_prefix(1);
    style.precision = take_number(spec);
  }
  const char type = spec.empty() ? (value.is(Kind::kInt) ? 'd' : 's') : spec.front();
  if (spec.size() > 1 || std::string_view("sdxXofFeEgG").find(type) == std::string_view::npos)
    unsupported(fmt::format("the format '{}' is not supported", whole));
  if (type != 's' && value.is_number()) return padded(number_text(value, type, style), style, true);
  if (type != 's' || !value.is_string())
    unsupported(fmt::format("the format '{}' of a {} is not supported", whole, type_name(value)));
  std::string out(value.text());
  if (style.precision) out.resize(byte_of(out, *style.precision));
  return padded(std::move(out), style, false);
}

}  // namespace

std::string percent_formatted(std::string_view text, const Value& value, Memory& memory) {
  return PercentFormatter(value, memory).run(text);
}

std::string brace_formatted(Interpreter& in, std::string_view text,
                            const CallArguments& arguments) {
  std::string out;
  std::size_t next = 0;
  while (!text.empty()) {
    const std::size_t at = std::min(text.find_first_of("{}"), text.size());
    out += text.substr(0, at);
    text.remove_prefix(at);
    if (text.empty()) break;
    if (text.starts_with("{{") || text.starts_with("}}")) {
      out += text.front();
      text.remove_prefix(2);
      continue;
    }
    if (text.front() == '}') refuse("Single '}' encountered in format string");
    const std::size_t end = text.find('}');
    if (end == text.npos) refuse("Single '{' encountered in format string");
    std::string_view field = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
    if (spec.find('{') != spec.npos) unsupported("format() within a format is not supported");
    in.memory().spend(1 + arguments.named.size() / 16);
    out += formatted(field_value(field.substr(0, colon), arguments, next), spec, in.memory());
    if (out.size() > kMaxOutput) refuse("a formatted text is too long");
  }
  return out;
}

}  // namespace quantspec::jinja
