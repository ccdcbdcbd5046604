// A text or a conversation in the file of --session, with what the engine keeps of it.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"

namespace quantspec {
class Engine;
}

namespace quantspec::cli {

class Conversation;

class SavedSession {
 public:
  // file: empty for none. A file that is not there is a session that begins. Throws for what could
  // not be written in the end.
  explicit SavedSession(std::filesystem::path file);

  bool given() const { return !file_.empty(); }
  // What it has: a text's tokens, or those before the next message of a conversation, which it
  // fills. null: a text. Throws kInvalidRequest where it has the other.
  std::vector<TokenId> load(Engine& engine, Conversation* conversation);
  // In place of what was there. Throws kInvalidRequest where another program wrote it meanwhile.
  void save(Engine& engine, std::span<const TokenId> tokens, const Conversation* conversation);

 private:
  // Of the file: another after it was written.
  struct Identity {
    dev_t device;
    ino_t number;
    off_t size;
    bool operator==(const Identity&) const = default;
  };
  std::optional<Identity> identity() const;

  std::filesystem::path file_;
  std::optional<Identity> known_;  // as it was when it was read or written; none: not there
};

}  // namespace quantspec::cli
