#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/json_field.h"
#include "tokenizer/steps.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 14;
constexpr std::uint32_t kMaxHeapKilobytes = 1 << 18;  // of a pattern whose groups repeat

// What it costs to begin with a text, in WorkLimit's units of matching.
constexpr std::size_t kWorkOfCall = 16;

// Letters that may follow a backslash: both libraries read them alike, once \s is spelled out.
constexpr std::string_view kCommonEscapes = "pPdDnrtfsSx";

// What may follow an opening parenthesis and a question mark.
constexpr std::string_view kCommonGroups[] = {
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};

[[noreturn]] void refuse(const JsonField& place, std::string_view what) {
  place.unsupported(fmt::format("{} in a regular expression", what),
                    "the patterns of Llama 3, Qwen and GPT-2");
}

bool is_ascii_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The pattern in PCRE2's language.
// NOTE: PCRE2 counts U+180E as \s; Oniguruma and Unicode do not. \p{White_Space} is exact.
std::string translate(std::string_view pattern, const JsonField& place) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\' && rest.size() > 1) {
      ++i;
      if (is_ascii_alphanumeric(rest[1]) && kCommonEscapes.find(rest[1]) == std::string::npos) {
        refuse(place, fmt::format("\\{}", rest[1]));
      }
      if (rest[1] == 's') {
        out += "\\p{White_Space}";
      } else if (rest[1] == 'S') {
        out += "\\P{White_Space}";
      } else {
        out += rest.substr(0, 2);
      }
      continue;
    }
    if (in_class) {
      if (rest[0] == '[') refuse(place, "a class inside a class");
      if (rest.starts_with("&&")) refuse(place, "&& inside a class");
      in_class = rest[0] != ']';
    } else {
      const auto is_this = [&](std::string_view group) { return rest.starts_with(group); };
      const bool at_start = i == 0 && is_this("(?i)");  // elsewhere the two end it differently
      if ((is_this("(?") && !std::ranges::any_of(kCommonGroups, is_this) && !at_start) ||
          is_this("(*")) {
        refuse(place, fmt::format("a group that begins {}", shown(rest.substr(0, 4))));
      }
      in_class = rest[0] == '[';
    }
    out += rest[0];
  }
  return out;
}

std::string message_of(int error) {
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(error, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

pcre2_code* compile(const std::string& pattern, const JsonField& place) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT, &error,
                    &offset, nullptr);
  if (code == nullptr) {
    refuse(place, fmt::format("\"{}\" at byte {}", message_of(error), offset));
  }
  // NOTE: a pattern that PCRE2 cannot JIT-compile is interpreted: same matches, about 5x slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return code;
}

// Ends a match that takes longer than the limit allows.
// NOTE: PCRE2's own limit of the work of a match does not see what goes back and forth in JIT code
// ("a*a*a*b"), and counts anew from every place where a match may begin.
// Being called back takes its time, most where words are short; nothing cheaper ends such a match.
class Meter {
 public:
  Meter(std::size_t at, WorkLimit& limit) : at_(at), left_(limit.matching_left()) {}

  // Called by PCRE2 before every element of the pattern that it tries.
  static int count(pcre2_callout_block* callout, void* meter) {
    return static_cast<Meter*>(meter)->count(callout->current_position);
  }

 private:
  int count(std::size_t at) {
    const std::size_t work = at > at_ ? at - at_ + 1 : 1;
    at_ = at;
    if (work > left_) return PCRE2_ERROR_CALLOUT;
    left_ -= work;
    return 0;
  }

  std::size_t at_;
  std::size_t& left_;
};

// What a match needs beside the pattern and the text.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code),
        data_(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
        context_(pcre2_match_context_create(nullptr), &pcre2_match_context_free) {
    if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
    pcre2_set_heap_limit(context_.get(), kMaxHeapKilobytes);
  }

  // PCRE2's code: negative where there is no match from `at` on. The text is valid UTF-8; to check
  // it at every match would be quadratic.
  int match(std::string_view text, std::size_t at, WorkLimit& limit) const {
    Meter meter(at, limit);
    pcre2_set_callout(context_.get(), &Meter::count, &meter);
    const auto run = [&](std::uint32_t options) {
      return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
    };
    const int found = run(0);
    // The interpreter keeps its stack on the heap.
    return found == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : found;
  }
  TextSpan span() const {
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data_.get());
    return {match[0], match[1], true};
  }

 private:
  const pcre2_code* code_;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data_;
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context_;
};

}  // namespace

Regex::Regex(std::string_view pattern, const JsonField& place) : place_(place.place()) {
  if (pattern.size() > kMaxPatternBytes) refuse(place, "a pattern of more than 16 KiB");
  code_ = {compile(translate(pattern, place), place),
           [](const pcre2_code* code) { pcre2_code_free(const_cast<pcre2_code*>(code)); }};
}

std::vector<TextSpan> Regex::cut(std::string_view text, WorkLimit& limit) const {
  const Matcher matcher(code_.get());
  limit.matching_left() -= std::min(limit.matching_left(), kWorkOfCall);
  std::vector<TextSpan> spans;
  std::size_t done = 0;  // everything before is in `spans`
  for (std::size_t at = 0; at < text.size();) {
    const int found = matcher.match(text, at, limit);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      fail(ErrorKind::kUnsupportedModel,
           "{}: the regular expression takes too long or too much memory for this text ({})",
           place_, found == PCRE2_ERROR_CALLOUT ? "far more steps than bytes" : message_of(found));
    }
    const TextSpan match = matcher.span();
    if (done < match.begin) spans.push_back({done, match.begin, false});
    spans.push_back(match);
    done = at = match.end;
    if (match.end == match.begin) {
      at += match.end < text.size() ? next_utf8(text.substr(match.end)).length : 1;
    }
  }
  if (done < text.size()) spans.push_back({done, text.size(), false});
  return spans;
}

}  // namespace quantspec
