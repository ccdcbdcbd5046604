#include "bench/trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/shown.h"
#include "datasets/fields.h"

namespace quantspec {

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 26;
constexpr std::size_t kMostRequests = 100'000;
constexpr double kMostMilliseconds = 1e9;  // eleven days
constexpr int kMostTokens = 1 << 24;       // of a request's prompt, or output
constexpr std::int64_t kMostPromptTokens = std::int64_t{1} << 28;  // of all requests: a gigabyte
constexpr std::size_t kMostNameBytes = 256;

// One line of a trace. Messages name the file, the line and the key.
class LineReader {
 public:
  LineReader(std::string_view text, const std::filesystem::path& path, std::size_t line)
      : where_(fmt::format("{}: line {}", path.string(), line)), json_(parse_json(text, where_)) {
    require_object(json_,
                   {"arrival_ms", "prompt_tokens", "output_tokens", "shared_prefix", "owner"}, "");
  }

  TraceRequest read() const {
    TraceRequest request;
    request.arrival = milliseconds("arrival_ms") / 1e3;
    request.prompt_tokens = tokens(json_, "prompt_tokens", kMostTokens);
    request.output_tokens = tokens(json_, "output_tokens", kMostTokens);
    if (json_.contains("owner")) request.owner = name(json_, "owner");
    if (json_.contains("shared_prefix")) {
      const Json& shared = json_["shared_prefix"];
      require_object(shared, {"id", "tokens"}, "shared_prefix: ");
      request.prefix = name(shared, "id");
      request.shared_tokens = tokens(shared, "tokens", request.prompt_tokens);
    }
    return request;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kCorruptFile, "{}: {}", where_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void require_object(const Json& json, std::set<std::string_view> known, const char* in) const {
    if (!json.is_object()) refuse("{}must be a JSON object", in);
    for (const auto& [key, value] : json.items()) {
      if (!known.contains(key)) refuse("{}no key {} is known", in, shown(key));
    }
  }

  const Json& find(const Json& json, const char* key) const {
    if (!json.contains(key)) refuse("'{}' is not there", key);
    return json[key];
  }

  double milliseconds(const char* key) const {
    const Json& value = find(json_, key);
    if (value.is_number()) {
      const auto number = value.get<double>();
      if (number >= 0 && number <= kMostMilliseconds) return number;
    }
    refuse("'{}' must be a number from 0 to {:.0f}", key, kMostMilliseconds);
  }

  int tokens(const Json& json, const char* key, int most) const {
    const Json& value = find(json, key);
    if (value.is_number_unsigned()) {
      const auto number = value.get<std::uint64_t>();
      if (number >= 1 && number <= static_cast<std::uint64_t>(most))
        return static_cast<int>(number);
    }
    refuse("'{}' must be a whole number from 1 to {}", key, most);
  }

  std::string name(const Json& json, const char* key) const {
    const Json& value = find(json, key);
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (!text.empty() && text.size() <= kMostNameBytes) return text;
    }
    refuse("'{}' must be a text of 1 to {} bytes", key, kMostNameBytes);
  }

  std::string where_;
  Json json_;
};

// Pieces of a text that begins anew at its end. No two begin at one place.
class Cutter {
 public:
  explicit Cutter(std::vector<TokenId> text) : text_(std::move(text)) {}

  std::vector<TokenId> cut(std::size_t count) {
    std::size_t at = next_;
    while (starts_.size() < text_.size() && starts_.contains(at)) at = (at + 1) % text_.size();
    starts_.insert(at);
    next_ = (at + count) % text_.size();
    std::vector<TokenId> piece(count);
    for (std::size_t i = 0; i < count; ++i) piece[i] = text_[(at + i) % text_.size()];
    return piece;
  }

 private:
  std::vector<TokenId> text_;
  std::set<std::size_t> starts_;
  std::size_t next_ = 0;
};

// At least as many tokens as are wanted, or all that there are in pieces as long as the longest
// prompt.
std::vector<TokenId> text_for(const Trace& trace, const Dataset& dataset,
                              const Tokenizer& tokenizer, std::size_t before) {
  std::int64_t wanted = 0;
  for (const TraceRequest& request : trace.requests) wanted += request.prompt_tokens;
  const int longest = std::max(trace.longest_prompt(), static_cast<int>(before) + 1);
  PromptOptions options;
  options.length = longest;
  options.count = static_cast<int>(std::min<std::int64_t>(wanted / longest + 1, 1'000'000));
  options.fewer_will_do = true;
  std::vector<TokenId> text;
  for (const Prompt& prompt : dataset.prompts(tokenizer, options)) {
    text.insert(text.end(), prompt.tokens.begin() + static_cast<std::ptrdiff_t>(before),
                prompt.tokens.end());
  }
  return text;
}

}  // namespace

int Trace::longest_prompt() const {
  return std::ranges::max_element(requests, {}, &TraceRequest::prompt_tokens)->prompt_tokens;
}

int Trace::context() const {
  int most = 0;
  for (const TraceRequest& request : requests) {
    most = std::max(most, request.prompt_tokens + request.output_tokens);
  }
  return most;
}

Trace read_trace(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMostBytes);
  Trace trace{path, {}};
  std::size_t line = 0;
  std::int64_t tokens = 0;
  for (std::size_t first = 0; first < text.size();) {
    const std::size_t end = std::min(text.find('\n', first), text.size());
    const std::string_view one = std::string_view(text).substr(first, end - first);
    first = end + 1;
    ++line;
    if (one.find_first_not_of(" \t\r") == one.npos) continue;
    if (trace.requests.size() == kMostRequests) {
      fail(ErrorKind::kCorruptFile, "{}: has more than {} requests", path.string(), kMostRequests);
    }
    trace.requests.push_back(LineReader(one, path, line).read());
    tokens += trace.requests.back().prompt_tokens;
    if (tokens <= kMostPromptTokens) continue;
    fail(ErrorKind::kCorruptFile, "{}: its prompts have more than {} tokens in all", path.string(),
         kMostPromptTokens);
  }
  if (trace.requests.empty()) {
    fail(ErrorKind::kCorruptFile, "{}: has no request, which would be a line of JSON",
         path.string());
  }
  std::ranges::stable_sort(trace.requests, {}, &TraceRequest::arrival);
  return trace;
}

std::vector<std::vector<TokenId>> cut_prompts(const Trace& trace, const Dataset& dataset,
                                              const Tokenizer& tokenizer) {
  if (dataset.spec().starts_with("recall:")) {
    fail(ErrorKind::kInvalidRequest,
         "{} '{}': a trace's prompts are pieces of a text; text:PATH works", field::kDataset,
         dataset.spec());
  }
  const std::vector<TokenId> before = tokenizer.encode("", true);
  Cutter cutter(text_for(trace, dataset, tokenizer, before.size()));
  std::map<std::string, int> shared;  // tokens of the longest use of a prefix
  for (const TraceRequest& request : trace.requests) {
    int& most = shared[request.prefix];
    most = std::max(most, request.shared_tokens);
  }
  std::map<std::string, std::vector<TokenId>> prefixes;
  for (const auto& [id, tokens] : shared) {
    if (tokens > 0) prefixes[id] = cutter.cut(tokens);
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const TraceRequest& request : trace.requests) {
    std::vector<TokenId> prompt = before;
    const std::size_t length = request.prompt_tokens;
    if (request.shared_tokens > 0) {
      const std::vector<TokenId>& prefix = prefixes[request.prefix];
      prompt.insert(prompt.end(), prefix.begin(), prefix.end());
      prompt.resize(std::min<std::size_t>(prompt.size(), request.shared_tokens));
    }
    if (prompt.size() < length) {
      const std::vector<TokenId> own = cutter.cut(length - prompt.size());
      prompt.insert(prompt.end(), own.begin(), own.end());
    }
    prompt.resize(length);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace quantspec
