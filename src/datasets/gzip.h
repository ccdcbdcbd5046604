// Whole files as text, decompressed on the way when their name ends in .gz.
#pragma once

#include <filesystem>
#include <string>

namespace quantspec {

// Throws kInvalidRequest when the file cannot be read, kOutOfMemory when there is no memory for its
// text twice (as the file has it, and as documents), and kCorruptFile when it ends in .gz and is
// not gzip, is cut short, fails its checksum or grows to more than a hundred times its size.
std::string read_text(const std::filesystem::path& path);

}  // namespace quantspec
