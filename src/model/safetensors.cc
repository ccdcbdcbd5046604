#include "model/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/shown.h"

namespace quantspec {

namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDims = 16;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as in the format's own library
constexpr std::size_t kMaxTensors = 1 << 18;            // twice what the largest models have

// Bytes of an element of each dtype of the format; nothing for one that is not in it.
std::optional<std::uint64_t> bytes_of(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, int>, 17> kBytes = {{{"BOOL", 1},
                                                                        {"U8", 1},
                                                                        {"I8", 1},
                                                                        {"F8_E5M2", 1},
                                                                        {"F8_E4M3", 1},
                                                                        {"F8_E8M0", 1},
                                                                        {"U16", 2},
                                                                        {"I16", 2},
                                                                        {"F16", 2},
                                                                        {"BF16", 2},
                                                                        {"U32", 4},
                                                                        {"I32", 4},
                                                                        {"F32", 4},
                                                                        {"U64", 8},
                                                                        {"I64", 8},
                                                                        {"F64", 8},
                                                                        {"C64", 8}}};
  for (const auto& [name, bytes] : kBytes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

std::optional<DType> parse_dtype(std::string_view dtype) {
  if (dtype == "BF16") return DType::kBF16;
  if (dtype == "F16") return DType::kF16;
  if (dtype == "F32") return DType::kF32;
  return std::nullopt;
}

// Reads one entry of a header. Offsets count from the end of the header, at `data_begin` of the
// file's `file_size` bytes.
class EntryParser {
 public:
  EntryParser(std::string_view where, std::size_t data_begin, std::size_t file_size)
      : where_(where), data_begin_(data_begin), data_size_(file_size - data_begin) {}

  TensorEntry parse(const std::string& name, const Json& json) const {
    if (!json.is_object()) corrupt(name, "is not a JSON object");
    const auto dtype = json.find("dtype");
    if (dtype == json.end() || !dtype->is_string()) corrupt(name, "has no dtype");
    const auto shape = numbers(name, json, "shape");
    const auto offsets = numbers(name, json, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      corrupt(name, fmt::format("has data_offsets {}, which are not a range", offsets));
    }
    if (offsets[1] > data_size_) {
      corrupt(name, fmt::format("ends at byte {} of {} bytes of data", offsets[1], data_size_));
    }
    check_size(name, *dtype, shape, offsets[1] - offsets[0]);
    return {*dtype, shape, data_begin_ + offsets[0], data_begin_ + offsets[1]};
  }

 private:
  [[noreturn]] void corrupt(const std::string& name, std::string_view what) const {
    fail(ErrorKind::kCorruptFile, "{}: tensor {} {}", where_, shown(name), what);
  }

  std::vector<std::uint64_t> numbers(const std::string& name, const Json& json,
                                     const char* key) const {
    const auto list = json.find(key);
    const auto is_unsigned = [](const Json& x) { return x.is_number_unsigned(); };
    if (list == json.end() || !list->is_array() || list->size() > kMaxDims ||
        !std::all_of(list->begin(), list->end(), is_unsigned)) {
      corrupt(name, fmt::format("needs a {} of non-negative integers", key));
    }
    return list->get<std::vector<std::uint64_t>>();
  }

  void check_size(const std::string& name, const std::string& dtype,
                  const std::vector<std::uint64_t>& shape, std::uint64_t bytes) const {
    const auto element_bytes = bytes_of(dtype);
    if (!element_bytes) return;  // refused where it is asked for
    std::uint64_t expected = *element_bytes;
    for (const std::uint64_t dim : shape) {
      if (__builtin_mul_overflow(expected, dim, &expected)) {
        corrupt(name, fmt::format("has shape {}, too large to count", shape));
      }
    }
    if (expected != bytes) {
      corrupt(name, fmt::format("of {} {} needs {} bytes but has {}", shown(dtype), shape, expected,
                                bytes));
    }
  }

  std::string_view where_;
  std::size_t data_begin_;
  std::size_t data_size_;
};

// The tensors must cover the data exactly: no overlap, no hole, nothing after the last.
void check_cover(const TensorEntries& tensors, std::size_t data_begin, std::size_t file_size,
                 std::string_view where) {
  std::vector<const TensorEntries::value_type*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::size_t end = data_begin;
  for (const auto* tensor : order) {
    if (tensor->second.begin != end) {
      fail(ErrorKind::kCorruptFile, "{}: tensor {} {} the tensor before it", where,
           shown(tensor->first), tensor->second.begin < end ? "overlaps" : "leaves a gap after");
    }
    end = tensor->second.end;
  }
  if (end != file_size) {
    fail(ErrorKind::kCorruptFile, "{}: {} bytes after the last tensor", where, file_size - end);
  }
}

void require_number_of_tensors(std::size_t tensors, std::string_view where) {
  if (tensors <= kMaxTensors) return;
  fail(ErrorKind::kCorruptFile, "{}: {} tensors; {} are the most that are read", where, tensors,
       kMaxTensors);
}

std::string shape_text(int rows, int cols) {
  return rows == 1 ? fmt::format("[{}]", cols) : fmt::format("[{}, {}]", rows, cols);
}

[[noreturn]] void fail_without_checkpoint(const std::filesystem::path& model_dir) {
  if (!is_folder(model_dir)) {
    fail(ErrorKind::kInvalidRequest, "{} is not a model folder", model_dir.string());
  }
  for (const auto& path : list_folder(model_dir)) {
    const auto extension = path.extension();
    if (extension == ".bin" || extension == ".gguf" || extension == ".pth") {
      fail(ErrorKind::kInvalidRequest, "{} is not supported: only safetensors checkpoints are",
           path.string());
    }
  }
  fail(ErrorKind::kInvalidRequest, "{} has neither model.safetensors nor {}", model_dir.string(),
       "model.safetensors.index.json");
}

}  // namespace

TensorEntries parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t length = 0;
  if (file.size() < kLengthBytes) {
    fail(ErrorKind::kCorruptFile, "{}: {} bytes are too short for a safetensors file", where,
         file.size());
  }
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    fail(ErrorKind::kCorruptFile, "{}: a header of {} bytes; the format allows {}", where, length,
         kMaxHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    fail(ErrorKind::kCorruptFile, "{}: truncated: a header of {} bytes in a file of {}", where,
         length, file.size());
  }
  const std::size_t data_begin = kLengthBytes + length;
  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  const Json header = parse_json({text, length}, fmt::format("{}: header", where));
  if (!header.is_object()) fail(ErrorKind::kCorruptFile, "{}: header is not an object", where);
  require_number_of_tensors(header.size(), where);

  TensorEntries tensors;
  const EntryParser parser(where, data_begin, file.size());
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__") tensors.emplace(name, parser.parse(name, json));
  }
  check_cover(tensors, data_begin, file.size(), where);
  return tensors;
}

std::map<std::string, std::string> parse_safetensors_index(const Json& index,
                                                           std::string_view where) {
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object()) {
    fail(ErrorKind::kCorruptFile, "{}: weight_map must be an object of tensor names to files",
         where);
  }
  require_number_of_tensors(weight_map->size(), where);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string()) {
      fail(ErrorKind::kCorruptFile, "{}: the file of tensor {} is not a string", where,
           shown(name));
    }
    const auto& text = file.get_ref<const std::string&>();
    const bool is_plain = !text.empty() && text != "." && text != ".." &&
                          text.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!is_plain) {
      fail(ErrorKind::kCorruptFile,
           "{}: the file {} of tensor {} is not a plain name in the folder", where, shown(text),
           shown(name));
    }
    files.emplace(name, text);
  }
  return files;
}

Checkpoint::Checkpoint(const std::filesystem::path& model_dir) : model_dir_(model_dir) {
  const auto single = model_dir / "model.safetensors";
  const auto index = model_dir / "model.safetensors.index.json";
  if (file_exists(single)) {
    add_file(single);
  } else if (file_exists(index)) {
    add_shards(index);
  } else {
    fail_without_checkpoint(model_dir);
  }
}

void Checkpoint::add_file(const std::filesystem::path& path) {
  const MappedFile& file = files_.emplace_back(path);
  TensorEntries tensors =
      file.while_unchanged([&] { return parse_safetensors(file.bytes(), path.string()); });
  for (auto& [name, entry] : tensors) {
    const auto [other, is_new] =
        tensors_.emplace(name, Location{files_.size() - 1, std::move(entry)});
    if (is_new) continue;
    fail(ErrorKind::kCorruptFile, "{}: tensor {} is in {} too; a tensor must be in one file",
         path.string(), shown(name), files_[other->second.file].path().filename().string());
  }
  require_number_of_tensors(tensors_.size(), model_dir_.string());
}

void Checkpoint::add_shards(const std::filesystem::path& index) {
  const auto file_of = parse_safetensors_index(parse_json_file(index), index.string());
  std::map<std::string, std::size_t> shards;  // file name -> index into files_
  for (const auto& [name, file] : file_of) {
    if (shards.contains(file)) continue;
    const auto path = model_dir_ / file;
    if (!file_exists(path)) {
      fail(ErrorKind::kCorruptFile, "{}: the file {} of tensor {} does not exist", index.string(),
           shown(file), shown(name));
    }
    shards.emplace(file, files_.size());
    add_file(path);
  }
  for (const auto& [name, file] : file_of) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || found->second.file != shards.at(file)) {
      fail(ErrorKind::kCorruptFile, "{}: tensor {} is not in its file {}", index.string(),
           shown(name), shown(file));
    }
  }
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : tensors_) names.push_back(name);
  return names;
}

TensorView Checkpoint::tensor(std::string_view name, int rows, int cols) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(ErrorKind::kCorruptFile, "{}: tensor {} {} is missing", model_dir_.string(), shown(name),
         shape_text(rows, cols));
  }
  const auto& [file, entry] = found->second;
  const MappedFile& mapped = files_[file];
  const auto r = static_cast<std::uint64_t>(rows);
  const auto c = static_cast<std::uint64_t>(cols);
  if (entry.shape != std::vector{r, c} && !(rows == 1 && entry.shape == std::vector{c})) {
    fail(ErrorKind::kCorruptFile, "{}: tensor {} has shape {}; config.json asks for {}",
         mapped.path().string(), shown(name), entry.shape, shape_text(rows, cols));
  }
  const auto dtype = parse_dtype(entry.dtype);
  if (!dtype) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: tensor {} has dtype {}, which is not supported; supported: BF16, F16, F32",
         mapped.path().string(), shown(name), shown(entry.dtype));
  }
  return {mapped.bytes().data() + entry.begin, *dtype, rows, cols};
}

std::string Checkpoint::format_name(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? "none" : found->second.entry.dtype;
}

void Checkpoint::forget(std::string_view name) const {
  const auto& [file, entry] = tensors_.find(name)->second;
  files_[file].forget(files_[file].bytes().subspan(entry.begin, entry.end - entry.begin));
}

std::size_t Checkpoint::bytes() const {
  std::size_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.bytes().size();
  return bytes;
}

void Checkpoint::require_whole() const {
  for (const MappedFile& file : files_) file.require_whole();
}

void Checkpoint::require_unchanged() const {
  for (const MappedFile& file : files_) file.require_unchanged();
}

std::uint64_t Checkpoint::hash() const {
  std::vector<std::uint64_t> hashes;
  for (const MappedFile& file : files_) hashes.push_back(hash_bytes(file.bytes()));
  return hash_bytes(std::as_bytes(std::span(hashes)));
}

}  // namespace quantspec
