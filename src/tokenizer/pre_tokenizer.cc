#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/characters.h"
#include "tokenizer/regex.h"

namespace quantspec {

namespace {

constexpr std::string_view kPreTokenizers = "Split, ByteLevel, Digits, Metaspace, Sequence";

// The split of GPT-2, which a ByteLevel step with use_regex does itself.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What becomes of the matches ("delimiters") of a split.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior read_behavior(const JsonField& field) {
  const std::string& name = field.text();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  field.corrupt(fmt::format("is the unknown behavior {}", shown(name)));
}

// Whether `next` joins the span before it, which was (or was not) a match.
bool joins(Behavior behavior, const TextSpan& before, const TextSpan& next) {
  switch (behavior) {
    case Behavior::kMergedWithPrevious:
      return next.is_match && !before.is_match;
    case Behavior::kMergedWithNext:
      return before.is_match && !next.is_match;
    case Behavior::kContiguous:
      return before.is_match == next.is_match;
    default:
      return false;
  }
}

// Appends the parts of `word` that `spans`, which cover it, cut out.
void cut_at(const Word& word, const std::vector<TextSpan>& spans, Behavior behavior,
            std::vector<Word>& words) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i + 1 < spans.size() && joins(behavior, spans[i], spans[i + 1])) continue;
    const bool keep = behavior != Behavior::kRemoved || !spans[i].is_match;
    if (keep && begin < spans[i].end) {
      words.push_back({word.text.substr(begin, spans[i].end - begin), word.at_start && begin == 0});
    }
    begin = spans[i].end;
  }
}

std::vector<TextSpan> cut_at_string(std::string_view text, std::string_view delimiter) {
  std::vector<TextSpan> spans;
  std::size_t done = 0;
  for (std::size_t at = text.find(delimiter); at != std::string_view::npos;
       at = text.find(delimiter, done)) {
    if (done < at) spans.push_back({done, at, false});
    done = at + delimiter.size();
    spans.push_back({at, done, true});
  }
  if (done < text.size()) spans.push_back({done, text.size(), false});
  return spans;
}

// Numbers are matches: one each if `individual`, else in runs.
std::vector<TextSpan> cut_at_digits(std::string_view text, bool individual) {
  std::vector<TextSpan> spans;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    const bool is_match = is_numeric(step.code);
    if (!spans.empty() && spans.back().is_match == is_match && !(is_match && individual)) {
      spans.back().end += step.length;
    } else {
      spans.push_back({at, at + step.length, is_match});
    }
    at += step.length;
  }
  return spans;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::optional<JsonField>& field) {
  if (!field) return;
  for (const JsonField& step : steps_of(*field, "pretokenizers")) add(step);
}

std::vector<Word> PreTokenizer::cut(Word word, WorkLimit& limit) const {
  std::vector<Word> words;
  if (!word.text.empty()) words.push_back(std::move(word));
  for (const Step& step : steps_) {
    std::vector<Word> parts;
    parts.reserve(words.size());
    for (const Word& whole : words) {
      const std::size_t before = parts.size();
      step.run(whole, limit, parts);
      std::size_t bytes = 0;
      for (std::size_t i = before; i < parts.size(); ++i) bytes += parts[i].text.size();
      limit.made(bytes, step.place);
    }
    words = std::move(parts);
  }
  return words;
}

void PreTokenizer::add(const JsonField& field) {
  const std::string& type = field.at("type").text();
  if (type == "Split") {
    add_split(field);
  } else if (type == "ByteLevel") {
    add_byte_level(field);
  } else if (type == "Digits") {
    add_digits(field);
  } else if (type == "Metaspace") {
    add_metaspace(field);
  } else {
    field.unsupported(fmt::format("pre_tokenizer {}", shown(type)), kPreTokenizers);
  }
}

void PreTokenizer::add_split(const JsonField& field) {
  const Behavior behavior = read_behavior(field.at("behavior"));
  const bool invert = field.at("invert").boolean();
  const JsonField pattern = field.at("pattern");
  std::function<std::vector<TextSpan>(std::string_view, WorkLimit&)> find;
  if (const auto text = pattern.find("String")) {
    find = [delimiter = sought_text(*text)](std::string_view word, WorkLimit&) {
      return cut_at_string(word, delimiter);
    };
  } else {
    const JsonField regex = pattern.at("Regex");
    find = [compiled = Regex(regex.text(), regex)](std::string_view word, WorkLimit& limit) {
      return compiled.cut(word, limit);
    };
  }
  steps_.push_back({field.place(), [behavior, invert, find](const Word& word, WorkLimit& limit,
                                                            std::vector<Word>& words) {
                      std::vector<TextSpan> spans = find(word.text, limit);
                      if (invert) {
                        for (TextSpan& span : spans) span.is_match = !span.is_match;
                      }
                      cut_at(word, spans, behavior, words);
                    }});
}

void PreTokenizer::add_byte_level(const JsonField& field) {
  if (field.boolean_or("add_prefix_space", true)) {
    steps_.push_back({field.place(), [](const Word& word, WorkLimit&, std::vector<Word>& words) {
                        const bool bare = !word.text.starts_with(' ');
                        words.push_back({bare ? ' ' + word.text : word.text, word.at_start});
                      }});
  }
  if (field.boolean_or("use_regex", true)) {
    steps_.push_back(
        {field.place(), [regex = Regex(kGpt2Pattern, field)](const Word& word, WorkLimit& limit,
                                                             std::vector<Word>& words) {
           cut_at(word, regex.cut(word.text, limit), Behavior::kIsolated, words);
         }});
  }
  steps_.push_back({field.place(), [](const Word& word, WorkLimit&, std::vector<Word>& words) {
                      words.push_back({to_byte_alphabet(word.text), word.at_start});
                    }});
}

void PreTokenizer::add_digits(const JsonField& field) {
  const bool individual = field.boolean_or("individual_digits", false);
  steps_.push_back(
      {field.place(), [individual](const Word& word, WorkLimit&, std::vector<Word>& words) {
         cut_at(word, cut_at_digits(word.text, individual), Behavior::kIsolated, words);
       }});
}

void PreTokenizer::add_metaspace(const JsonField& field) {
  const std::string mark = sought_text(field.at("replacement"));
  const std::string scheme = field.text_or("prepend_scheme", "always");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    field.at("prepend_scheme").corrupt(fmt::format("is the unknown scheme {}", shown(scheme)));
  }
  const bool split = field.boolean_or("split", true);
  steps_.push_back(
      {field.place(),
       [mark, scheme, split](const Word& word, WorkLimit& limit, std::vector<Word>& words) {
         std::string text = replace_all(word.text, " ", mark, limit.bytes_left());
         const bool prepend = scheme == "always" || (scheme == "first" && word.at_start);
         if (prepend && !text.starts_with(mark)) text = mark + text;
         const Word marked{std::move(text), word.at_start};
         if (split) {
           cut_at(marked, cut_at_string(marked.text, mark), Behavior::kMergedWithNext, words);
         } else {
           words.push_back(marked);
         }
       }});
}

}  // namespace quantspec
