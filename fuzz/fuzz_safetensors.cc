// Any bytes as a safetensors file and as an index: only Error may come out, and what is accepted
// must lie within the file.
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "model/safetensors.h"

using namespace quantspec;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const auto& [name, entry] : parse_safetensors(std::as_bytes(std::span(data, size)), "f")) {
      if (entry.begin > entry.end || entry.end > size) __builtin_trap();
    }
  } catch (const Error&) {
  }
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    parse_safetensors_index(parse_json(text, "f"), "f");
  } catch (const Error&) {
  }
  return 0;
}
