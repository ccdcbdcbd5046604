#include "chat/written.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "chat/operators.h"
#include "chat/text.h"

namespace quantspec::jinja {

namespace {

std::string quoted_text(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const std::string_view bytes = text.substr(0, step.length);
    const auto code = static_cast<unsigned>(step.code);
    text.remove_prefix(step.length);
    if (code == static_cast<unsigned char>(quote) || code == '\\') {
      (out += '\\') += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(step.code)) {
      out += bytes;
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

// Writes values within values. Each is a step, and their text is counted at the end.
class Writer {
 public:
  explicit Writer(Memory& memory) : memory_(memory) {}
  std::string take() {
    memory_.spend_bytes(out_.size());
    return std::move(out_);
  }

 protected:
  // REQUIRES: called for each value.
  void step() {
    memory_.spend();
    if (out_.size() > kMaxOutput)
      refuse(fmt::format("makes a text of more than {} bytes", kMaxOutput));
  }

  Memory& memory_;
  std::string out_;
  std::size_t depth_ = 0;
};

class Quoter : public Writer {
 public:
  using Writer::Writer;

  void add(const Value& value) {
    const Descent descent(depth_, kMaxDepth, "a value is nested");
    step();
    switch (value.kind) {
      case Kind::kUndefined:
        out_ += "Undefined";
        return;
      case Kind::kNone:
        out_ += "None";
        return;
      case Kind::kBool:
        out_ += value.truth ? "True" : "False";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.integer);
        return;
      case Kind::kFloat:
        out_ += written_float(value.real);
        return;
      case Kind::kString:
        if (value.is_markup) out_ += "Markup(";
        out_ += quoted_text(value.text());
        if (value.is_markup) out_ += ')';
        return;
      case Kind::kList:
        return add_items(value, "[", "]");
      case Kind::kTuple:
        return add_items(value, "(", value.list->items.size() == 1 ? ",)" : ")");
      case Kind::kView:
        return add_items(value, fmt::format("{}([", value.list->name), "])");
      case Kind::kRange:
        return add_range(value);
      case Kind::kDict:
        return add_dict(*value.dict);
      default:
        unsupported(fmt::format("a {} cannot be printed", type_name(value)));
    }
  }

 private:
  void add_items(const Value& value, std::string_view open, std::string_view close) {
    out_ += open;
    for (std::size_t i = 0; i < value.list->items.size(); ++i) {
      if (i > 0) out_ += ", ";
      add(value.list->items[i]);
    }
    out_ += close;
  }
  void add_range(const Value& value) {
    out_ += value.list->name;  // as range() was called
  }
  void add_dict(const Dict& dict) {
    out_ += '{';
    for (std::size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) out_ += ", ";
      add(dict.entries[i].first);
      out_ += ": ";
      add(dict.entries[i].second);
    }
    out_ += '}';
  }
};

class JsonWriter : public Writer {
 public:
  JsonWriter(const JsonStyle& style, Memory& memory) : Writer(memory), style_(style) {
    item_separator_ = style.item_separator.value_or(style.indent ? "," : ", ");
    key_separator_ = style.key_separator.value_or(": ");
  }

  void add(const Value& value) {
    const Descent descent(depth_, kMaxDepth, "a value is nested");
    step();
    switch (value.kind) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.truth ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.integer);
        return;
      case Kind::kFloat:
        out_ += json_float(value.real);
        return;
      case Kind::kString:
        return add_text(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return add_list(value.list->items);
      case Kind::kDict:
        return add_dict(*value.dict);
      default:
        refuse(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

 private:
  static std::string json_float(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return written_float(value);
  }

  void add_escape(unsigned code) { out_ += fmt::format("\\u{:04x}", code); }

  void add_text(std::string_view text) {
    out_ += '"';
    while (!text.empty()) {
      const Utf8Step step = next_utf8(text);
      const std::string_view bytes = text.substr(0, step.length);
      const auto code = static_cast<unsigned>(step.code);
      text.remove_prefix(step.length);
      constexpr std::string_view kPlain = "\"\\\n\r\t\f\b", kNames = "\"\\nrtfb";
      const std::size_t name = code < 0x80 ? kPlain.find(static_cast<char>(code)) : kPlain.npos;
      if (name != kPlain.npos) {
        (out_ += '\\') += kNames[name];
      } else if (code < 0x20) {
        add_escape(code);
      } else if (code < 0x7F || !style_.ascii) {
        out_ += bytes;
      } else if (code == 0x7F) {
        out_ += bytes;
      } else if (code < 0x10000) {
        add_escape(code);
      } else {
        add_escape(0xD800 + ((code - 0x10000) >> 10));
        add_escape(0xDC00 + ((code - 0x10000) & 0x3FF));
      }
    }
    out_ += '"';
  }

  void add_key(const Value& key) {
    switch (key.kind) {
      case Kind::kString:
        return add_text(key.text());
      case Kind::kNone:
        return add_text("null");
      case Kind::kBool:
        return add_text(key.truth ? "true" : "false");
      case Kind::kInt:
        return add_text(std::to_string(key.integer));
      case Kind::kFloat:
        return add_text(json_float(key.real));
      default:
        refuse(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void new_line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (std::size_t i = 0; i < level_; ++i) out_ += *style_.indent;
  }
  void open(char bracket) {
    out_ += bracket;
    ++level_;
    new_line();
  }
  void close(char bracket) {
    --level_;
    new_line();
    out_ += bracket;
  }

  void add_list(const std::vector<Value>& items) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    open('[');
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) next_item();
      add(items[i]);
    }
    close(']');
  }

  void add_dict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<Dict::Entry> entries = dict.entries;
    if (style_.sorted) {
      memory_.spend(entries.size());
      std::vector<Value> keys;
      for (const auto& entry : entries) keys.push_back(entry.first);
      const std::vector<std::size_t> order = sorted_order(keys, false, memory_);
      for (std::size_t i = 0; i < order.size(); ++i) entries[i] = dict.entries[order[i]];
    }
    open('{');
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) next_item();
      add_key(entries[i].first);
      out_ += key_separator_;
      add(entries[i].second);
    }
    close('}');
  }

  void next_item() {
    out_ += item_separator_;
    new_line();
  }

  const JsonStyle& style_;
  std::string item_separator_, key_separator_;
  std::size_t level_ = 0;
};

}  // namespace

// The shortest digits that read as the same number, as repr(float) has them.
std::string written_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  const std::size_t mark = text.find('e');
  const int exponent = std::atoi(text.c_str() + mark + 1);
  if (exponent < -4 || exponent >= 16) return text;  // 1e-05, as Python has it
  const bool negative = text.front() == '-';
  std::string digits;
  for (const char c : text.substr(0, mark)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = negative ? "-" : "";
  if (exponent < 0) return out + "0." + std::string(std::size_t(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string fraction = digits.substr(whole);
  return out + digits.substr(0, whole) + '.' + (fraction.empty() ? "0" : fraction);
}

std::string quoted(const Value& value, Memory& memory) {
  Quoter quoter(memory);
  quoter.add(value);
  return quoter.take();
}

std::string written(const Value& value, Memory& memory) {
  if (value.is_string()) return std::string(value.text());
  if (value.is_undefined()) return {};
  return quoted(value, memory);
}

std::string written_json(const Value& value, const JsonStyle& style, Memory& memory) {
  JsonWriter writer(style, memory);
  writer.add(value);
  return writer.take();
}

}  // namespace quantspec::jinja
