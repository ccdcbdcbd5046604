// Streams of tokens: two bytes of the input are an id of one of the tests' tokenizers, which the
// first byte chooses. However a stream is cut, every piece is valid UTF-8, and together they are
// the text of all ids.
#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "fuzz_input.h"
#include "tokenizer/tokenizer.h"

using namespace quantspec;

namespace {

const Tokenizer& tokenizer(std::size_t i) {
  static const auto all = [] {
    std::vector<std::unique_ptr<Tokenizer>> tokenizers;
    const std::filesystem::path tests = QUANTSPEC_TESTDATA "/tokenizer";
    for (const char* name : {"llama3", "gpt2", "prepend", "first", "never", "strings", "unknown"}) {
      tokenizers.push_back(load_tokenizer(tests / name));
    }
    tokenizers.push_back(load_tokenizer(QUANTSPEC_SOURCE_DIR "/models/pg-24m"));
    return tokenizers;
  }();
  return *all[i % all.size()];
}

std::string checked(std::string piece) {
  require(repair_utf8(piece) == piece);
  return piece;
}

std::string bytes_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  bool at_start = true;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id, at_start);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const Tokenizer& tok = tokenizer(data[0]);
  std::vector<TokenId> ids;
  for (std::size_t i = 2; i + 1 < size; i += 2) ids.push_back((data[i] << 8 | data[i + 1]) - 2);
  const std::string whole = tok.decode(ids);
  std::string streamed;
  StreamDecoder stream(tok);
  for (const TokenId id : ids) streamed += checked(stream.push(id));
  streamed += checked(stream.flush());
  require(streamed == whole);
  // The bytes of the tokens say the same, but for sequences that are broken.
  const std::string bytes = bytes_of(tok, ids);
  if (repair_utf8(bytes) == bytes) require(bytes == whole);
  // Cut into two streams, of which the second goes on with the text of the first.
  const std::size_t cut = ids.empty() ? 0 : data[1] % ids.size();
  const std::string head = tok.decode({ids.data(), cut});
  StreamDecoder rest(tok, /*at_start=*/head.empty());
  std::string tail;
  for (std::size_t i = cut; i < ids.size(); ++i) tail += checked(rest.push(ids[i]));
  tail += checked(rest.flush());
  const bool whole_characters =
      repair_utf8(bytes) == bytes && repair_utf8(head) == head && bytes.starts_with(head);
  if (whole_characters && !head.empty()) require(head + tail == whole);
  std::string again;  // a flush has ended the first text
  for (const TokenId id : ids) again += stream.push(id);
  require(again + stream.flush() == whole);
  return 0;
}
