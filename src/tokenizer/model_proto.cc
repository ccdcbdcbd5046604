#include "tokenizer/model_proto.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/message.h"
#include "tokenizer/characters.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/sentencepiece_fields.h"

namespace quantspec {

namespace {

using namespace sentencepiece_fields;

// A base-128 number, the lowest digits first.
void put_varint(std::uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_integer(std::uint32_t tag, std::uint64_t value, std::string& out) {
  put_varint(tag, out);
  put_varint(value, out);
}

void put_bytes(std::uint32_t tag, std::string_view bytes, std::string& out) {
  put_varint(tag, out);
  put_varint(bytes.size(), out);
  out += bytes;
}

// A float is written as its 32 bits, the lowest byte first.
void put_float(std::uint32_t tag, float value, std::string& out) {
  put_varint(tag, out);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift & 0xFF);
}

std::string trainer_spec(const Vocabulary& vocabulary) {
  std::string spec;
  put_integer(kModelType, kBpe, spec);
  put_integer(kByteFallback, std::ranges::count(vocabulary.types, int{kByte}) > 0, spec);
  return spec;
}

// The precompiled rules of a model are no part of a GGUF file, and converters take no BPE model
// that has any.
std::string normalizer_spec(const Vocabulary& vocabulary) {
  std::string spec;
  put_integer(kAddDummyPrefix, vocabulary.add_space_prefix.value_or(true), spec);
  put_integer(kRemoveExtraSpaces, vocabulary.remove_extra_whitespaces.value_or(false), spec);
  put_integer(kEscapeSpaces, true, spec);
  return spec;
}

}  // namespace

std::string piece_text(const Vocabulary& vocabulary, TokenId id) {
  const std::string_view token = vocabulary.tokens[id];
  if (token.empty()) return fmt::format("[EMPTY_{}]", id);
  if (vocabulary.types[id] == kUserDefined) return replace_all(token, " ", kSpaceMark);
  return std::string(token);
}

std::string model_proto(const Vocabulary& vocabulary, TokenId unknown) {
  std::string model, piece;
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.tokens.size()); ++id) {
    const int type = vocabulary.tokens[id].empty() ? int{kControl} : vocabulary.types[id];
    piece.clear();
    put_bytes(kText, piece_text(vocabulary, id), piece);
    put_float(kScore, vocabulary.scores[id], piece);
    put_integer(kType, id == unknown ? int{kUnknown} : type, piece);
    put_bytes(kPieces, piece, model);
  }
  put_bytes(kTrainerSpec, trainer_spec(vocabulary), model);
  put_bytes(kNormalizer, normalizer_spec(vocabulary), model);
  return model;
}

}  // namespace quantspec
