#include "tokenizer/tokenizer.h"

#include "base/error.h"
#include "base/files.h"
#include "base/utf8.h"
#include "tokenizer/characters.h"
#include "tokenizer/json_tokenizer.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 28;  // known tokenizers: up to 35 MB

}  // namespace

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  StreamDecoder stream(*this);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  return text + stream.flush();
}

std::string Tokenizer::token_bytes(TokenId id) const {
  bool at_start = false;
  return token_bytes(id, at_start);
}

void require_text(std::string_view text, std::string_view source) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.state != Utf8State::kValid || text[at] == '\0') {
      fail(ErrorKind::kCorruptFile, "{}: no text: byte {} is 0x{:02x}, {}; a text in UTF-8 works",
           source, at, static_cast<unsigned char>(text[at]),
           text[at] == '\0' ? "as in a binary file" : "where no whole character of UTF-8 begins");
    }
    at += step.length;
  }
}

std::string unix_text(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return replace_all(text, "\r\n", "\n");
}

std::string StreamDecoder::push(TokenId id) {
  held_ += tokenizer_->token_bytes(id, at_start_);
  return take(/*at_end=*/false);
}

std::string StreamDecoder::flush() {
  at_start_ = true;
  return take(/*at_end=*/true);
}

std::string StreamDecoder::take(bool at_end) {
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = next_utf8(rest);
    if (step.state == Utf8State::kUnfinished && !at_end) break;
    if (step.state == Utf8State::kValid) {
      text += rest.substr(0, step.length);
    } else {
      const std::size_t marks = tokenizer_->marks_every_bad_byte() ? step.length : 1;
      for (std::size_t i = 0; i < marks; ++i) text += kReplacementCharacter;
    }
    rest.remove_prefix(step.length);
  }
  held_.erase(0, held_.size() - rest.size());
  return text;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir) {
  const std::filesystem::path model = model_dir / "tokenizer.model";
  const std::filesystem::path json = model_dir / "tokenizer.json";
  if (file_exists(model)) {
    return make_sentencepiece_tokenizer(read_file(model, kMaxFileBytes), model.string(),
                                        load_tokenizer_config(model_dir));
  }
  if (file_exists(json)) {
    return make_json_tokenizer(read_file(json, kMaxFileBytes), json.string(),
                               load_tokenizer_config(model_dir));
  }
  fail(ErrorKind::kInvalidRequest,
       "{}: no tokenizer: expected tokenizer.model (SentencePiece) or tokenizer.json (BPE)",
       model_dir.string());
}

}  // namespace quantspec
