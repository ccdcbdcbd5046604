// Fuzzes tokenizer.json: the bytes before the first NUL are the file, those after it a text. A file
// that is refused must be refused with an Error; one that is taken must encode and decode.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/json_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantspec;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find('\0');
  const std::string_view text =
      cut == std::string_view::npos ? "It's <|a|>  12 caf\xC3\xA9\n" : input.substr(cut + 1);
  try {
    const auto tokenizer = make_json_tokenizer(input.substr(0, cut), "fuzz", TokenizerConfig());
    tokenizer->decode(tokenizer->encode(text, /*add_special=*/true));
  } catch (const Error&) {  // refused
  }
  return 0;
}
