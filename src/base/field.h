// What a caller can set and this library checks, as a value. The library knows no spelling of
// these: the command line calls the context size --ctx-size, a server calls it by a key of JSON.
// Each has one table, a FieldNames, by which it reads messages (base/message.h).
//
// A room declares its own in its fields.h, so that a new one compiles few files:
//
//     namespace quantspec::field {
//     inline constexpr Field kTrace{"trace"};
//     }
//
// Those that rooms below the engine check are in base/fields.h, as each of them checks some.
#pragma once

#include <string_view>

namespace quantspec {

struct Field {
  std::string_view plain_name;  // no other field has it; a value can follow: "context size"

  bool operator==(const Field&) const = default;
};

// How somebody calls each of them, such that a value can follow: "--ctx-size".
using FieldNames = std::string_view (*)(Field);

// What a message has where nobody says otherwise.
inline std::string_view plain_name(Field field) { return field.plain_name; }

}  // namespace quantspec
