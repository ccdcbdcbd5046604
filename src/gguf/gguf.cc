#include "gguf/gguf.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/shown.h"

namespace quantspec {

namespace {

constexpr std::int64_t kMaxParts = 1024;  // ten times what the largest models have

// "x" of x-00001-of-00003.gguf, given which part of how many that is; nothing for other names.
std::optional<std::string> stem_of_part(const std::string& name, std::int64_t part,
                                        std::int64_t count) {
  const std::string ending = fmt::format("-{:05}-of-{:05}.gguf", part, count);
  if (!name.ends_with(ending)) return std::nullopt;
  return name.substr(0, name.size() - ending.size());
}

std::filesystem::path path_of_part(const std::filesystem::path& folder, const std::string& stem,
                                   std::int64_t part, std::int64_t count) {
  return folder / fmt::format("{}-{:05}-of-{:05}.gguf", stem, part, count);
}

[[noreturn]] void fail_for_later_part(const std::filesystem::path& path, std::int64_t no,
                                      std::int64_t count) {
  const auto stem = stem_of_part(path.filename().string(), no + 1, count);
  const auto first = path_of_part(path.parent_path(), stem.value_or("..."), 1, count);
  fail(ErrorKind::kInvalidRequest, "{} is part {} of {} of a model; give the first one, {}",
       path.string(), no + 1, count, first.string());
}

// What a part says of itself must be what is asked of it.
void require_part(const GgufMetadata& metadata, std::string_view key, std::int64_t expected,
                  const std::filesystem::path& path) {
  const auto value = metadata.integer(key);
  if (value == expected) return;
  fail(ErrorKind::kCorruptFile, "{}: metadata key {} is {}; by the first part it must be {}",
       path.string(), shown(key), value ? std::to_string(*value) : "missing", expected);
}

}  // namespace

Gguf::Gguf(const std::filesystem::path& path) {
  metadata_ = add_file(path);
  const std::int64_t count = metadata_.integer("split.count").value_or(1);
  const std::int64_t no = metadata_.integer("split.no").value_or(0);
  if (count < 0 || count > kMaxParts || no < 0 || no >= std::max<std::int64_t>(count, 1)) {
    fail(ErrorKind::kCorruptFile,
         "{}: metadata key \"split.no\" is {} and \"split.count\" {}; parts count from 0, and {} "
         "are the most that are read",
         path.string(), no, count, kMaxParts);
  }
  if (no != 0) fail_for_later_part(path, no, count);
  if (count > 1) add_parts(count);
  require_number_of_tensors();
}

// Keys refer to the mapping of a file, which stays where it is when files_ grows.
GgufMetadata Gguf::add_file(const std::filesystem::path& path) {
  const MappedFile& file = files_.emplace_back(path);
  GgufPart part = file.while_unchanged([&] { return parse_gguf(file.bytes(), path.string()); });
  for (auto& [name, tensor] : part.tensors) {
    const auto [other, is_new] =
        tensors_.emplace(name, Location{files_.size() - 1, std::move(tensor)});
    if (is_new) continue;
    fail(ErrorKind::kCorruptFile, "{}: tensor {} is in {} too; a tensor must be in one part",
         path.string(), shown(name), files_[other->second.file].path().filename().string());
  }
  return std::move(part.metadata);
}

void Gguf::add_parts(std::int64_t count) {
  const auto first = path();
  const auto stem = stem_of_part(first.filename().string(), 1, count);
  if (!stem) {
    fail(ErrorKind::kInvalidRequest,
         "{} is the first of {} parts, so its name must end in -00001-of-{:05}.gguf for the others "
         "to be found",
         first.string(), count, count);
  }
  for (std::int64_t i = 1; i < count; ++i) {
    const auto part = path_of_part(first.parent_path(), *stem, i + 1, count);
    if (!file_exists(part)) {
      fail(ErrorKind::kInvalidRequest, "{} needs {} parts, and {} does not exist", first.string(),
           count, part.string());
    }
    const GgufMetadata metadata = add_file(part);
    require_part(metadata, "split.no", i, part);
    require_part(metadata, "split.count", count, part);
  }
}

void Gguf::require_number_of_tensors() const {
  if (tensors_.size() > kMaxTensors) {
    fail(ErrorKind::kCorruptFile, "{}: has {} tensors; {} are the most that are read",
         path().string(), tensors_.size(), kMaxTensors);
  }
  const auto expected = metadata_.integer("split.tensors.count");
  if (!expected || *expected == static_cast<std::int64_t>(tensors_.size())) return;
  fail(ErrorKind::kCorruptFile,
       "{}: metadata key \"split.tensors.count\" is {}, but its parts have {} tensors",
       path().string(), *expected, tensors_.size());
}

std::vector<std::string> Gguf::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : tensors_) names.push_back(name);
  return names;
}

const GgufTensor& Gguf::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second.tensor;
  fail(ErrorKind::kCorruptFile, "{}: tensor {} is missing", path().string(), shown(name));
}

std::string Gguf::where(std::string_view name) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), "a tensor that is there");
  return fmt::format("{}: tensor {}", files_[found->second.file].path().string(), shown(name));
}

void Gguf::forget(std::string_view name) const {
  const Location& found = tensors_.find(name)->second;
  files_[found.file].forget(found.tensor.bytes);
}

std::size_t Gguf::bytes() const {
  std::size_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.bytes().size();
  return bytes;
}

void Gguf::require_whole() const {
  for (const MappedFile& file : files_) file.require_whole();
}

void Gguf::require_unchanged() const {
  for (const MappedFile& file : files_) file.require_unchanged();
}

std::uint64_t Gguf::hash() const {
  std::vector<std::uint64_t> hashes;
  for (const MappedFile& file : files_) hashes.push_back(hash_bytes(file.bytes()));
  return hash_bytes(std::as_bytes(std::span(hashes)));
}

}  // namespace quantspec
