// A conversation, as `chat` and `generate --chat` have it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/token.h"

namespace quantspec {
class Engine;
}

namespace quantspec::cli {

class Conversation {
 public:
  // system: what is said before all else; empty: nothing.
  explicit Conversation(std::string system = {}) : system_(std::move(system)) {}

  void add_user(std::string text) { add("user", std::move(text)); }
  void add_answer(std::string text) { add("assistant", std::move(text)); }
  void drop_last() { turns_.erase(turns_.size() - 1); }
  void set_system(std::string text) { system_ = std::move(text); }
  void reset() { turns_ = nlohmann::ordered_json::array(); }
  std::size_t turns() const { return turns_.size(); }

  // The prompt of the next answer: by the model's chat template or, where it has none, the text of
  // all that was said. Throws kInvalidRequest where the context has no room for it.
  std::vector<TokenId> tokens(const Engine& engine) const;
  // With what the next prompt begins, whatever is said.
  std::vector<TokenId> next_tokens(const Engine& engine) const;

  // JSON, with the keys of OpenAI's messages; `name` is where it comes from. Throws
  // kInvalidRequest, kCorruptFile.
  std::string text() const;
  void parse(const std::string& text, const std::string& name);
  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

 private:
  void add(const char* role, std::string text) {
    turns_.push_back({{"role", role}, {"content", std::move(text)}});
  }
  nlohmann::ordered_json messages() const;
  void take(const nlohmann::json& json, const std::string& name);

  std::string system_;
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();
};

}  // namespace quantspec::cli
