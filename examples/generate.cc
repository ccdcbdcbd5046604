// Continues a text: build/examples/example_generate models/pg-24m "It was a dark night"
#include <quantspec/engine.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: example_generate MODEL_FOLDER PROMPT\n";
    return 2;
  }
  try {
    const auto engine = quantspec::Engine::load({.model = argv[1]});
    const auto session = engine->create_session();

    quantspec::GenerateOptions options;
    options.predict = 64;
    options.sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = 1};
    const auto result = session->generate(argv[2], options, [](const quantspec::TokenEvent& event) {
      std::cout << event.text << std::flush;
      return true;  // false would cancel
    });

    std::cerr << "\n"
              << result.timings.decode_tokens_per_second << " tokens/s, "
              << 100 * result.speculation.acceptance_rate() << "% of the drafted tokens accepted\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
