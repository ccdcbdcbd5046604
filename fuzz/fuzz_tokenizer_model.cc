// Fuzzes tokenizer.model: any bytes are a SentencePiece model or an Error; a model must encode and
// decode.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/sentencepiece_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quantspec;
  const std::string model(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = make_sentencepiece_tokenizer(model, "fuzz", TokenizerConfig());
    tokenizer->decode(tokenizer->encode("It's 12 caf\xC3\xA9  \xE2\x96\x81\n", true));
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < 16; ++id) ids.push_back(id);
    tokenizer->decode(ids);
  } catch (const Error&) {  // refused
  }
  return 0;
}
