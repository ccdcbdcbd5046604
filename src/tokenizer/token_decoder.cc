#include "tokenizer/token_decoder.h"

#include <algorithm>

#include "base/error.h"
#include "base/shown.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/characters.h"
#include "tokenizer/steps.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxGrowth = 100;  // known files write one byte where there were three

constexpr std::string_view kDecoders =
    "ByteLevel, Metaspace, or a Sequence of Replace, ByteFallback, Fuse, Strip in this order";

}  // namespace

TokenDecoder::TokenDecoder(const std::optional<JsonField>& field, std::string_view file) {
  if (!field) {
    fail(ErrorKind::kUnsupportedModel, "{}: decoder: none; supported: {}", file, kDecoders);
  }
  Stage last = Stage::kNone;
  for (const JsonField& step : steps_of(*field, "decoders")) {
    const Stage stage = add(step);
    const bool in_order = stage > last || (stage == last && stage == Stage::kReplace);
    if (!in_order) step.unsupported("a decoder in this place", kDecoders);
    if (stage == Stage::kStrip && last != Stage::kFuse) {
      step.unsupported("Strip without Fuse", kDecoders);
    }
    last = stage;
  }
}

TokenDecoder::Stage TokenDecoder::add(const JsonField& field) {
  const std::string& type = field.at("type").text();
  if (type == "Replace") {
    add_replacement(field);
    return Stage::kReplace;
  }
  if (type == "ByteFallback") {
    byte_fallback_ = true;
    return Stage::kByteFallback;
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    return Stage::kWhole;
  }
  if (type == "Metaspace") {
    add_metaspace(field);
    return Stage::kWhole;
  }
  if (type == "Fuse") return Stage::kFuse;
  if (type == "Strip") {
    check_strip(field);
    strips_space_ = field.at("start").integer() == 1;
    return Stage::kStrip;
  }
  field.unsupported(fmt::format("decoder {}", shown(type)), kDecoders);
}

void TokenDecoder::add_replacement(const JsonField& field) {
  const auto pattern = field.at("pattern").find("String");
  if (!pattern) field.unsupported("Replace of a regular expression", "Replace of a string");
  const std::string& from = sought_text(*pattern);
  const std::string& to = field.at("content").text();
  most_growth_ *= std::max<std::size_t>(1, (to.size() + from.size() - 1) / from.size());
  if (most_growth_ > kMaxGrowth) {
    field.unsupported("a decoder that may make that much of a token",
                      fmt::format("up to {} times its bytes", kMaxGrowth));
  }
  replacements_.emplace_back(from, to);
}

void TokenDecoder::add_metaspace(const JsonField& field) {
  mark_ = sought_text(field.at("replacement"));
  strips_all_marks_ = field.text_or("prepend_scheme", "always") != "never";
}

void TokenDecoder::check_strip(const JsonField& field) const {
  const std::int64_t start = field.at("start").integer();
  const bool one_space_at_start = field.at("content").text() == " " && (start == 0 || start == 1) &&
                                  field.at("stop").integer() == 0;
  if (!one_space_at_start) {
    field.unsupported("this Strip", "content \" \", start 0 or 1, stop 0");
  }
}

std::string TokenDecoder::decode(std::string_view token, bool& at_start) const {
  if (byte_level_) return from_byte_alphabet(token).value_or(std::string(token));
  std::string text(token);
  for (const auto& [from, to] : replacements_) text = replace_all(text, from, to);
  if (byte_fallback_) {
    if (const auto byte = byte_of_token(text)) text.assign(1, *byte);
  }
  if (!mark_.empty()) {
    text = replace_all(text, mark_, at_start && strips_all_marks_ ? "" : " ");
    at_start = false;
  }
  if (at_start && !text.empty()) {
    if (strips_space_ && text[0] == ' ') text.erase(0, 1);
    at_start = false;
  }
  return text;
}

}  // namespace quantspec
