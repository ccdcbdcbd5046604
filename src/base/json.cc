#include "base/json.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/shown.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxDepth = 200;
constexpr std::size_t kMaxValues = std::size_t{1} << 23;  // of 16 to 100 bytes each
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 28;

// Builds documents from the parser's events. NOTE: the library's own builder with a callback, which
// could refuse the same, walks all elements of a parent whenever one of them ends: quadratic.
class Builder {
 public:
  using Take = std::function<void(std::size_t, Json)>;

  // `take`: gets the elements of the array that the text must be; empty: the text is one document.
  Builder(std::string_view where, const Take& take) : where_(where), take_(take) {}

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
      fail(ErrorKind::kCorruptFile, "{}: the key {} stands twice in one object", where_,
           shown(member->first));
    }
    value_ = &member->second;
    return true;
  }

  template <typename Exception>
  bool parse_error(std::size_t byte, const std::string&, const Exception& error) {
    constexpr bool is_syntax = std::is_same_v<Exception, Json::parse_error>;
    const std::string why = is_syntax ? std::string() : fmt::format(" ({})", error.what());
    fail(ErrorKind::kCorruptFile, "{}: not valid JSON at byte {}{}", where_, byte, why);
  }

 private:
  // Puts a value in its place, which it returns.
  Json* place(Json value) {
    if (++num_values_ > kMaxValues) {
      fail(ErrorKind::kCorruptFile, "{}: JSON of more than {} values", where_, kMaxValues);
    }
    if (take_ != nullptr && !in_array_) fail(ErrorKind::kCorruptFile, "{}: no JSON array", where_);
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
    if (open_.size() >= kMaxDepth) {
      fail(ErrorKind::kCorruptFile, "{}: JSON nested deeper than {} levels", where_, kMaxDepth);
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
  const Take& take_;
  bool in_array_ = false;
  std::size_t num_taken_ = 0;
  std::size_t num_values_ = 0;
  Json document_;
  std::vector<Json*> open_;  // objects and arrays that have not ended, from the outermost in
  Json* value_ = nullptr;    // of the key that came last
};

Json parse(std::string_view text, std::string_view where, const Builder::Take& take) {
  Builder builder(where, take);
  Json::sax_parse(text, &builder);
  return builder.document();
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where) { return parse(text, where, {}); }

void parse_json_array(std::string_view text, std::string_view where,
                      const std::function<void(std::size_t, Json)>& take) {
  parse(text, where, take);
}

Json parse_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMaxFileBytes), path.string());
}

}  // namespace quantspec
