// The fields of a SentencePiece model that this room reads and writes, by their tags.
// Sources: sentencepiece_model.proto; the Protocol Buffers encoding.
#pragma once

#include <cstdint>

namespace quantspec::sentencepiece_fields {

// A field of a message is known by its tag: its number, and how it is written. With another tag it
// would be another field.
enum WireType { kInteger = 0, k64Bits = 1, kBytes = 2, k32Bits = 5 };
constexpr std::uint32_t tag(std::uint32_t number, WireType type) { return number << 3 | type; }

// Of a model.
constexpr std::uint32_t kPieces = tag(1, kBytes);
constexpr std::uint32_t kTrainerSpec = tag(2, kBytes);
constexpr std::uint32_t kNormalizer = tag(3, kBytes);
constexpr std::uint32_t kSelfTest = tag(4, kBytes);
constexpr std::uint32_t kDenormalizer = tag(5, kBytes);

// Of a piece.
constexpr std::uint32_t kText = tag(1, kBytes);
constexpr std::uint32_t kScore = tag(2, k32Bits);
constexpr std::uint32_t kType = tag(3, kInteger);
enum PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
  kLastType = kByte
};

// Of the trainer_spec.
constexpr std::uint32_t kModelType = tag(3, kInteger);
constexpr std::uint64_t kBpe = 2;  // a model type
constexpr std::uint32_t kByteFallback = tag(35, kInteger);
constexpr std::uint32_t kUnknownSurface = tag(44, kBytes);

// Of a normalizer.
constexpr std::uint32_t kPrecompiledCharsmap = tag(2, kBytes);
constexpr std::uint32_t kAddDummyPrefix = tag(3, kInteger);
constexpr std::uint32_t kRemoveExtraSpaces = tag(4, kInteger);
constexpr std::uint32_t kEscapeSpaces = tag(5, kInteger);

}  // namespace quantspec::sentencepiece_fields
