#include "tokenizer/named_pre_tokenizer.h"

#include <map>
#include <string>

#include "base/json.h"
#include "tokenizer/vocabulary.h"

namespace quantspec {

namespace {

// The regular expressions are those of the models' tokenizer.json, which llama.cpp's
// src/llama-vocab.cpp quotes where it rewrites them for a smaller language.

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kDigits3 = R"(\p{N}{1,3})";

// GPT-4's, of which the kinds differ in how many digits make a word, and in marks.
constexpr const char* kThreeDigits =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" SPACES;
constexpr const char* kOneDigit =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" SPACES;
constexpr const char* kWithMarks =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" SPACES;

// GPT-4o's: an upper-case letter begins a word.
#define BEFORE_WORD R"([^\r\n\p{L}\p{N}]?)"
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
constexpr const char* kTekken = BEFORE_WORD UPPER "*" LOWER "+|" BEFORE_WORD UPPER "+" LOWER
                                                  R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" SPACES;
constexpr const char* kGpt4o =
    BEFORE_WORD UPPER "*" LOWER "+" CONTRACTIONS "?|" BEFORE_WORD UPPER "+" LOWER "*" CONTRACTIONS
                      R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" SPACES;

constexpr const char* kLineEnd = R"([\r\n])";
constexpr const char* kLetters = R"(\s?\p{L}+)";
constexpr const char* kPunctuation = R"(\s?\p{P}+)";
// Ideographs, what lies between U+0800 and them, and Hangul.
constexpr const char* kEastAsian = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
// Ideographs, Hiragana and Katakana.
constexpr const char* kIdeographs = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";

// Letters that have a case, as far as DeepSeek LLM's file lists them.
constexpr const char* kCasedLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF})"
    R"(\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F})"
    R"(\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481})"
    R"(\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD})"
    R"(\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"
    R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})"
    R"(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D})"
    R"(\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06})"
    R"(\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)";
constexpr const char* kWesternPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
// "\s+$", which takes quadratic time where a run of spaces does not end its text; the leftmost
// match begins where the run does.
constexpr const char* kSpacesAtEnd = R"((?<!\s)\s++$)";
constexpr const char* kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
    R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" SPACES;

#undef CONTRACTIONS
#undef SPACES
#undef BEFORE_WORD
#undef UPPER
#undef LOWER

using Table = std::map<std::string_view, NamedPreTokenizer>;

Table make_table() {
  const NamedPreTokenizer llama3{
      .splits = {kThreeDigits}, .ignores_merges = true, .adds_bos = true};
  const NamedPreTokenizer qwen2{.splits = {kOneDigit}, .composes = true};
  const NamedPreTokenizer gpt2{.splits = {kGpt2}};
  const NamedPreTokenizer neox{.splits = {kGpt2}, .composes = true};
  const NamedPreTokenizer digits{.splits = {kDigit, kGpt2}};
  const NamedPreTokenizer gpt4{.splits = {kThreeDigits}};
  const NamedPreTokenizer gpt4o{.splits = {kGpt4o}};
  return {
      {"llama-bpe", llama3},
      {"llama3", llama3},
      {"llama-v3", llama3},
      {"qwen2", qwen2},
      {"deepseek-r1-qwen", qwen2},
      {"kormo", qwen2},
      {"f2llmv2", qwen2},
      {"megrez", qwen2},
      {"qwen35", {.splits = {kWithMarks}, .composes = true}},
      {"smollm", digits},
      {"starcoder", digits},
      {"refact", digits},
      {"codeshell", digits},
      {"command-r", {.splits = {kDigit, kGpt2}, .composes = true}},
      {"gpt-2", gpt2},
      {"phi-2", gpt2},
      {"mpt", neox},
      {"olmo", neox},
      {"dbrx", gpt4},
      {"smaug-bpe", gpt4},
      {"glm4", gpt4},
      {"chatglm-bpe", gpt4},
      {"gpt-4o", gpt4o},
      {"llama4", gpt4o},
      {"tekken", {.splits = {kTekken}, .ignores_merges = true, .adds_bos = true}},
      {"deepseek-llm",
       {.splits = {kLineEnd, kCasedLetters, kWesternPunctuation, kSpacesAtEnd, kEastAsian,
                   kDigit}}},
      {"deepseek-coder", {.splits = {kLineEnd, kLetters, kPunctuation, kEastAsian, kDigit}}},
      {"deepseek-v3", {.splits = {kDigits3, kIdeographs, kDeepSeekV3}}},
  };
}

const Table& table() {
  static const Table instance = make_table();
  return instance;
}

}  // namespace

const NamedPreTokenizer* find_pre_tokenizer(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

std::vector<std::string_view> pre_tokenizer_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, rules] : table()) names.push_back(name);
  return names;
}

Json NamedPreTokenizer::normalizer() const { return composes ? Json{{"type", "NFC"}} : Json(); }

Json NamedPreTokenizer::pre_tokenizer() const {
  Json steps = Json::array();
  for (const std::string_view regex : splits) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(regex)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace quantspec
