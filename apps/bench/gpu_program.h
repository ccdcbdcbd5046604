// What the programs that measure a GPU have in common.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <string>

namespace quantspec {

// For a file of results, before they are measured; it is made.
inline CLI::Validator writable_file() {
  const auto check = [](const std::string& file) {
    return std::ofstream(file, std::ios::app) ? std::string() : file + ": cannot be written";
  };
  return {check, "", ""};
}

// Parses the command line and calls run(). The exit code: run()'s; 1: it failed; 2: wrong usage.
template <typename Run>
int run_program(CLI::App& app, int argc, char** argv, const Run& run) {
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // the help
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
    return 1;
  }
}

}  // namespace quantspec
