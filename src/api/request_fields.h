// Every field of a request's body, once: its name, where it may stand, what it may be, what becomes
// of it. The parser, docs/server.md and openapi.json come from this table, and tests of every
// bound. Private to api/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/wanted.h"

namespace quantspec::api {

enum class FieldType {
  kFlag,
  kWhole,   // a number from least to most
  kReal,    // from low to high
  kText,    // of most bytes
  kChoice,  // one of the texts in `values`
  kTexts,   // one, or a list of them
  kIds,     // a list of token ids
  kObject,
  kList,
  kAny,  // what reads it knows
};

enum class Honour {
  kDone,      // what it says is done
  kAccepted,  // it says nothing that a reply could show
  kNeutral,   // not there: taken only where it asks for nothing, as `values` say
};

inline constexpr std::size_t kMostBiases = 300;  // as OpenAI
inline constexpr std::size_t kMostStops = 16;
inline constexpr std::size_t kMostStopBytes = 256;
inline constexpr int kMostN = 16;
inline constexpr std::size_t kMostPrompts = 128;

struct RequestField {
  std::string_view name;
  unsigned endpoints = 0;  // a sum of Endpoint
  FieldType type = FieldType::kAny;
  Honour honour = Honour::kDone;
  bool required = false;
  std::int64_t least = 0;
  std::uint64_t most = 0;  // also of bytes, and of elements
  double low = 0;
  double high = 0;
  std::string_view values = {};    // a list in JSON
  std::string_view standard = {};  // what holds where it is not said
  std::string_view doc = {};       // one line; of kNeutral, why it is not there
  void (*apply)(const RequestField& row, const OrderedJson& value, Wanted& wanted) = nullptr;

  bool is_of(Endpoint endpoint) const { return (endpoints & static_cast<unsigned>(endpoint)) != 0; }
  std::string range() const;  // "a whole number from 1 to 16"
};

std::span<const RequestField> request_fields();
// Null: it is not known there.
const RequestField* find_field(std::string_view name, Endpoint endpoint);

// Throws kInvalidRequest naming the field where the value is not of its type or range; applies it.
void apply_field(const RequestField& row, const OrderedJson& value, Wanted& wanted);

// What a body asks for. unknown: gets the names of fields that are not known. Throws
// kInvalidRequest naming the field: for a value that cannot be, for one that is not honoured, and
// for values that contradict each other.
Wanted read_wanted(Endpoint endpoint, const OrderedJson& body, const SamplingParams& defaults,
                   std::vector<std::string>& unknown);

}  // namespace quantspec::api
