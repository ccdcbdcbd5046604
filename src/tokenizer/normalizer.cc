#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/characters.h"

namespace quantspec {

namespace {

constexpr std::string_view kNormalizers = "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence";

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

std::vector<utf8proc_int32_t> decompose(std::string_view text, utf8proc_option_t options) {
  constexpr int kLongest = 32;  // code points one may become: 18, of U+FDFA
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + kLongest);
  int boundary_class = 0;  // of no use here
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    text.remove_prefix(step.length);
    const std::size_t size = codes.size();
    codes.resize(size + kLongest);
    const auto added = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code),
                                               &codes[size], kLongest, options, &boundary_class);
    check(added >= 0 && added <= kLongest, "utf8proc decomposes every character");
    codes.resize(size + static_cast<std::size_t>(added));
  }
  return codes;
}

// The canonical order: marks after a base go by their combining class.
// NOTE: utf8proc_map would do this too, but takes quadratic time: 140 s for 100,000 marks.
void sort_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto is_mark = [](utf8proc_int32_t code) { return combining_class(code) != 0; };
  const auto is_base = [](utf8proc_int32_t code) { return combining_class(code) == 0; };
  const auto before = [](utf8proc_int32_t a, utf8proc_int32_t b) {
    return combining_class(a) < combining_class(b);
  };
  for (auto end = codes.begin(); end != codes.end();) {
    const auto begin = std::find_if(end, codes.end(), is_mark);
    end = std::find_if(begin, codes.end(), is_base);
    std::stable_sort(begin, end, before);
  }
}

// The Unicode normalization form that utf8proc's `flags` name.
std::string to_normal_form(const std::string& text, int flags) {
  // ASCII is in every normal form.
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return text;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | flags);
  std::vector<utf8proc_int32_t> codes = decompose(text, options);
  sort_marks(codes);
  const auto size =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
  check(size >= 0, "utf8proc composes every sequence");
  std::string result;
  result.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(codes[i], result);
  return result;
}

// utf8proc's options of a normal form, 0 for any other name.
int normal_form_options(std::string_view name) {
  if (name == "NFC") return UTF8PROC_COMPOSE;
  if (name == "NFD") return UTF8PROC_DECOMPOSE;
  if (name == "NFKC") return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
  if (name == "NFKD") return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  return 0;
}

}  // namespace

Normalizer::Normalizer(const std::optional<JsonField>& field) {
  if (!field) return;
  for (const JsonField& step : steps_of(*field, "normalizers")) steps_.push_back(read(step));
}

std::string Normalizer::apply(std::string text, WorkLimit& limit) const {
  for (const Step& step : steps_) {
    text = step.run(std::move(text), limit.bytes_left());
    limit.made(text.size(), step.place);
  }
  return text;
}

Normalizer::Step Normalizer::read(const JsonField& field) {
  const std::string& type = field.at("type").text();
  const std::string place = field.place();
  if (const int options = normal_form_options(type)) {
    return {place,
            [options](std::string text, std::size_t) { return to_normal_form(text, options); }};
  }
  if (type == "Prepend") {
    return {place, [prefix = field.at("prepend").text()](std::string text, std::size_t) {
              return text.empty() ? text : prefix + text;
            }};
  }
  if (type == "Replace") {
    const auto pattern = field.at("pattern").find("String");
    if (!pattern) field.unsupported("Replace of a regular expression", "Replace of a string");
    return {place, [from = sought_text(*pattern), to = field.at("content").text()](
                       const std::string& text, std::size_t most) {
              return replace_all(text, from, to, most);
            }};
  }
  field.unsupported(fmt::format("normalizer {}", shown(type)), kNormalizers);
}

}  // namespace quantspec
