// Receipts: what an answer is a function of, and the answer, so that anybody with the same engine
// can check that it is the engine's own. Of greedy and coupled choices alone: others are random.
//
// To check one costs less than to write it: the answer's tokens are verified as if they had been
// drafted, many in a target pass (GenerateOptions::proposed).
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace quantspec {

struct Receipt {
  std::string fingerprint;      // Engine::fingerprint()
  std::vector<TokenId> prompt;  // all of the tokens before the answer
  GenerateOptions options;      // of which those count that choose tokens and end them
  std::vector<TokenId> tokens;  // the answer, to the last one that was chosen
  bool stopped = false;         // a token or a text ended it, not the number of tokens
};

// Of a request that has its answer. REQUIRES: repeatable(options).
Receipt make_receipt(std::string fingerprint, const Engine& engine, std::vector<TokenId> prompt,
                     const GenerateOptions& options, const GenerateResult& result);
// Whether equal requests get equal answers.
bool repeatable(const GenerateOptions& options);

nlohmann::ordered_json to_json(const Receipt& receipt);
// Throws kCorruptFile, naming `where`, for what is no receipt.
Receipt read_receipt(const nlohmann::json& json, std::string_view where);

struct Verdict {
  // What is wrong: the first token that the engine would not have written, by its place, or
  // tokens.size() where the answer ends otherwise than it would.
  std::optional<std::size_t> differs = {};
  std::optional<TokenId> own = {};  // what the engine writes there; none: it ends the answer
  std::string text = {};            // of the answer, up to there
  double seconds = 0;               // for all that were checked together
  int cached_tokens = 0;

  bool good() const { return !differs.has_value(); }
};

// Checks answers, all at once. Throws kInvalidRequest for another engine's, and what submit() does.
std::vector<Verdict> verify(Engine& engine, std::span<const Receipt> receipts);

}  // namespace quantspec
