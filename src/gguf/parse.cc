#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/shown.h"
#include "gguf/gguf.h"
#include "gguf/reader.h"

namespace quantspec {

namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kLeastKeyBytes = 8 + 4 + 1;             // no name, a type, a byte
constexpr std::uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;  // no name, one dimension
constexpr std::uint64_t kMaxKeys = 1 << 16;                     // models have about 50
constexpr std::size_t kMaxNameBytes = 64;                       // as ggml has it
constexpr std::uint32_t kMaxDims = 4;
constexpr std::int64_t kMaxDim = (std::int64_t{1} << 31) - 1;
constexpr std::uint64_t kMaxWeights = std::uint64_t{1} << 48;
constexpr std::uint32_t kDefaultAlignment = 32, kLeastAlignment = 8, kMaxAlignment = 65536;

// How a tensor is described before its data is found.
struct Entry {
  std::string name;
  GgmlType type;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset;  // in the data
  std::uint64_t bytes;
};

class Parser {
 public:
  Parser(std::span<const std::byte> file, std::string_view where)
      : file_(file), where_(where), reader_(file, where) {}

  GgufPart parse() {
    check_head();
    const std::uint64_t tensors = count("tensors", kLeastTensorBytes, kMaxTensors);
    const std::uint64_t keys = count("metadata keys", kLeastKeyBytes, kMaxKeys);
    GgufPart part{GgufMetadata(reader_, keys, where_), {}};
    const std::uint64_t alignment = alignment_of(part.metadata);
    if (tensors > reader_.left() / kLeastTensorBytes) fail_for_count("tensors", tensors);
    std::vector<Entry> entries;
    entries.reserve(tensors);
    for (std::uint64_t i = 0; i < tensors; ++i) entries.push_back(read_entry(alignment));
    part.tensors = tensors_of(std::move(entries), alignment);
    return part;
  }

 private:
  [[noreturn]] void corrupt(const Entry& entry, std::string_view what) const {
    fail(ErrorKind::kCorruptFile, "{}: tensor {} {}", where_, shown(entry.name), what);
  }

  void check_head() {
    const auto magic = reader_.take(kMagic.size(), "the head");
    if (!std::equal(magic.begin(), magic.end(), std::as_bytes(std::span(kMagic)).begin())) {
      fail(ErrorKind::kCorruptFile, "{}: is no GGUF file: it begins with {} and not with \"GGUF\"",
           where_, shown({reinterpret_cast<const char*>(magic.data()), magic.size()}));
    }
    const auto version = reader_.number<std::uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0) {
      fail(ErrorKind::kUnsupportedModel,
           "{}: is a big-endian GGUF file, which is not supported; convert it to little-endian",
           where_);
    }
    if (version != 2 && version != 3) {
      fail(ErrorKind::kUnsupportedModel,
           "{}: is a GGUF file of version {}; supported are versions 2 and 3", where_, version);
    }
  }

  [[noreturn]] void fail_for_count(std::string_view of, std::uint64_t count) const {
    fail(ErrorKind::kCorruptFile,
         "{}: has {} {}, for which {} bytes are left; the file is not whole", where_, count, of,
         reader_.left());
  }

  std::uint64_t count(std::string_view of, std::uint64_t least_bytes, std::uint64_t most) {
    const auto count = reader_.number<std::uint64_t>("the head");
    if (count > reader_.left() / least_bytes) fail_for_count(of, count);
    if (count <= most) return count;
    fail(ErrorKind::kCorruptFile, "{}: has {} {}; {} are the most that are read", where_, count, of,
         most);
  }

  std::uint64_t alignment_of(const GgufMetadata& metadata) const {
    const auto alignment = metadata.u32("general.alignment").value_or(kDefaultAlignment);
    if (std::has_single_bit(alignment) && alignment >= kLeastAlignment &&
        alignment <= kMaxAlignment) {
      return alignment;
    }
    fail(ErrorKind::kCorruptFile,
         "{}: metadata key \"general.alignment\" is {}; it must be a power of two from {} to {}",
         where_, alignment, kLeastAlignment, kMaxAlignment);
  }

  Entry read_entry(std::uint64_t alignment) {
    constexpr std::string_view kWhat = "the entry of tensor";
    Entry entry;
    entry.name = reader_.text(kMaxNameBytes, "the name of a tensor");
    entry.shape = read_shape(entry);
    entry.type = static_cast<GgmlType>(reader_.number<std::uint32_t>(kWhat, entry.name));
    entry.offset = reader_.number<std::uint64_t>(kWhat, entry.name);
    if (entry.offset % alignment != 0) {
      corrupt(entry,
              fmt::format("begins at {} of the data, which is no multiple of the alignment {}",
                          entry.offset, alignment));
    }
    entry.bytes = bytes_of(entry);
    return entry;
  }

  std::vector<std::uint64_t> read_shape(const Entry& entry) {
    constexpr std::string_view kWhat = "the entry of tensor";
    const auto dims = reader_.number<std::uint32_t>(kWhat, entry.name);
    if (dims < 1 || dims > kMaxDims) {
      corrupt(entry, fmt::format("has {} dimensions; it must have 1 to {}", dims, kMaxDims));
    }
    std::vector<std::uint64_t> shape;
    for (std::uint32_t i = 0; i < dims; ++i) {
      const auto dim = reader_.number<std::int64_t>(kWhat, entry.name);
      if (dim < 1 || dim > kMaxDim) {
        corrupt(entry, fmt::format("has a dimension of {}; it must be from 1 to {}", dim, kMaxDim));
      }
      shape.push_back(static_cast<std::uint64_t>(dim));
    }
    return shape;
  }

  std::uint64_t bytes_of(const Entry& entry) const {
    const auto block = block_size(entry.type);
    if (!block) {
      fail(ErrorKind::kUnsupportedModel,
           "{}: tensor {} is of {}, which is not known; supported: {}", where_, shown(entry.name),
           name_of(entry.type), supported_types());
    }
    std::uint64_t weights = 1;
    for (const std::uint64_t dim : entry.shape) {
      if (__builtin_mul_overflow(weights, dim, &weights) || weights > kMaxWeights) {
        corrupt(entry,
                fmt::format("has shape {}; the most weights are {}", entry.shape, kMaxWeights));
      }
    }
    if (entry.shape[0] % block->weights != 0) {
      corrupt(entry, fmt::format("of shape {} has rows that are not whole blocks of {} {}",
                                 entry.shape, block->weights, name_of(entry.type)));
    }
    return weights / block->weights * block->bytes;  // below 2^48 * 8
  }

  GgufTensors tensors_of(std::vector<Entry> entries, std::uint64_t alignment) const {
    if (entries.empty()) return {};
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.offset < b.offset; });
    // The header lies in the file, so that no sum here is above its size and an alignment.
    const std::uint64_t begin = (reader_.position() + alignment - 1) / alignment * alignment;
    const std::uint64_t size = begin < file_.size() ? file_.size() - begin : 0;
    GgufTensors tensors;
    std::uint64_t end = 0;
    for (Entry& entry : entries) {
      if (entry.offset > size || entry.bytes > size - entry.offset) {
        corrupt(entry, fmt::format("has {} bytes at {} of {} bytes of data; the file is not whole",
                                   entry.bytes, entry.offset, size));
      }
      if (entry.offset < end) corrupt(entry, "overlaps the tensor before it");
      end = entry.offset + entry.bytes;
      const auto bytes = file_.subspan(begin + entry.offset, entry.bytes);
      GgufTensor tensor{entry.type, std::move(entry.shape), bytes};
      if (!tensors.emplace(entry.name, std::move(tensor)).second) corrupt(entry, "stands twice");
    }
    return tensors;
  }

  std::span<const std::byte> file_;
  std::string_view where_;
  GgufReader reader_;
};

}  // namespace

GgufPart parse_gguf(std::span<const std::byte> file, std::string_view where) {
  return Parser(file, where).parse();
}

}  // namespace quantspec
