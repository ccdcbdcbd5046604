// How the command line spells what the library calls by Field: the one place.
#pragma once

#include <string_view>

#include "base/field.h"

namespace quantspec::cli {

// "--ctx-size". A value can follow.
std::string_view flag_of(Field field);

}  // namespace quantspec::cli
