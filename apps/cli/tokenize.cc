// quantspec tokenize
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/cli/messages.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "base/json.h"
#include "model/model_files.h"
#include "tokenizer/tokenizer.h"

namespace quantspec::cli {

namespace {

using Json = nlohmann::ordered_json;

// In quotes and with escapes; bytes that are no character of their own as \xNN.
std::string quoted(const std::string& piece) {
  try {
    return Json(piece).dump();
  } catch (const Json::type_error&) {
    std::string result = "\"";
    for (const char c : piece) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return result + "\"";
  }
}

// What a token adds to the text, for people.
std::string describe(const Tokenizer& tokenizer, TokenId id, const std::string& piece) {
  if (id == tokenizer.bos()) return "(begin of text)";
  if (id == tokenizer.eos()) return "(end of text)";
  return tokenizer.is_special(id) ? "(special)" : quoted(piece);
}

std::string to_json(const std::vector<TokenId>& ids, const std::vector<std::string>& pieces) {
  const Json json{{"tokens", ids}, {"pieces", pieces}, {"count", ids.size()}};
  // A piece may be a part of a character.
  return dump_json(json) + "\n";
}

}  // namespace

int run(const TokenizeArgs& args) {
  const std::string text = read_prompt(args.prompt);
  const auto tokenizer = open_model(args.model)->tokenizer();
  const std::vector<TokenId> ids = tokenizer->encode(text, !args.no_bos);
  std::vector<std::string> pieces;
  bool at_start = true;
  for (const TokenId id : ids) pieces.push_back(tokenizer->token_bytes(id, at_start));

  std::string out;
  if (args.json) {
    out = to_json(ids, pieces);
  } else if (args.only_ids) {
    for (const TokenId id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    out += "\n";
  } else {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      out += fmt::format("{:8} {}\n", ids[i], describe(*tokenizer, ids[i], pieces[i]));
    }
  }
  write_output(out);
  say(fmt::format("{} tokens\n", ids.size()));
  return 0;
}

}  // namespace quantspec::cli
