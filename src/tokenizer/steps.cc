#include "tokenizer/steps.h"

#include "base/error.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxSteps = 64;
constexpr std::size_t kMaxSought = 1024;

// `seen`: steps and Sequences so far.
void collect(const JsonField& field, std::string_view list_key, std::size_t& seen,
             std::vector<JsonField>& steps) {
  if (++seen > kMaxSteps) field.unsupported("one more step", fmt::format("{}", kMaxSteps));
  if (field.at("type").text() != "Sequence") return steps.push_back(field);
  for (const JsonField& element : field.at(list_key).elements()) {
    collect(element, list_key, seen, steps);
  }
}

}  // namespace

std::vector<JsonField> steps_of(const JsonField& field, std::string_view list_key) {
  std::size_t seen = 0;
  std::vector<JsonField> steps;
  collect(field, list_key, seen, steps);
  return steps;
}

const std::string& sought_text(const JsonField& field) {
  const std::string& text = field.text();
  if (text.empty()) field.corrupt("is empty");
  if (text.size() > kMaxSought) {
    field.unsupported(fmt::format("a string of {} bytes", text.size()),
                      fmt::format("{}", kMaxSought));
  }
  return text;
}

void WorkLimit::made(std::size_t bytes, std::string_view place) {
  if (bytes > bytes_left_) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: the steps up to here make more than {} bytes of each byte of a text, which is not "
         "supported",
         place, kBytesOfByte);
  }
  bytes_left_ -= bytes;
}

}  // namespace quantspec
