#include "api/body_json.h"

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/shown.h"
#include "base/utf8.h"

namespace quantspec::api {

namespace {

using Json = OrderedJson;

void require_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.state != Utf8State::kValid) {
      fail(ErrorKind::kInvalidRequest, "the body is not valid UTF-8 at byte {}", at);
    }
    at += step.length;
  }
}

class Builder {
 public:
  Json document() { return std::move(document_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add_number(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add_number(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add_number(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // of other formats
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  // NOTE: an ordered object looks through all of its members for a key, which takes quadratic time.
  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) {
      fail(ErrorKind::kInvalidRequest, "the key {} stands twice in one object of the body",
           shown(name));
    }
    auto& members = open_.back().value->get_ref<Json::object_t&>();
    members.push_back({std::move(name), nullptr});
    value_ = &members.back().second;
    return true;
  }

  template <typename Exception>
  bool parse_error(std::size_t byte, const std::string&, const Exception& error) {
    constexpr bool is_syntax = std::is_same_v<Exception, Json::parse_error>;
    if (is_syntax) fail(ErrorKind::kInvalidRequest, "the body is not valid JSON at byte {}", byte);
    fail(ErrorKind::kInvalidRequest, "the body is not valid JSON at byte {} ({})", byte,
         error.what());
  }

 private:
  struct Open {
    Json* value;
    std::unordered_set<std::string, TableHash, std::equal_to<>> keys;  // of an object
  };

  Json* place(Json value) {
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    }
    *value_ = std::move(value);
    return value_;
  }
  void count() {
    if (++num_values_ <= kMostValues) return;
    fail(ErrorKind::kInvalidRequest, "the body has more than {} values", kMostValues);
  }
  bool add(Json value) {
    count();
    place(std::move(value));
    return true;
  }
  bool add_number(Json value) {
    if (open_.empty() || !open_.back().value->is_array()) count();
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= kMostDepth) {
      fail(ErrorKind::kInvalidRequest, "the body is nested deeper than {} levels", kMostDepth);
    }
    count();
    open_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::size_t num_values_ = 0;
  Json document_;
  std::vector<Open> open_;  // objects and arrays that have not ended, from the outermost in
  Json* value_ = nullptr;   // of the key that came last
};

}  // namespace

OrderedJson parse_body(std::string_view text) {
  require_utf8(text);
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.document();
}

}  // namespace quantspec::api
