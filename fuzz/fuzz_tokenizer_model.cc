// A folder with tokenizer_config.json, added_tokens.json and a SentencePiece model, and a text. Of
// an input of several parts the last is the model; before it come the others, in this order.
#include "fuzz_tokenizer.h"

using namespace quantspec;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto parts = parts_of(data, size, 4);
  write_or_remove("tokenizer.model", std::string(parts.back()));
  parts.pop_back();
  write_or_remove("tokenizer_config.json", part_or_empty(parts, 0));
  write_or_remove("added_tokens.json", part_or_empty(parts, 1));
  try_tokenizer(parts.size() > 2 ? parts[2] : "It's 12 caf\xC3\xA9  \xE2\x96\x81\n");
  return 0;
}
