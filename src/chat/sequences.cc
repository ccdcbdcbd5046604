// What is iterated over, measured, indexed and sliced.
#include <fmt/format.h>

#include <algorithm>

#include "chat/operators.h"
#include "chat/text.h"
#include "chat/written.h"

namespace quantspec::jinja {

std::vector<Value> iterated(const Value& value, Memory& memory) {
  std::vector<Value> items;
  if (value.is_items()) {
    List& list = *value.list;
    memory.spend(list.items.size() - list.next);
    items.assign(list.items.begin() + std::ptrdiff_t(list.next), list.items.end());
    if (value.is(Kind::kIterator)) list.next = list.items.size();
  } else if (value.is(Kind::kDict)) {
    memory.spend(value.dict->entries.size());
    for (const auto& entry : value.dict->entries) items.push_back(entry.first);
  } else if (value.is_string()) {
    memory.spend(value.size);
    for (const std::string_view character : characters(value.text())) items.emplace_back(character);
  } else if (!value.is_undefined()) {
    refuse(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  return items;
}

std::size_t length(const Value& value, Memory& memory) {
  if (value.is_string()) {
    memory.spend_bytes(value.size);
    return num_characters(value.text());
  }
  if (value.is(Kind::kDict)) return value.dict->entries.size();
  if (value.is_undefined()) return 0;
  if (value.is_items() && !value.is(Kind::kIterator)) return value.list->items.size();
  refuse(fmt::format("object of type '{}' has no len()", type_name(value)));
}

namespace {

std::string nothing_at(const Value& value, const Value& index, Memory& memory) {
  const std::string key = index.is_string() || index.is_number() ? quoted(index, memory) : "that";
  return fmt::format("'{}' has no element {}", type_name(value), key);
}

// The indices of a slice, as Python's slice.indices() has them.
struct Range {
  std::int64_t start, stop, step;
  std::int64_t size() const {
    if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
    return start > stop ? (start - stop - 1) / -step + 1 : 0;
  }
};

std::int64_t bound(const Value& value, std::int64_t size, std::int64_t least, std::int64_t most,
                   std::int64_t otherwise) {
  if (value.is_undefined() || value.is(Kind::kNone)) return otherwise;
  if (!value.is_integer()) refuse("slice indices must be integers or None");
  const std::int64_t at = value.as_int();
  return std::clamp(at < 0 ? at + size : at, least, most);
}

Range range_of(const Value& start, const Value& stop, const Value& step, std::size_t length) {
  const auto size = static_cast<std::int64_t>(length);
  Range range{0, 0, 1};
  if (step.is_integer()) {
    range.step = step.as_int();
  } else if (!step.is_undefined() && !step.is(Kind::kNone)) {
    refuse("slice indices must be integers or None");
  }
  if (range.step == 0) refuse("slice step cannot be zero");
  range.step = std::clamp<std::int64_t>(range.step, -(size + 1), size + 1);
  const bool back = range.step < 0;
  const std::int64_t least = back ? -1 : 0, most = back ? size - 1 : size;
  range.start = bound(start, size, least, most, back ? most : least);
  range.stop = bound(stop, size, least, most, back ? least : most);
  return range;
}

Value slice_text(std::string_view text, const Value& start, const Value& stop, const Value& step,
                 Memory& memory) {
  memory.spend_bytes(text.size());
  const Range range = range_of(start, stop, step, num_characters(text));
  if (range.step == 1) {
    if (range.size() == 0) return Value(std::string_view());
    const std::size_t begin = byte_of(text, static_cast<std::size_t>(range.start));
    text.remove_prefix(begin);
    return Value(text.substr(0, byte_of(text, static_cast<std::size_t>(range.size()))));
  }
  memory.spend(text.size());
  const std::vector<std::string_view> all = characters(text);
  std::string out;
  for (std::int64_t i = 0; i < range.size(); ++i)
    out += all[static_cast<std::size_t>(range.start + i * range.step)];
  return memory.text(std::move(out));
}

}  // namespace

Value item_of(const Value& value, const Value& index, Memory& memory) {
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (value.is(Kind::kDict)) {
    const bool can_be = index.is_number() || index.is_string() || index.is(Kind::kNone) ||
                        index.is_undefined() || index.is(Kind::kTuple);
    if (const Value* found = can_be ? value.dict->find(index, memory) : nullptr) return *found;
  } else if (index.is_integer()) {
    std::int64_t at = index.as_int();
    if (value.is_string()) {
      memory.spend_bytes(value.size);
      const std::string_view text = value.text();
      const auto size = static_cast<std::int64_t>(num_characters(text));
      if (at < 0) at += size;
      if (at >= 0 && at < size) {
        const std::string_view rest = text.substr(byte_of(text, static_cast<std::size_t>(at)));
        return Value(rest.substr(0, next_utf8(rest).length));
      }
    } else if (value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange)) {
      const auto size = static_cast<std::int64_t>(value.list->items.size());
      if (at < 0) at += size;
      if (at >= 0 && at < size) return value.list->items[static_cast<std::size_t>(at)];
    }
  }
  return memory.undefined(nothing_at(value, index, memory));
}

Value slice_of(const Value& value, const Value& start, const Value& stop, const Value& step,
               Memory& memory) {
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (value.is_string()) return slice_text(value.text(), start, stop, step, memory);
  if (!value.is(Kind::kList) && !value.is(Kind::kTuple) && !value.is(Kind::kRange))
    refuse(fmt::format("'{}' object has no slices", type_name(value)));
  const Range range = range_of(start, stop, step, value.list->items.size());
  memory.spend(static_cast<std::size_t>(range.size()));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < range.size(); ++i)
    items.push_back(value.list->items[static_cast<std::size_t>(range.start + i * range.step)]);
  return memory.list(value.is(Kind::kRange) ? Kind::kList : value.kind, std::move(items));
}

}  // namespace quantspec::jinja
