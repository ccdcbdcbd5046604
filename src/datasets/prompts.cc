#include "datasets/prompts.h"

#include <algorithm>

#include "base/error.h"
#include "datasets/fields.h"
#include "datasets/partial_encoding.h"

namespace quantspec {

namespace {

// Documents are first joined to so many bytes for every token needed, which is enough for English.
constexpr std::size_t kJoinedPerToken = 8;

// What the tokenizer puts before every text: not after it (EOS), where a prompt must go on.
std::vector<TokenId> prefix_of(const Tokenizer& tokenizer) {
  const std::vector<TokenId> plain = tokenizer.encode("a", false);
  std::vector<TokenId> framed = tokenizer.encode("a", true);
  framed.erase(std::search(framed.begin(), framed.end(), plain.begin(), plain.end()), framed.end());
  return framed;
}

}  // namespace

PromptCutter::PromptCutter(const DatasetKind& kind, const Message& typed,
                           const std::vector<Document>& documents, const Tokenizer& tokenizer,
                           const PromptOptions& options)
    : kind_(kind),
      typed_(typed),
      documents_(documents),
      tokenizer_(tokenizer),
      options_(options),
      prefix_(prefix_of(tokenizer)) {
  check(options.count > 0 && options.continuation >= 0, "prompts are asked for");
  const int prefix = static_cast<int>(prefix_.size());
  if (options.length <= prefix) {
    fail(ErrorKind::kInvalidRequest, "{}: a prompt of {} tokens holds no text; use {} or more",
         typed, options.length, prefix + 1);
  }
  body_ = options.length - prefix;
  const bool goes_on = kind.form == PromptForm::kPiece || kind.form == PromptForm::kJoined ||
                       !kind.answer_field.empty();
  needed_ = body_ + (goes_on ? options.continuation : 0);
  check_recall();
}

void PromptCutter::check_recall() {
  if (kind_.form != PromptForm::kRecall) {
    if (options_.recall_distance == 0) return;
    fail(ErrorKind::kInvalidRequest,
         "{}: {} is of another kind than recall:", field::kRecallDistance, typed_);
  }
  if (options_.recall_distance == 0) options_.recall_distance = options_.length / 2;
  const int least = kRecallTokens + std::max(1, options_.continuation);
  const int most = static_cast<int>(body_) - kRecallTokens;
  if (most < least) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: a prompt of {} tokens cannot hold a passage, {} tokens that follow "
         "it and its repetition; {} tokens can",
         field::kRecallDistance, options_.recall_distance, options_.length,
         std::max(1, options_.continuation), options_.length + least - most);
  }
  if (options_.recall_distance < least || options_.recall_distance > most) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: with prompts of {} tokens, of which {} follow the passage, use {} "
         "to {}",
         field::kRecallDistance, options_.recall_distance, options_.length,
         std::max(1, options_.continuation), least, most);
  }
}

std::vector<Prompt> PromptCutter::cut() {
  switch (kind_.form) {
    case PromptForm::kTask:
      cut_tasks();
      break;
    case PromptForm::kJoined:
      cut_joined();
      break;
    case PromptForm::kPiece:
    case PromptForm::kRecall:
      cut_pieces(documents_);
      break;
  }
  const bool enough = is_done() || (options_.fewer_will_do && !prompts_.empty());
  if (!enough) fail_too_few();
  return std::move(prompts_);
}

// The first piece of every document, then the second of every document that has one, and so on.
void PromptCutter::cut_pieces(const std::vector<Document>& documents) {
  std::vector<PartialEncoding> encodings;
  std::vector<std::size_t> starts;
  for (const Document& document : documents) {
    encodings.emplace_back(document.text, tokenizer_);
    starts.push_back(front_of(document.text));
  }
  // What later rounds will want is encoded in the first one, for encoding starts at the beginning.
  const std::size_t later = (options_.count - 1) / documents.size() * body_;
  bool found = true;
  for (int round = 0; found; ++round) {
    found = false;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const auto& tokens = encodings[i].at_least(starts[i] + needed_ + (round == 0 ? later : 0));
      note_length(documents[i].name, tokens.size());
      if (tokens.size() < needed_) continue;
      // From a short document less is dropped, so that it has one piece.
      if (round == 0) starts[i] = std::min(starts[i], tokens.size() - needed_);
      if (starts[i] + needed_ > tokens.size()) continue;
      cut_piece(documents[i].name, tokens, starts[i]);
      if (is_done()) return;
      starts[i] += body_;
      found = true;
    }
  }
}

void PromptCutter::cut_piece(const std::string& name, const std::vector<TokenId>& tokens,
                             std::size_t start) {
  Prompt prompt{fmt::format("{}, token {}", name, start), prefix_, {}};
  const auto begin = tokens.begin() + start;
  prompt.tokens.insert(prompt.tokens.end(), begin, begin + body_);
  if (kind_.form == PromptForm::kRecall) {
    turn_into_recall(prompt);
  } else {
    prompt.continuation.assign(begin + body_, begin + needed_);
  }
  prompts_.push_back(std::move(prompt));
}

void PromptCutter::turn_into_recall(Prompt& prompt) const {
  const auto repetition = prompt.tokens.end() - kRecallTokens;
  const auto passage = repetition - options_.recall_distance;
  const auto followers = passage + kRecallTokens;
  prompt.continuation.assign(followers, followers + options_.continuation);
  std::copy_n(passage, kRecallTokens, repetition);
}

void PromptCutter::cut_tasks() {
  for (const Document& document : documents_) {
    Prompt prompt = cut_task(document);
    const std::size_t tokens = prompt.tokens.size() - prefix_.size();
    note_length(document.name, tokens + prompt.continuation.size());
    if (tokens < body_ || tokens + prompt.continuation.size() < needed_) continue;
    prompts_.push_back(std::move(prompt));
    if (is_done()) return;
  }
}

// One that is too short where the document, or its answer, is.
Prompt PromptCutter::cut_task(const Document& document) {
  const std::vector<TokenId> instruction = encode(kind_.instruction);
  const std::vector<TokenId> question = encode(document.question);
  const std::size_t fixed = instruction.size() + question.size();
  if (body_ <= fixed) {
    fail(ErrorKind::kInvalidRequest,
         "{}: a prompt of {} tokens holds the instruction alone, of {}; use more than {}", typed_,
         options_.length, document.name, prefix_.size() + fixed);
  }
  Prompt prompt{document.name, prefix_, {}};
  const auto add = [&](auto begin, auto end) {
    prompt.tokens.insert(prompt.tokens.end(), begin, end);
  };
  // What stands on the same side of the cut is encoded as one text. Some tokenizers put a space
  // before every text: apart, what a question repeats would not be the document's tokens.
  if (kind_.kept == Kept::kStart) {
    const std::string text = std::string(kind_.instruction) + document.text;
    PartialEncoding encoding(text, tokenizer_);
    const std::size_t room = body_ - question.size();
    const auto& tokens = encoding.at_least(room);
    add(tokens.begin(), tokens.begin() + std::min(tokens.size(), room));
    add(question.begin(), question.end());
  } else {
    const std::vector<TokenId> tokens = encode(document.text + document.question);
    const std::size_t room = body_ - instruction.size();
    add(instruction.begin(), instruction.end());
    add(tokens.end() - std::min(tokens.size(), room), tokens.end());
    if (tokens.size() >= room) prompt.continuation = answer_of(document, tokens);
  }
  return prompt;
}

// The first tokens of the answer as they follow `asked`, those of all that stands before it.
std::vector<TokenId> PromptCutter::answer_of(const Document& document,
                                             const std::vector<TokenId>& asked) const {
  if (options_.continuation == 0 || document.answer.empty()) return {};
  std::vector<TokenId> tokens = encode(document.text + document.question + document.answer);
  if (tokens.size() < asked.size() || !std::equal(asked.begin(), asked.end(), tokens.begin())) {
    fail(ErrorKind::kInvalidRequest,
         "{}: the answer of {} begins within a token; one that begins with a space or a line works",
         typed_, document.name);
  }
  tokens.erase(tokens.begin(), tokens.begin() + asked.size());
  tokens.resize(std::min<std::size_t>(tokens.size(), options_.continuation));
  return tokens;
}

// Of a large set only the start is needed, so the documents are joined in steps.
void PromptCutter::cut_joined() {
  const std::size_t wanted = options_.count * body_ + options_.continuation;
  for (std::size_t bytes = kJoinedPerToken * wanted;; bytes *= 2) {
    Document joined{documents_.front().name, documents_.front().text};
    std::size_t used = 1;
    for (; used < documents_.size() && joined.text.size() < bytes; ++used) {
      joined.text += "\n\n";
      joined.text += documents_[used].text;
    }
    if (used > 1) joined.name += " and on";
    prompts_.clear();
    cut_pieces({std::move(joined)});
    if (is_done() || used == documents_.size()) return;
  }
}

// The tokens at the start of a document that no prompt is cut from.
std::size_t PromptCutter::front_of(std::string_view text) const {
  return std::min<std::size_t>(kind_.front_tokens, text.size() / kind_.front_bytes_per_token);
}

std::vector<TokenId> PromptCutter::encode(std::string_view text) const {
  return tokenizer_.encode(text, false);
}

void PromptCutter::note_length(const std::string& name, std::size_t tokens) {
  if (!longest_name_.empty() && tokens + prefix_.size() <= longest_) return;
  longest_name_ = name;
  longest_ = tokens + prefix_.size();
}

void PromptCutter::fail_too_few() const {
  const int after = static_cast<int>(needed_ - body_);
  const std::string wanted =
      after == 0 ? fmt::format("{} tokens", options_.length)
                 : fmt::format("{} tokens and {} after them", options_.length, after);
  if (prompts_.empty()) {
    fail(ErrorKind::kInvalidRequest, "{}: no document holds {}; the longest, {}, has {} tokens",
         typed_, wanted, longest_name_, longest_);
  }
  fail(ErrorKind::kInvalidRequest, "{}: {} prompts of {} were asked for and there are {}", typed_,
       options_.count, wanted, prompts_.size());
}

}  // namespace quantspec
