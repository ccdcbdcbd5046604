// GGUF files: one, or two or three parts of a split one. Each is a header and so many bytes of
// data, or a whole file. Only Error may come out; what is accepted must lie within its file; keys
// are asked for as every type, and rows of every tensor are decoded.
#include <span>

#include "fuzz_input.h"
#include "gguf/blocks.h"
#include "gguf/gguf.h"

using namespace quantspec;

namespace {

void ask_for_keys(const GgufMetadata& metadata) {
  std::vector<std::string> keys = metadata.keys();
  keys.resize(std::min<std::size_t>(keys.size(), 64));  // since most of what is asked for throws
  for (const std::string& key : keys) {
    ask([&] { metadata.integer(key); });
    ask([&] { metadata.real(key); });
    ask([&] { metadata.flag(key); });
    ask([&] { metadata.text(key); });
    ask([&] { metadata.integers(key); });
    ask([&] { metadata.reals(key); });
    ask([&] { metadata.flags(key); });
    ask([&] { metadata.texts(key); });
  }
}

// The first and the last row.
void decode(const GgufTensor& tensor) {
  const WeightFormat format = checked_format(tensor.type, tensor.bytes, "f");
  if (format.dense()) return;
  const auto cols = static_cast<int>(tensor.shape[0]);
  const std::size_t bytes = row_bytes(tensor.type, cols);
  require(!tensor.bytes.empty() && tensor.bytes.size() % bytes == 0);
  RowBuffer buffer(format, cols);
  std::vector<float> values(buffer.codes.size());
  for (const auto row : {tensor.bytes.first(bytes), tensor.bytes.last(bytes)}) {
    read_row(tensor.type, row, cols, format, buffer.view());
    for (const int code : buffer.codes) require(code < 1 << format.bits);
    decode_row(format, cols, buffer.view(), /*upper_only=*/false, values.data());
  }
}

void parse_alone(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const GgufPart part = parse_gguf(bytes, "f");
  ask_for_keys(part.metadata);
  for (const auto& [name, tensor] : part.tensors) {
    require(tensor.bytes.data() >= bytes.data() && !tensor.bytes.empty());
    require(tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size());
    ask([&] { decode(tensor); });
  }
}

std::string name_of_part(std::size_t part, std::size_t count) {
  return "m-0000" + std::to_string(part) + "-of-0000" + std::to_string(count) + ".gguf";
}

void load(const std::vector<std::string>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    write_or_remove(name_of_part(i + 1, files.size()), files[i]);
  }
  const Gguf gguf(memory_folder() / name_of_part(1, files.size()));
  gguf.hash();  // reads every byte
  for (const std::string& name : gguf.names()) require(gguf.has(name) && !gguf.where(name).empty());
  gguf.require_unchanged();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kData =
      "\x11\x32\x2b\x05\x3c\x68\x77\x1e\x01\x63\x4f";  // finite scales
  std::vector<std::string> files;
  for (const auto part : parts_of(data, size, 3)) {
    const auto [header, bytes] = read_header_and_data(part, kData);
    files.push_back(std::string(header) + bytes);
  }
  ask([&] { parse_alone(files[0]); });
  if (files.size() > 1) ask([&] { load(files); });
  return 0;
}
