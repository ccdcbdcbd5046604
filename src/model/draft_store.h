// Draft weights that were made beforehand (`quantspec prepare`), in a file: the codes of every
// matrix that a draft reads, in a sliced_format(). docs/draft-weights.md has the format. The file
// is tied to its checkpoint by a hash of it, and to itself by a checksum of every byte.
//
// Errors: kInvalidRequest for a file that cannot be read or written, kCorruptFile, naming the file,
// for one that is not a store, or is damaged. A DraftStore is thread-safe after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "model/weight_source.h"
#include "quant/weight_format.h"

namespace quantspec {

struct DraftStoreInfo {
  std::string method;            // rtn, gptq
  std::string calibration = {};  // the dataset's spec; empty: none was used
  int calibration_tokens = 0;
  int group = kWeightGroup;      // inputs of one scale and offset: 32, 64 or 128
  std::uint64_t checkpoint = 0;  // Weights::checkpoint_hash()
};

struct StoredMatrix {
  std::string name;  // as in Weights::matrices()
  int rows;
  int cols;
  bool has_lower;  // readable at 8 bits too
  // The store's own business: where it lies in the file, and of what it is a part there.
  std::size_t offset = 0;
  struct Whole {
    int rows, cols, first_row, first_col;
  };
  std::optional<Whole> whole = {};
};

class DraftStore {
 public:
  explicit DraftStore(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const DraftStoreInfo& info() const { return info_; }
  const std::vector<StoredMatrix>& matrices() const { return matrices_; }
  const StoredMatrix* find(std::string_view name) const;  // null: not there
  // The matrix's codes (16 u + 8 where there is no lower plane) and scales, read from the file row
  // by row. Valid as long as the store. Throws kCorruptFile for scales that are not finite.
  CodedMatrix read(const StoredMatrix& matrix) const;
  // Keeps of each matrix the part that this source has of it, for a rank (share.h). Throws
  // kInvalidRequest, naming the store, where inputs of one scale are not one rank's.
  void cut(const WeightSource& own);
  // As MappedFile's: what was read so far is of one whole file.
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  void read_header();
  void require_finite(const StoredMatrix& matrix, std::span<const GroupScale> scales) const;

  MappedFile file_;
  DraftStoreInfo info_;
  std::vector<StoredMatrix> matrices_;
  std::map<std::string, std::size_t, std::less<>> by_name_;  // index into matrices_
};

// Writes a store, matrix by matrix: NewFile says when the file has its name, and what may be in the
// way.
class DraftStoreWriter {
 public:
  DraftStoreWriter(std::filesystem::path path, const DraftStoreInfo& info,
                   std::vector<StoredMatrix> matrices);

  // The next matrix. REQUIRES: of its name's shape, and of the store's group.
  void add(const CodedMatrix& coded);
  // REQUIRES: every matrix was added.
  void finish();

 private:
  void write(std::span<const std::byte> bytes);  // what the checksum is of

  NewFile file_;
  Hasher checksum_;
  int group_;
  std::vector<StoredMatrix> matrices_;
  std::size_t added_ = 0;
};

}  // namespace quantspec
