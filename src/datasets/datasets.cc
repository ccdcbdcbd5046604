#include "datasets/datasets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "datasets/documents.h"
#include "datasets/fields.h"
#include "datasets/kinds.h"
#include "datasets/prompts.h"

namespace quantspec {

Dataset Dataset::load(std::string_view spec) { return load(spec, field::kDataset); }

Dataset Dataset::load(std::string_view spec, Field field) {
  const Message typed = Message::format("{} '{}'", field, spec);
  const std::size_t colon = spec.find(':');
  const auto kinds = dataset_kinds();
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const DatasetKind& candidate) {
    return colon != spec.npos && candidate.name == spec.substr(0, colon);
  });
  if (kind == kinds.end()) {
    fail(ErrorKind::kInvalidRequest, "{}: not KIND:PATH of a known kind; known: {}", typed,
         fmt::join(Dataset::kinds(), ", "));
  }
  const std::filesystem::path path = spec.substr(colon + 1);
  if (!file_exists(path)) {
    fail(ErrorKind::kInvalidRequest, "{}: there is no file or folder '{}'", typed, path.string());
  }
  Dataset dataset(spec, typed, *kind);
  dataset.documents_ = read_documents(*kind, path, typed);
  return dataset;
}

std::vector<std::string_view> Dataset::kinds() {
  std::vector<std::string_view> names;
  for (const DatasetKind& kind : dataset_kinds()) names.push_back(kind.name);
  return names;
}

std::vector<Prompt> Dataset::prompts(const Tokenizer& tokenizer,
                                     const PromptOptions& options) const {
  return PromptCutter(*kind_, typed_, documents_, tokenizer, options).cut();
}

}  // namespace quantspec
