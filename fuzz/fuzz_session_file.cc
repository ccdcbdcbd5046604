// Sessions: the numbers of the head are the first bytes of the input, the note is the rest. Magic
// and checksums are right, and so are the parts where they are small, so that all is reached.
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/hash.h"
#include "engine/session_file.h"
#include "fuzz_input.h"

using namespace quantspec;

namespace {

constexpr std::size_t kNumbers = 6;  // note, tokens, chunks, bytes of one, tail: tokens, bytes
constexpr std::uint64_t kMostBytes = 1 << 16;

void append_number(std::uint64_t value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_part(std::uint64_t bytes, std::string& file) {
  const std::string part(bytes, 'x');
  file += part;
  append_number(hash_bytes(std::as_bytes(std::span(part))), file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t numbers[kNumbers] = {};
  const std::size_t of_numbers = std::min(size, sizeof numbers);
  std::memcpy(numbers, data, of_numbers);
  const auto& [note_bytes, tokens, chunks, chunk_bytes, tail_tokens, tail_bytes] = numbers;
  std::string file = "QSSESSN\n";
  append_number(1, file);
  file.append(64, '\0');
  for (const std::uint64_t number : numbers) append_number(number, file);
  file.append(reinterpret_cast<const char*>(data) + of_numbers, size - of_numbers);
  append_number(hash_bytes(std::as_bytes(std::span(file))), file);
  if (tokens < kMostBytes && chunks < 16 && chunk_bytes < kMostBytes && tail_bytes < kMostBytes) {
    append_part(tokens * sizeof(TokenId), file);
    for (std::uint64_t i = 0; i < chunks; ++i) append_part(chunk_bytes, file);
    if (tail_bytes > 0) append_part(tail_bytes, file);
  }
  const auto path = memory_folder().write("session", file);
  try {
    const SessionFile session(path);
    const SessionInfo& info = session.info();
    require(session.tokens().size() == info.tokens);
    for (std::uint64_t i = 0; i < info.chunks; ++i) {
      require(session.chunk(i).size() == info.chunk_bytes);
    }
    if (info.tail_bytes > 0) require(session.tail().size() == info.tail_bytes);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kCorruptFile);
  }
  return 0;
}
