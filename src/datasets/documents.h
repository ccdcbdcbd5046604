// Files to documents. All errors name the file, and the record if it has several.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/datasets.h"
#include "datasets/kinds.h"

namespace quantspec {

// The documents of a file, or of the files of that kind in a folder, in the order of their names.
// Throws kInvalidRequest, beginning with `typed`, when there is none and kCorruptFile for a broken
// or empty one.
std::vector<Document> read_documents(const DatasetKind& kind, const std::filesystem::path& path,
                                     const Message& typed);

// The text between the lines "*** START OF ... PROJECT GUTENBERG ... ***" and "*** END OF ...", if
// there are such lines, with the line ends of Unix and without a byte-order mark.
std::string book_text(std::string_view file);

}  // namespace quantspec
