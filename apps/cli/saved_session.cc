#include "apps/cli/saved_session.h"

#include <utility>

#include "apps/cli/conversation.h"
#include "base/error.h"
#include "base/files.h"
#include "engine/engine.h"

namespace quantspec::cli {

SavedSession::SavedSession(std::filesystem::path file) : file_(std::move(file)) {
  if (given()) NewFile::require_possible(file_);
}

std::optional<SavedSession::Identity> SavedSession::identity() const {
  struct stat info {};
  if (stat(file_.c_str(), &info) != 0) return std::nullopt;
  return Identity{info.st_dev, info.st_ino, info.st_size};
}

std::vector<TokenId> SavedSession::load(Engine& engine, Conversation* conversation) {
  known_ = identity();
  if (!file_exists(file_)) return {};
  Engine::SavedText saved = engine.load_text(file_);
  if (saved.note.empty() != (conversation == nullptr)) {
    fail(ErrorKind::kInvalidRequest, "{}: {}", file_.string(),
         conversation == nullptr
             ? "has a conversation; quantspec chat and generate --chat go on "
               "with one"
             : "has a text; quantspec generate without --chat goes on with one");
  }
  if (conversation != nullptr) conversation->parse(saved.note, file_.string());
  return std::move(saved.tokens);
}

void SavedSession::save(Engine& engine, std::span<const TokenId> tokens,
                        const Conversation* conversation) {
  if (identity() != known_) {
    fail(ErrorKind::kInvalidRequest,
         "{}: another program wrote it since it was read, and its session is kept; a session is "
         "for one program at a time",
         file_.string());
  }
  engine.save_text(file_, tokens, conversation == nullptr ? "" : conversation->text());
  known_ = identity();
}

}  // namespace quantspec::cli
