#include "datasets/documents.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"
#include "datasets/gzip.h"

namespace quantspec {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlank = " \t\r\n";

bool is_blank(std::string_view text) { return text.find_first_not_of(kBlank) == text.npos; }

bool ends_in_one_of(const fs::path& path, const std::vector<std::string_view>& suffixes) {
  std::string name = path.filename().string();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::vector<fs::path> files_of(const DatasetKind& kind, const fs::path& path,
                               const Message& typed) {
  if (!is_folder(path)) return {path};
  std::vector<fs::path> files = list_folder(path);
  std::erase_if(files, [&](const fs::path& file) {
    return !ends_in_one_of(file, kind.text_suffixes) && !ends_in_one_of(file, kind.record_suffixes);
  });
  std::erase_if(files, is_folder);
  if (files.empty()) {
    std::vector<std::string_view> suffixes = kind.text_suffixes;
    suffixes.insert(suffixes.end(), kind.record_suffixes.begin(), kind.record_suffixes.end());
    fail(ErrorKind::kInvalidRequest, "{}: no file in this folder ends in {} (or that and .gz)",
         typed, fmt::join(suffixes, ", "));
  }
  return files;
}

const Json& field_of(const Json& record, std::string_view field, std::string_view where) {
  const auto found = record.find(std::string(field));
  if (found != record.end()) return *found;
  fail(ErrorKind::kCorruptFile, "{}: the field \"{}\" is missing", where, field);
}

std::string string_of(const Json& record, std::string_view field, std::string_view where) {
  const Json& value = field_of(record, field, where);
  if (value.is_string()) return value.get<std::string>();
  fail(ErrorKind::kCorruptFile, "{}: the field \"{}\" is not a string", where, field);
}

// A string, or a list of strings, which are joined by newlines.
std::string text_of(const Json& record, std::string_view field, std::string_view where) {
  const Json& value = field_of(record, field, where);
  if (value.is_string()) return value.get<std::string>();
  std::vector<std::string_view> parts;
  bool strings = value.is_array();
  for (std::size_t i = 0; strings && i < value.size(); ++i) {
    const Json& part = value[i];
    strings = part.is_string();
    if (strings) parts.push_back(part.get_ref<const std::string&>());
  }
  if (!strings) {
    fail(ErrorKind::kCorruptFile, "{}: the field \"{}\" is neither a string nor a list of strings",
         where, field);
  }
  return fmt::format("{}", fmt::join(parts, "\n"));
}

// A file of records, one after another: JSON lines, or one JSON array.
class RecordReader {
 public:
  RecordReader(const fs::path& path, const DatasetKind& kind) : path_(path), kind_(kind) {}

  std::vector<Document> read();

 private:
  void read_lines(std::string_view text);
  void read_array(std::string_view text);
  void add(const Json& record, std::string place);

  const fs::path& path_;
  const DatasetKind& kind_;
  std::vector<Document> documents_;
};

std::vector<Document> RecordReader::read() {
  const std::string file = read_text(path_);
  std::string_view text = file;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (is_blank(text)) fail(ErrorKind::kCorruptFile, "{}: the file is empty", path_.string());
  if (text[text.find_first_not_of(kBlank)] == '[') {
    read_array(text);
  } else {
    read_lines(text);
  }
  return std::move(documents_);
}

void RecordReader::read_lines(std::string_view text) {
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    const std::string_view record = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (is_blank(record)) continue;
    const std::string place = fmt::format("line {}", line);
    add(parse_json(record, fmt::format("{} {}", path_.string(), place)), place);
  }
}

void RecordReader::read_array(std::string_view text) {
  parse_json_array(text, path_.string(), [&](std::size_t index, Json record) {
    add(record, fmt::format("record {}", index + 1));
  });
  if (documents_.empty()) fail(ErrorKind::kCorruptFile, "{}: no records", path_.string());
}

void RecordReader::add(const Json& record, std::string place) {
  const std::string where = fmt::format("{} {}", path_.string(), place);
  if (!record.is_object()) fail(ErrorKind::kCorruptFile, "{}: not a JSON object", where);
  Document document{fmt::format("{} {}", path_.filename().string(), place),
                    text_of(record, kind_.field, where), std::string(kind_.question)};
  if (!kind_.question_field.empty()) {
    document.question = string_of(record, kind_.question_field, where);
  }
  if (!kind_.answer_field.empty() && record.contains(std::string(kind_.answer_field))) {
    document.answer = string_of(record, kind_.answer_field, where);
  }
  documents_.push_back(std::move(document));
}

Document read_text_document(const fs::path& path) {
  const std::string file = read_text(path);
  require_text(file, path.string());
  Document document{path.filename().string(), book_text(file)};
  if (is_blank(document.text)) {
    fail(ErrorKind::kCorruptFile, "{}: no text in this file", path.string());
  }
  return document;
}

// Where a line "***<what>...PROJECT GUTENBERG" begins, with or without a space after the stars.
std::size_t find_gutenberg_line(std::string_view text, std::string_view what) {
  for (std::size_t at = text.find("***"); at != text.npos; at = text.find("***", at + 3)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    std::string_view line = text.substr(at + 3);
    line = line.substr(0, line.find('\n'));
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (line.starts_with(what) && line.find("PROJECT GUTENBERG") != line.npos) return at;
  }
  return text.npos;
}

// Where the text goes on after the line of stars at `at`: a long title makes it several lines, up
// to the stars that close it.
std::size_t after_gutenberg_line(std::string_view text, std::size_t at) {
  const std::size_t close = text.find("***", at + 3);
  const bool same_paragraph = close < text.find("\n\n", at);
  const std::size_t end = text.find('\n', same_paragraph ? close : at);
  return text.find_first_not_of('\n', std::min(end, text.size()));
}

}  // namespace

std::string book_text(std::string_view file) {
  std::string text = unix_text(file);
  const std::size_t start = find_gutenberg_line(text, "START OF");
  if (start != text.npos) text.erase(0, after_gutenberg_line(text, start));
  const std::size_t end = find_gutenberg_line(text, "END OF");
  if (end != text.npos) text.resize(end);
  return text;
}

std::vector<Document> read_documents(const DatasetKind& kind, const fs::path& path,
                                     const Message& typed) {
  std::vector<Document> documents;
  for (const fs::path& file : files_of(kind, path, typed)) {
    if (kind.record_suffixes.empty() || ends_in_one_of(file, kind.text_suffixes)) {
      documents.push_back(read_text_document(file));
      continue;
    }
    std::vector<Document> records = RecordReader(file, kind).read();
    std::move(records.begin(), records.end(), std::back_inserter(documents));
  }
  return documents;
}

}  // namespace quantspec
