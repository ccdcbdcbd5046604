// A GGUF file as a model: its configuration, weights, tokenizer and chat templates, as an engine
// takes them. A header and so many bytes of data. Only Error may come out; what is accepted loads,
// layer by layer, or is refused for what a tensor is.
#include <memory>

#include "backend/backend.h"
#include "chat/chat.h"
#include "fuzz_input.h"
#include "model/chat_templates.h"
#include "model/model_files.h"
#include "model/weight_source.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

using namespace quantspec;

namespace {

void load(const ModelFiles& files) {
  static const std::unique_ptr<Backend> backend = make_backend({.name = "cpu", .num_threads = 1});
  constexpr std::size_t kMostParameters = 1 << 22;  // more takes longer than a fuzzer waits
  const ModelConfig config = files.config();
  const auto source = files.weights();
  for (const std::string& name : source->names()) source->format_name(name);
  const double layer = 4.0 * config.hidden_size * (config.hidden_size + config.intermediate_size);
  if (layer * config.num_layers + 1.0 * config.vocab_size * config.hidden_size > kMostParameters) {
    return;
  }
  const Weights weights(config, files.weights(), *backend);
  require(weights.layers().size() == static_cast<std::size_t>(config.num_layers));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto [header, bytes] = read_header_and_data({reinterpret_cast<const char*>(data), size},
                                                    "\x11\x32\x2b\x05\x3c\x68\x77\x1e\x01\x63\x4f");
  write_or_remove("m.gguf", std::string(header) + bytes);
  ask([&] {
    const auto files = open_model(memory_folder() / "m.gguf");
    ask([&] { load(*files); });
    ask([&] { files->tokenizer()->encode("a <s> b", true); });
    ask([&] { files->chat_templates(); });
  });
  return 0;
}
