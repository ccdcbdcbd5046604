#include "tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/characters.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/sentencepiece_check.h"

namespace quantspec {

namespace {

using sentencepiece::SentencePieceProcessor;

// Put after a serialized ModelProto, this overrides one field of it: normalizer_spec (3) {
// add_dummy_prefix (3): false }. A later field of a protocol buffer wins.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

// Bytes of unknown text that the library puts together in a second.
constexpr std::size_t kMostUnknown = std::size_t{1} << 18;

// The same: trainer_spec (2) { byte_fallback (35): true }, and the pieces (1) { piece (1), type
// (3): BYTE } that it needs, one for each byte. NOTE: without byte pieces the library puts together
// a run of what is unknown one character at a time, which takes quadratic time: 40 s for a
// megabyte. With them it does not, and a run of them is the one unknown token that it would have
// made.
std::string byte_pieces() {
  std::string fields("\x12\x03\x98\x02\x01");
  for (int byte = 0; byte < 256; ++byte) {
    fields += fmt::format("\x0A\x0A\x0A\x06<0x{:02X}>\x18\x06", byte);
  }
  return fields;
}

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
  if (!loads(*processor, model)) {
    fail(ErrorKind::kCorruptFile, "{}: not a SentencePiece model", file);
  }
  return processor;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, std::string_view file,
                         const TokenizerConfig& config)
      : file_(file) {
    load_processors(model, !config.added_tokens.empty() && !config.legacy);
    find_start_rule();
    read_added_tokens(config.added_tokens);
    bos_ = config.bos ? find(*config.bos) : id_or_none(processor_->bos_id());
    eos_ = config.eos ? find(*config.eos) : id_or_none(processor_->eos_id());
    adds_bos_ = config.adds_bos.value_or(true);
    adds_eos_ = config.adds_eos.value_or(false);
  }

  std::vector<TokenId> encode(std::string_view text, bool add_special) const override {
    return encode(text, add_special, {});
  }
  std::vector<TokenId> encode(std::string_view text, bool add_special,
                              std::span<const TextRange> plain) const override;
  std::vector<TextRange> special_tokens_in(std::string_view text) const override;

  using Tokenizer::token_bytes;
  std::string token_bytes(TokenId id, bool& at_start) const override;
  int vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }
  bool is_special(TokenId id) const override;
  std::string name(TokenId id) const override;
  bool marks_every_bad_byte() const override { return true; }

 private:
  void load_processors(std::string_view model, bool with_inner);
  bool is_piece(TokenId id) const { return id >= 0 && id < num_pieces_; }
  std::optional<TokenId> id_or_none(int id) const {
    return id < 0 ? std::nullopt : std::optional(id);
  }
  std::optional<TokenId> find(const std::string& token) const;
  std::string decode_with_library(const std::vector<int>& ids) const;
  std::string piece_bytes(TokenId id, bool& at_start) const;
  void find_start_rule();
  void read_added_tokens(const std::vector<AddedToken>& tokens);
  void encode_plain(std::string_view text, bool at_start, std::vector<TokenId>& ids) const;

  std::string file_;
  std::unique_ptr<SentencePieceProcessor> processor_;
  std::unique_ptr<SentencePieceProcessor> inner_processor_;  // adds no space at the start
  int num_pieces_ = 0;  // ids from here on are byte pieces that are not the model's
  TokenId unknown_ = 0;
  std::size_t most_bytes_ = 0;  // of a text
  int vocab_size_ = 0;
  AddedTokenMatcher matcher_;
  std::unordered_map<TokenId, AddedToken> added_;
  std::unordered_map<std::string, TokenId, TableHash, std::equal_to<>> added_ids_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  bool adds_bos_;
  bool adds_eos_;
  bool strips_mark_ = false;       // the first mark of a text is no space
  bool strips_all_marks_ = false;  // nor are those after it
};

void SentencePieceTokenizer::load_processors(std::string_view model, bool with_inner) {
  const ModelFacts facts = inspect_model(model);
  if (!facts.problem.empty()) fail(facts.kind, "{}: {}", file_, facts.problem);
  most_bytes_ =
      std::numeric_limits<int>::max() / facts.most_growth - 1;  // the library counts in int
  num_pieces_ = vocab_size_ = facts.num_pieces;
  unknown_ = facts.unknown;
  std::string fields = without_self_tests(model);
  if (!facts.has_byte_pieces && facts.has_byte_names) {
    most_bytes_ = kMostUnknown / facts.most_growth;
  } else if (!facts.has_byte_pieces) {
    fields += byte_pieces();
  }
  processor_ = load(fields, file_);
  if (with_inner) inner_processor_ = load(fields += kNoDummyPrefix, file_);
}

std::string SentencePieceTokenizer::decode_with_library(const std::vector<int>& ids) const {
  std::string text;
  const auto status = processor_->Decode(ids, &text);
  if (!status.ok()) {
    fail(ErrorKind::kCorruptFile, "{}: SentencePiece cannot decode with it: {}", file_,
         shown(status.message()));
  }
  return text;
}

// The rule for the first space is in fields of the model that the library does not show, but it
// shows in what the library makes of a piece that begins with the mark.
void SentencePieceTokenizer::find_start_rule() {
  for (int id = 0; id < num_pieces_; ++id) {
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

std::vector<TextRange> SentencePieceTokenizer::special_tokens_in(std::string_view text) const {
  std::vector<TextRange> ranges;
  for (const auto& [range, id] : matcher_.find(text)) {
    if (is_special(id)) ranges.push_back(range);
  }
  return ranges;
}

std::vector<TokenId> SentencePieceTokenizer::encode(std::string_view text, bool add_special,
                                                    std::span<const TextRange> plain) const {
  std::vector<TokenId> ids;
  if (add_special && adds_bos_ && bos_) ids.push_back(*bos_);
  const std::string valid_text = repair_utf8(text);
  for (const auto& piece : matcher_.split(valid_text, plain)) {
    if (piece.id) {
      ids.push_back(*piece.id);
    } else {
      encode_plain(piece.text, piece.text.data() == valid_text.data(), ids);
    }
  }
  if (add_special && adds_eos_ && eos_) ids.push_back(*eos_);
  return ids;
}

void SentencePieceTokenizer::encode_plain(std::string_view text, bool at_start,
                                          std::vector<TokenId>& ids) const {
  if (text.size() > most_bytes_) {
    fail(ErrorKind::kInvalidRequest,
         "{}: a text of {} bytes; give a shorter one: SentencePiece takes up to {}", file_,
         text.size(), most_bytes_);
  }
  const auto& processor = at_start || !inner_processor_ ? processor_ : inner_processor_;
  std::vector<int> part;
  const auto status = processor->Encode({text.data(), text.size()}, &part);
  if (!status.ok()) {
    fail(ErrorKind::kUnsupportedModel, "{}: SentencePiece cannot encode this text with it: {}",
         file_, shown(status.message()));
  }
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (is_piece(part[i])) {
      ids.push_back(part[i]);
    } else if (i == 0 || is_piece(part[i - 1])) {
      ids.push_back(unknown_);
    }
  }
}

bool SentencePieceTokenizer::is_special(TokenId id) const {
  const auto added = added_.find(id);
  if (added != added_.end()) return added->second.special;
  return is_piece(id) && processor_->IsControl(id);
}

std::string SentencePieceTokenizer::name(TokenId id) const {
  const auto added = added_.find(id);
  if (added != added_.end()) return added->second.content;
  return is_piece(id) ? processor_->IdToPiece(id) : std::string();
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
