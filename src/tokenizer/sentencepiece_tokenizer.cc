#include "tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/characters.h"
#include "tokenizer/sentencepiece_check.h"

namespace quantspec {

namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// Put after a serialized ModelProto, this overrides one field of it: normalizer_spec (3) {
// add_dummy_prefix (3): false }. A later field of a protocol buffer wins.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

// NOTE: the library reports most broken models as a status and some as an exception.
bool loads(SentencePieceProcessor& processor, std::string_view model) {
  try {
    return processor.LoadFromSerializedProto({model.data(), model.size()}).ok();
  } catch (const std::exception&) {
    return false;
  }
}

std::unique_ptr<SentencePieceProcessor> load(std::string_view model, std::string_view file) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  if (!has_sound_normalization(model) || !loads(*processor, model) ||
      processor->GetPieceSize() <= 0) {
    fail(ErrorKind::kCorruptFile, "{}: not a SentencePiece model", file);
  }
  if (processor->GetPieceSize() > kMaxTokenId) {
    fail(ErrorKind::kCorruptFile, "{}: more than {} pieces", file, kMaxTokenId);
  }
  return processor;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, std::string_view file,
                         const TokenizerConfig& config)
      : processor_(load(model, file)), vocab_size_(processor_->GetPieceSize()) {
    find_start_rule();
    if (!config.added_tokens.empty()) read_added_tokens(config.added_tokens);
    if (!added_.empty() && !config.legacy)
      inner_processor_ = load(model + std::string(kNoDummyPrefix), file);
    bos_ = config.bos ? find(*config.bos) : id_or_none(processor_->bos_id());
    eos_ = config.eos ? find(*config.eos) : id_or_none(processor_->eos_id());
    adds_bos_ = config.adds_bos.value_or(true);
    adds_eos_ = config.adds_eos.value_or(false);
  }

  std::vector<TokenId> encode(std::string_view text, bool add_special) const override;

  using Tokenizer::token_bytes;
  std::string token_bytes(TokenId id, bool& at_start) const override;
  int vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }
  bool is_special(TokenId id) const override;
  bool marks_every_bad_byte() const override { return true; }

 private:
  bool is_piece(TokenId id) const { return id >= 0 && id < processor_->GetPieceSize(); }
  std::optional<TokenId> id_or_none(int id) const {
    return id < 0 ? std::nullopt : std::optional(id);
  }
  std::optional<TokenId> find(const std::string& token) const;
  std::string decode_with_library(const std::vector<int>& ids) const;
  std::string piece_bytes(TokenId id, bool& at_start) const;
  void find_start_rule();
  void read_added_tokens(const std::vector<AddedToken>& tokens);

  std::unique_ptr<SentencePieceProcessor> processor_;
  std::unique_ptr<SentencePieceProcessor> inner_processor_;  // adds no space at the start
  int vocab_size_;
  AddedTokenMatcher matcher_;
  std::unordered_map<TokenId, AddedToken> added_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  bool adds_bos_;
  bool adds_eos_;
  bool strips_mark_ = false;       // the first mark of a text is no space
  bool strips_all_marks_ = false;  // nor are those after it
};

std::string SentencePieceTokenizer::decode_with_library(const std::vector<int>& ids) const {
  std::string text;
  const auto status = processor_->Decode(ids, &text);
  check(status.ok(), "SentencePiece decodes its own ids");
  return text;
}

// The rule for the first space is in fields of the model that the library does not show, but it
// shows in what the library makes of a piece that begins with the mark.
void SentencePieceTokenizer::find_start_rule() {
  for (int id = 0; id < processor_->GetPieceSize(); ++id) {
    const std::string& piece = processor_->IdToPiece(id);
    if (!piece.starts_with(kSpaceMark) || processor_->IsControl(id) || processor_->IsUnknown(id)) {
      continue;
    }
    const bool is_mark = piece == kSpaceMark;
    if (is_mark || !strips_mark_) strips_mark_ = !decode_with_library({id}).starts_with(' ');
    if (is_mark) {
      strips_all_marks_ = decode_with_library({id, id}).empty();
      return;
    }
  }
}

void SentencePieceTokenizer::read_added_tokens(const std::vector<AddedToken>& tokens) {
  std::vector<AddedTokenMatcher::Pattern> patterns;
  for (const AddedToken& token : tokens) {
    patterns.push_back({token.content, token});
    added_[token.id] = token;
    added_ids_[token.content] = token.id;
    vocab_size_ = std::max(vocab_size_, token.id + 1);
  }
  matcher_ = AddedTokenMatcher(std::move(patterns));
}

std::optional<TokenId> SentencePieceTokenizer::find(const std::string& token) const {
  const auto added = added_ids_.find(token);
  if (added != added_ids_.end()) return added->second;
  const int id = processor_->PieceToId(token);
  if (!is_piece(id) || processor_->IdToPiece(id) != token) return std::nullopt;
  return id;
}

std::vector<TokenId> SentencePieceTokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<TokenId> ids;
  if (add_special && adds_bos_ && bos_) ids.push_back(*bos_);
  std::vector<int> part;
  const std::string valid_text = repair_utf8(text);
  for (const auto& piece : matcher_.split(valid_text)) {
    if (piece.id) {
      ids.push_back(*piece.id);
      continue;
    }
    const bool first = piece.text.data() == valid_text.data();
    const auto& processor = first || !inner_processor_ ? processor_ : inner_processor_;
    const auto status = processor->Encode({piece.text.data(), piece.text.size()}, &part);
    check(status.ok(), "SentencePiece encodes any text");
    ids.insert(ids.end(), part.begin(), part.end());
  }
  if (add_special && adds_eos_ && eos_) ids.push_back(*eos_);
  return ids;
}

bool SentencePieceTokenizer::is_special(TokenId id) const {
  const auto added = added_.find(id);
  if (added != added_.end()) return added->second.special;
  return is_piece(id) && processor_->IsControl(id);
}

std::string SentencePieceTokenizer::token_bytes(TokenId id, bool& at_start) const {
  if (is_special(id)) return {};
  const auto added = added_.find(id);
  if (added == added_.end()) return is_piece(id) ? piece_bytes(id, at_start) : std::string();
  at_start = false;
  return added->second.content;
}

std::string SentencePieceTokenizer::piece_bytes(TokenId id, bool& at_start) const {
  std::string text = processor_->IdToPiece(id);
  if (processor_->IsUnknown(id)) {
    text = decode_with_library({id});  // the model's sign for "unknown"
  } else if (processor_->IsByte(id)) {
    text.assign(1, byte_of_token(text).value_or('\0'));
  } else {
    if (at_start && strips_mark_ && text.starts_with(kSpaceMark)) {
      text.erase(0, kSpaceMark.size());
      at_start = strips_all_marks_;
    }
    text = replace_all(text, kSpaceMark, " ");
  }
  if (!text.empty()) at_start = false;
  return text;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        std::string_view file,
                                                        const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(model, file, config);
}

}  // namespace quantspec
