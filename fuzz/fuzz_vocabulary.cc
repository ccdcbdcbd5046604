// A vocabulary of a GGUF file as lines, and a text: two parts of the input. A line is a key and its
// value: "model llama", "pre qwen2", "name phi-3", "bos 1", "add_bos 0"; "token TYPE SCORE TEXT",
// "merge TEXT", and "bytes", which stands for all 256 byte tokens.
#include <cstdlib>

#include "base/utf8.h"
#include "fuzz_input.h"
#include "tokenizer/owned_vocabulary.h"

using namespace quantspec;

namespace {

std::string_view take_until(std::string_view& rest, char end) {
  const std::string_view taken = rest.substr(0, rest.find(end));
  rest.remove_prefix(std::min(rest.size(), taken.size() + 1));
  return taken;
}

int to_int(std::string_view text) { return std::atoi(std::string(text).c_str()); }

void add_token(std::string_view value, OwnedVocabulary& owned) {
  owned.rest.types.push_back(to_int(take_until(value, ' ')));
  owned.rest.scores.push_back(std::strtof(std::string(take_until(value, ' ')).c_str(), nullptr));
  owned.tokens.emplace_back(value);
}

void add_bytes(OwnedVocabulary& owned) {
  for (int byte = 0; byte < 256; ++byte) {
    owned.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    owned.rest.types.push_back(6);
    owned.rest.scores.push_back(0);
  }
}

void read_line(std::string_view line, OwnedVocabulary& owned) {
  Vocabulary& rest = owned.rest;
  const std::string_view key = take_until(line, ' ');
  const auto is = [&](std::string_view name) { return key == name; };
  if (is("model")) rest.model = line;
  if (is("pre")) rest.pre = line;
  if (is("name")) rest.name = line;
  if (is("token")) add_token(line, owned);
  if (is("merge")) owned.merges.emplace_back(line);
  if (is("bytes")) add_bytes(owned);
  if (is("bos")) rest.bos = to_int(line);
  if (is("eos")) rest.eos = to_int(line);
  if (is("eot")) rest.eot = to_int(line);
  if (is("unknown")) rest.unknown = to_int(line);
  if (is("add_bos")) rest.add_bos = to_int(line) != 0;
  if (is("add_eos")) rest.add_eos = to_int(line) != 0;
  if (is("add_space_prefix")) rest.add_space_prefix = to_int(line) != 0;
  if (is("remove_extra_whitespaces")) rest.remove_extra_whitespaces = to_int(line) != 0;
  if (is("no_scores")) rest.scores.clear();
  if (is("no_types")) rest.types.clear();
}

void try_vocabulary(const Vocabulary& vocabulary, std::string_view text) {
  const auto tokenizer = make_tokenizer(vocabulary);
  for (const TokenId id : end_of_generation(vocabulary)) {
    require(id >= 0 && id < tokenizer->vocab_size());
  }
  std::vector<TokenId> ids = tokenizer->encode(text, /*add_special=*/true);
  for (const TokenId id : ids) require(id >= 0 && id < tokenizer->vocab_size());
  for (TokenId id = -1; id <= std::min(tokenizer->vocab_size(), 40); ++id) ids.push_back(id);
  const std::string decoded = tokenizer->decode(ids);
  require(repair_utf8(decoded) == decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = parts_of(data, size, 2);
  OwnedVocabulary owned{.rest = {.source = "m.gguf"}};
  for (std::string_view rest = parts[0]; !rest.empty();) read_line(take_until(rest, '\n'), owned);
  try {
    try_vocabulary(owned.get(), parts.size() > 1 ? parts[1] : "It's <|a|>  12 caf\xC3\xA9\n");
  } catch (const Error& error) {
    refused(error);
  }
  return 0;
}
