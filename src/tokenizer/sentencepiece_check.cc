#include "tokenizer/sentencepiece_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/sentencepiece_fields.h"

namespace quantspec {

namespace {

using namespace sentencepiece_fields;

constexpr std::string_view kNoModel = "not a SentencePiece model";
constexpr std::string_view kNoScore = "a piece whose score is no number";

// The limits of what the library does well.
constexpr std::size_t kMaxPieceBytes = 512;  // known models: 100
constexpr std::size_t kMaxNested = 64;       // of the library's table: more overrun it

// Takes a base-128 number off the front of `bytes`.
std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) return std::nullopt;
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

struct Field {
  std::uint32_t tag;
  std::uint64_t value = 0;        // of an integer, or the bits of a number of 32 bits
  std::string_view content = {};  // of a string or a message
};

// Takes a field off the front of a message.
// Source: the Protocol Buffers encoding; groups, which SentencePiece has none of, are refused.
std::optional<Field> take_field(std::string_view& message) {
  const auto tag = take_varint(message);
  if (!tag || *tag > UINT32_MAX) return std::nullopt;
  Field field{.tag = static_cast<std::uint32_t>(*tag)};
  std::optional<std::uint64_t> size;
  switch (*tag & 7) {
    case kInteger: {
      const auto value = take_varint(message);
      if (!value) return std::nullopt;
      field.value = *value;
      return field;
    }
    case k64Bits:
      size = 8;
      break;
    case kBytes:
      size = take_varint(message);
      break;
    case k32Bits:
      size = 4;
      break;
  }
  if (!size || *size > message.size()) return std::nullopt;
  field.content = message.substr(0, *size);
  if ((*tag & 7) == k32Bits) field.value = read_u32(field.content, 0);
  message.remove_prefix(*size);
  return field;
}

class Inspector {
 public:
  ModelFacts inspect(std::string_view model);

 private:
  // Calls visit(field) for every field of a message until it returns a problem, which it returns.
  template <typename Visit>
  static std::string_view visit_fields(std::string_view message, const Visit& visit) {
    while (!message.empty()) {
      const auto field = take_field(message);
      if (!field) return kNoModel;
      if (const std::string_view problem = visit(*field); !problem.empty()) return problem;
    }
    return {};
  }

  std::string_view visit_model(const Field& field);
  std::string_view visit_piece(std::string_view piece);
  std::string_view visit_trainer(const Field& field);
  std::string_view visit_normalizer(const Field& field);
  std::string_view visit_user_defined();

  ModelFacts facts_;
  std::vector<std::string_view> user_defined_;
};

ModelFacts Inspector::inspect(std::string_view model) {
  facts_.most_growth = kSpaceMarkBytes;
  facts_.problem = visit_fields(model, [&](const Field& field) { return visit_model(field); });
  if (facts_.problem.empty()) facts_.problem = visit_user_defined();
  const bool is_corrupt = facts_.problem == kNoModel || facts_.problem == kNoScore;
  facts_.kind = is_corrupt ? ErrorKind::kCorruptFile : ErrorKind::kUnsupportedModel;
  return facts_;
}

std::string_view Inspector::visit_model(const Field& field) {
  const auto visit_all = [&](std::string_view (Inspector::*visit)(const Field&)) {
    return visit_fields(field.content, [&](const Field& inner) { return (this->*visit)(inner); });
  };
  switch (field.tag) {
    case kPieces:
      return visit_piece(field.content);
    case kTrainerSpec:
      return visit_all(&Inspector::visit_trainer);
    case kNormalizer:
    case kDenormalizer:
      return visit_all(&Inspector::visit_normalizer);
    default:
      return {};
  }
}

std::string_view Inspector::visit_piece(std::string_view piece) {
  std::string_view text;
  std::int32_t type = kNormal;
  float score = 0;
  const std::string_view problem = visit_fields(piece, [&](const Field& field) {
    if (field.tag == kText) text = field.content;
    if (field.tag == kScore) score = std::bit_cast<float>(std::uint32_t(field.value));
    const auto value = static_cast<std::int32_t>(field.value);
    // What is no type leaves the one before it as it was. Source: closed enums, as proto2 has them.
    if (field.tag == kType && value >= kNormal && value <= kLastType) type = value;
    return std::string_view();
  });
  if (!problem.empty()) return problem;
  if (type == kUnknown) facts_.unknown = facts_.num_pieces;
  if (++facts_.num_pieces > kMaxTokenId) return "more than 1048575 pieces are not supported";
  if (text.size() > kMaxPieceBytes) return "a piece of more than 512 bytes is not supported";
  if (std::isnan(score)) return kNoScore;
  if (byte_of_token(text)) facts_.has_byte_names = true;
  if (type == kUserDefined) user_defined_.push_back(text.substr(0, text.find('\0')));
  return {};
}

std::string_view Inspector::visit_trainer(const Field& field) {
  if (field.tag == kByteFallback) facts_.has_byte_pieces = field.value != 0;
  if (field.tag == kUnknownSurface && field.content.size() > kMaxPieceBytes) {
    return "an unk_surface of more than 512 bytes is not supported";
  }
  return {};
}

std::string_view Inspector::visit_normalizer(const Field& field) {
  if (field.tag != kPrecompiledCharsmap) return {};
  const CharsmapFacts facts = inspect_charsmap(field.content);
  if (!facts.is_sound) return kNoModel;
  if (!facts.is_bounded) return "normalization rules of this number or length are not supported";
  facts_.most_growth = kMaxCharsmapGrowth;
  return {};
}

// How many user-defined pieces begin a text at once.
std::string_view Inspector::visit_user_defined() {
  std::ranges::sort(user_defined_);
  std::vector<std::string_view> nested;  // each begins with the one before it
  for (const std::string_view piece : user_defined_) {
    while (!nested.empty() && !piece.starts_with(nested.back())) nested.pop_back();
    nested.push_back(piece);
    if (nested.size() > kMaxNested) {
      return "more than 64 user-defined pieces, each the beginning of the next, are not supported";
    }
  }
  return {};
}

}  // namespace

ModelFacts inspect_model(std::string_view model) { return Inspector().inspect(model); }

std::string without_self_tests(std::string_view model) {
  std::string kept;
  kept.reserve(model.size());
  while (!model.empty()) {
    std::string_view rest = model;
    const auto field = take_field(rest);
    check(field.has_value(), "the model was inspected");
    if (field->tag != kSelfTest) kept += model.substr(0, model.size() - rest.size());
    model = rest;
  }
  return kept;
}

}  // namespace quantspec
