#include "base/json.h"

#include "base/error.h"
#include "base/mapped_file.h"

namespace quantspec {

namespace {

// NOTE: the parser recurses once per level, so a hostile file of '[' could exhaust the stack.
constexpr int kMaxDepth = 200;

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      fail(ErrorKind::kCorruptFile, "{}: JSON nested deeper than {} levels", where, kMaxDepth);
    }
    return true;
  };
  try {
    return Json::parse(text, limit_depth);
  } catch (const Json::parse_error& error) {
    fail(ErrorKind::kCorruptFile, "{}: not valid JSON at byte {}", where, error.byte);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kCorruptFile, "{}: not valid JSON: {}", where, error.what());
  }
}

Json parse_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

}  // namespace quantspec
