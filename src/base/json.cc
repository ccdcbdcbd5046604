#include "base/json.h"

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/shown.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 28;

// Reads a text and counts what was read, so that errors of ours know where they are.
class Position {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Position(const char* at, std::size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  Position& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(const Position& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  std::size_t* count_;
};

// Builds documents from the parser's events. NOTE: the library's own builder with a callback, which
// could refuse the same, walks all elements of a parent whenever one of them ends: quadratic.
class Builder {
 public:
  using Take = std::function<void(std::size_t, Json)>;

  // `take`: gets the elements of the array that the text must be; empty: the text is one document.
  // `byte`: how many were read.
  Builder(std::string_view where, const JsonLimits& limits, const Take& take,
          const std::size_t& byte)
      : where_(where), limits_(limits), take_(take), byte_(byte) {}

  Json document() { return std::move(document_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // of other formats
  bool start_object(std::size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) {
    if (take_ == nullptr || in_array_) return open(Json::array());
    return in_array_ = true;
  }
  bool end_array() { return open_.empty() || close(); }  // or it is the array of records that ends

  bool key(std::string& name) {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [member, is_new] = members.emplace(std::move(name), nullptr);
    if (!is_new) {
      fail(limits_.error, "{}: the key {} stands twice in one object, at byte {}", where_,
           shown(member->first), byte_);
    }
    value_ = &member->second;
    return true;
  }

  template <typename Exception>
  bool parse_error(std::size_t byte, const std::string&, const Exception& error) {
    constexpr bool is_syntax = std::is_same_v<Exception, Json::parse_error>;
    const std::string why = is_syntax ? std::string() : fmt::format(" ({})", error.what());
    fail(limits_.error, "{}: not valid JSON at byte {}{}", where_, byte, why);
  }

 private:
  // Puts a value in its place, which it returns.
  Json* place(Json value) {
    if (++num_values_ > limits_.values) {
      fail(limits_.error, "{}: JSON of more than {} values, at byte {}", where_, limits_.values,
           byte_);
    }
    if (take_ != nullptr && !in_array_) fail(limits_.error, "{}: no JSON array", where_);
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
    }
    *value_ = std::move(value);
    return value_;
  }
  bool add(Json value) {
    place(std::move(value));
    return end_value();
  }
  bool open(Json value) {
    if (open_.size() >= limits_.depth) {
      fail(limits_.error, "{}: JSON nested deeper than {} levels, at byte {}", where_,
           limits_.depth, byte_);
    }
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return end_value();
  }
  // Hands an element on when its last value has ended.
  bool end_value() {
    if (take_ == nullptr || !open_.empty()) return true;
    num_values_ = 0;
    take_(num_taken_++, std::exchange(document_, nullptr));
    return true;
  }

  std::string_view where_;
  const JsonLimits& limits_;
  const Take& take_;
  const std::size_t& byte_;
  bool in_array_ = false;
  std::size_t num_taken_ = 0;
  std::size_t num_values_ = 0;
  Json document_;
  std::vector<Json*> open_;  // objects and arrays that have not ended, from the outermost in
  Json* value_ = nullptr;    // of the key that came last
};

Json parse(std::string_view text, std::string_view where, const JsonLimits& limits,
           const Builder::Take& take) {
  // NOTE: the library takes it for the end of the text, and what follows for nothing.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    fail(limits.error, "{}: not valid JSON at byte {} (a zero byte)", where, zero + 1);
  }
  std::size_t byte = 0, end = 0;
  Builder builder(where, limits, take, byte);
  Json::sax_parse(Position(text.data(), &byte), Position(text.data() + text.size(), &end),
                  &builder);
  return builder.document();
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return parse(text, where, limits, {});
}

void parse_json_array(std::string_view text, std::string_view where,
                      const std::function<void(std::size_t, Json)>& take) {
  parse(text, where, {}, take);
}

Json parse_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMaxFileBytes), path.string());
}

}  // namespace quantspec
