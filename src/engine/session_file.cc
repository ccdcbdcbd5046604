#include "engine/session_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace quantspec {

namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "numbers lie in files as in memory");

using Magic = std::array<char, 8>;
constexpr Magic kMagicOfSession = {'Q', 'S', 'S', 'E', 'S', 'S', 'N', '\n'};
constexpr Magic kMagicOfCachePart = {'Q', 'S', 'C', 'A', 'C', 'H', 'E', '\n'};
constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kFingerprintBytes = 64, kMostFingerprint = kFingerprintBytes - 1;
constexpr std::uint64_t kChecksumBytes = sizeof(std::uint64_t);

// What is before the note; a checksum of both follows the note.
struct Head {
  Magic magic = kMagicOfSession;
  std::uint64_t version = kVersion;
  std::array<char, kFingerprintBytes> fingerprint = {};  // ends with a zero
  std::uint64_t note_bytes = 0;
  std::uint64_t tokens = 0;
  std::uint64_t chunks = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t tail_tokens = 0;
  std::uint64_t tail_bytes = 0;
};
static_assert(sizeof(Head) == 128 && std::is_trivially_copyable_v<Head>);

const Magic& magic_of(FileKind kind) {
  return kind == FileKind::kSession ? kMagicOfSession : kMagicOfCachePart;
}

std::span<const std::byte> raw(const auto& value) { return std::as_bytes(std::span(&value, 1)); }

bool is_within_limits(const SessionInfo& info) {
  return info.note.size() <= SessionInfo::kMostNoteBytes &&
         info.tokens <= SessionInfo::kMostTokens && info.chunks <= SessionInfo::kMostTokens &&
         info.tail_tokens <= info.tokens && info.chunk_bytes <= SessionInfo::kMostBytes &&
         info.tail_bytes <= SessionInfo::kMostBytes &&
         (info.chunk_bytes == 0 || info.chunks <= SessionInfo::kMostBytes / info.chunk_bytes);
}

// Of parts and their checksums, behind the head.
std::uint64_t bytes_behind(const SessionInfo& info) {
  const std::uint64_t tail = info.tail_bytes > 0 ? info.tail_bytes + kChecksumBytes : 0;
  return info.tokens * sizeof(TokenId) + kChecksumBytes +
         info.chunks * (info.chunk_bytes + kChecksumBytes) + tail;
}

}  // namespace

// --- reading ---

SessionFile::SessionFile(const fs::path& path, FileKind kind) : file_(path) {
  file_.while_unchanged([&] { read_head(kind); });
}

void SessionFile::fail_damaged(std::string_view what) const {
  fail(ErrorKind::kCorruptFile, "{}: {}", file_.path().string(), what);
}

void SessionFile::read_head(FileKind kind) {
  const std::span<const std::byte> all = file_.bytes();
  Head head;
  const Magic& magic = magic_of(kind);
  if (all.size() < sizeof(Head) || std::memcmp(all.data(), magic.data(), magic.size()) != 0) {
    fail_damaged(kind == FileKind::kSession ? "is no session of quantspec"
                                            : "is no part of a cache of quantspec");
  }
  std::memcpy(&head, all.data(), sizeof(Head));
  if (head.version != kVersion) {
    fail(ErrorKind::kCorruptFile, "{}: is of version {} of sessions, and {} is known",
         file_.path().string(), head.version, kVersion);
  }
  if (head.note_bytes > SessionInfo::kMostNoteBytes ||
      all.size() - sizeof(Head) < head.note_bytes + kChecksumBytes) {
    fail_damaged("is shorter than it says");
  }
  const std::span<const std::byte> checked = part(0, sizeof(Head) + head.note_bytes);
  if (head.fingerprint.back() != 0) fail_damaged("is damaged");
  info_ = {
      kind,
      head.fingerprint.data(),
      std::string(reinterpret_cast<const char*>(checked.data()) + sizeof(Head), head.note_bytes),
      head.tokens,
      head.chunks,
      head.chunk_bytes,
      head.tail_tokens,
      head.tail_bytes};
  begin_ = checked.size() + kChecksumBytes;
  if (!is_within_limits(info_)) fail_damaged("says that it has more than a session can");
  if (bytes_behind(info_) != all.size() - begin_) fail_damaged("has not the size that it says");
}

// With its checksum behind it.
std::span<const std::byte> SessionFile::part(std::uint64_t offset, std::uint64_t bytes) const {
  const std::span<const std::byte> part = file_.bytes().subspan(offset, bytes);
  std::uint64_t expected = 0;
  std::memcpy(&expected, file_.bytes().subspan(offset + bytes, kChecksumBytes).data(),
              kChecksumBytes);
  const std::uint64_t found = hash_bytes(part);
  file_.require_whole();
  if (found != expected) fail_damaged("is damaged: a checksum is another");
  return part;
}

std::vector<TokenId> SessionFile::tokens() const {
  const auto bytes = part(begin_, info_.tokens * sizeof(TokenId));
  std::vector<TokenId> tokens(info_.tokens);
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

std::span<const std::byte> SessionFile::chunk(std::uint64_t index) const {
  check(index < info_.chunks, "a session has the chunk that is read");
  const std::uint64_t first = begin_ + info_.tokens * sizeof(TokenId) + kChecksumBytes;
  return part(first + index * (info_.chunk_bytes + kChecksumBytes), info_.chunk_bytes);
}

std::span<const std::byte> SessionFile::tail() const {
  check(info_.tail_bytes > 0, "a session has a tail where one is read");
  return part(file_.bytes().size() - kChecksumBytes - info_.tail_bytes, info_.tail_bytes);
}

// --- writing ---

SessionFileWriter::SessionFileWriter(const fs::path& path, const SessionInfo& info)
    : file_(path), left_(bytes_behind(info)) {
  check(is_within_limits(info) && info.fingerprint.size() <= kMostFingerprint,
        "a session is within its limits");
  Head head;
  head.magic = magic_of(info.kind);
  std::memcpy(head.fingerprint.data(), info.fingerprint.data(), info.fingerprint.size());
  head.note_bytes = info.note.size();
  head.tokens = info.tokens;
  head.chunks = info.chunks;
  head.chunk_bytes = info.chunk_bytes;
  head.tail_tokens = info.tail_tokens;
  head.tail_bytes = info.tail_bytes;
  std::error_code unknown;
  const std::uint64_t needed = bytes_of(info);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const fs::space_info space = fs::space(folder, unknown);
  if (!unknown && space.available < needed) {
    fail(ErrorKind::kOutOfMemory, "{}: takes {} bytes, and the disk has room for {}", path.string(),
         needed, space.available);
  }
  Hasher hasher;
  for (const auto part : {raw(head), std::as_bytes(std::span(info.note))}) {
    file_.append(part);
    hasher.add(part);
  }
  file_.append(raw(hasher.value()));
}

std::uint64_t SessionFileWriter::bytes_of(const SessionInfo& info) {
  return sizeof(Head) + info.note.size() + kChecksumBytes + bytes_behind(info);
}

void SessionFileWriter::add(std::span<const std::byte> part) {
  check(part.size() + kChecksumBytes <= left_, "a session's parts are as its head says");
  file_.append(part);
  file_.append(raw(hash_bytes(part)));
  left_ -= part.size() + kChecksumBytes;
}

void SessionFileWriter::finish() {
  check(left_ == 0, "all of a session's parts were written");
  file_.finish();
}

}  // namespace quantspec
