// JSON: the reader gives what the library's own parser gives, or both refuse; but for what the
// reader refuses on purpose. An array comes element by element as it does at once, and a value that
// is written is the same when it is read again.
#include "base/error.h"
#include "base/json.h"
#include "fuzz_input.h"

using namespace quantspec;

namespace {

bool refused_on_purpose(std::string_view message) {
  for (const std::string_view why : {"stands twice", "nested deeper", "values", "zero byte"}) {
    if (message.find(why) != message.npos) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Json expected = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Json json;
  try {
    json = parse_json(text, "f");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kCorruptFile);
    require(expected.is_discarded() || refused_on_purpose(error.what()));
    return 0;
  }
  require(json == expected);
  require(parse_json(dump_json(json), "f") == json);
  Json elements = Json::array();
  try {
    parse_json_array(text, "f", [&](std::size_t index, Json element) {
      require(index == elements.size());
      elements.push_back(std::move(element));
    });
    require(elements == json);
  } catch (const Error& error) {
    refused(error);
    require(!json.is_array());
  }
  return 0;
}
