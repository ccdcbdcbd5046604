// A folder with tokenizer.json, tokenizer_config.json and added_tokens.json, and a text: the parts
// of the input, in this order.
#include "fuzz_tokenizer.h"

using namespace quantspec;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = parts_of(data, size, 4);
  write_or_remove("tokenizer.json", part_or_empty(parts, 0));
  write_or_remove("tokenizer_config.json", part_or_empty(parts, 1));
  write_or_remove("added_tokens.json", part_or_empty(parts, 2));
  try_tokenizer(parts.size() > 3 ? parts[3] : "It's <|a|>  12 caf\xC3\xA9\n");
  return 0;
}
