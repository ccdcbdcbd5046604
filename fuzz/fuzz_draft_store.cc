// Stores of draft weights: a header and data, and a pattern of the data's bytes, are the parts of
// the input. Magic, length and checksum are right, so that what comes after them is reached.
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/hash.h"
#include "fuzz_input.h"
#include "model/draft_store.h"

using namespace quantspec;

namespace {

void append_number(std::uint64_t value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string store_of(const HeaderAndData& content) {
  std::string checked;
  append_number(content.header.size(), checked);
  checked += content.header;
  checked += content.data;
  std::string file = "QSDRAFT1";
  append_number(hash_bytes(std::as_bytes(std::span(checked))), file);
  return file + checked;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = parts_of(data, size, 2);
  const auto path = memory_folder().write(
      "store.qsd", store_of(read_header_and_data(parts[0], part_or_empty(parts, 1))));
  try {
    const DraftStore store(path);
    for (const StoredMatrix& matrix : store.matrices()) {
      require(store.find(matrix.name) == &matrix);
      try {
        const CodedMatrix coded = store.read(matrix);
        require(coded.rows == matrix.rows && coded.cols == matrix.cols);
        RowBuffer row(coded.format, coded.cols);
        for (int r = 0; r < coded.rows; ++r) coded.read(r, row.view());
      } catch (const Error& error) {  // scales that are not finite
        require(error.kind() == ErrorKind::kCorruptFile);
      }
    }
    store.require_unchanged();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kCorruptFile);
  }
  return 0;
}
