// A text on disk, with what an engine keeps of it, so that another process goes on without reading
// it again. docs/sessions.md has the format. A file is tied to its engine by the fingerprint, and
// to itself by checksums; it is written beside the old one and takes its place whole (NewFile).
//
// Errors: kInvalidRequest for a file that cannot be read or written, kCorruptFile, naming the file,
// for one that is none, or is damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/mapped_file.h"
#include "base/token.h"

namespace quantspec {

// Who writes a file: a session, or a ChunkFolder.
enum class FileKind : std::uint8_t { kSession, kCachePart };

struct SessionInfo {
  FileKind kind = FileKind::kSession;
  std::string fingerprint;  // Engine::fingerprint()
  std::string note;         // the program's own: text, at most kMostNoteBytes
  std::uint64_t tokens = 0;
  // What is kept of them: so many chunks, each of as many bytes, and the tail of a prompt of their
  // first `tail_tokens`. Of a session the chunks from the first token on, of a cache's part the one
  // that the tokens end with.
  std::uint64_t chunks = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t tail_tokens = 0;
  std::uint64_t tail_bytes = 0;

  static constexpr std::uint64_t kMostNoteBytes = std::uint64_t{1} << 26;
  static constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 28;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 44;
};

class SessionFile {
 public:
  // Maps it and reads its head. One of another kind is refused.
  explicit SessionFile(const std::filesystem::path& path, FileKind kind = FileKind::kSession);

  const SessionInfo& info() const { return info_; }
  // Throws kCorruptFile where the checksum is another.
  std::vector<TokenId> tokens() const;
  std::span<const std::byte> chunk(std::uint64_t index) const;
  std::span<const std::byte> tail() const;

 private:
  [[noreturn]] void fail_damaged(std::string_view what) const;
  void read_head(FileKind kind);
  std::span<const std::byte> part(std::uint64_t offset, std::uint64_t bytes) const;

  MappedFile file_;
  SessionInfo info_;
  std::uint64_t begin_ = 0;  // of the tokens
};

class SessionFileWriter {
 public:
  // Throws kOutOfMemory where the disk has no room for it. REQUIRES: info is within its limits.
  SessionFileWriter(const std::filesystem::path& path, const SessionInfo& info);
  // The tokens, then each chunk, then the tail where there is one.
  void add(std::span<const std::byte> part);
  void finish();
  // That such a file takes.
  static std::uint64_t bytes_of(const SessionInfo& info);

 private:
  NewFile file_;
  std::uint64_t left_;  // bytes that are to come
};

}  // namespace quantspec
