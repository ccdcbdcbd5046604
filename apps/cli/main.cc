// quantspec: see options.cc for what it can do. Errors become exit codes here, and only here.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <new>
#include <string_view>

#include "apps/cli/flags.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/messages.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace quantspec::cli {

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr std::string_view kCommands[] = {"generate", "chat", "serve",   "info",    "tokenize",
                                          "bench",    "eval", "prepare", "roofline"};

constexpr std::string_view kMeasurements[] = {"perplexity", "axes",        "fidelity", "targets",
                                              "prefill",    "sensitivity", "lossless"};

// What was called, as --help is to be asked for: "generate ", "eval lossless "; empty: unknown.
std::string typed_command(int argc, char** argv) {
  const auto is_one_of = [&](int i, const auto& known) {
    return i < argc && std::ranges::find(known, argv[i]) != std::end(known);
  };
  if (!is_one_of(1, kCommands)) return {};
  const bool measures = argv[1] == std::string_view("eval") && is_one_of(2, kMeasurements);
  return std::string(argv[1]) + " " + (measures ? std::string(argv[2]) + " " : "");
}

int report_failure(std::string_view message) {
  say_line("error", message);
  return kExitFailure;
}

int report_usage(std::string_view message, std::string_view command) {
  report_failure(message);
  say(fmt::format("try quantspec {}--help\n", command));
  return kExitUsage;
}

int report_bug(std::string_view message) {
  report_failure(message);
  say("this is a bug in quantspec; please report it with the command you ran\n");
  return kExitFailure;
}

int report_error(const Error& error, std::string_view command) {
  const std::string message = error.what(flag_of);
  if (error.kind() == ErrorKind::kInvalidRequest && error.field()) {
    return report_usage(message, command);
  }
  return error.kind() == ErrorKind::kInternal ? report_bug(message) : report_failure(message);
}

int run_command_line(int argc, char** argv) {
  keep_standard_streams();
  set_up_log(Loudness::kNormal);
  catch_interrupts();
  MappedFile::survive_losses();
  const std::string command = typed_command(argc, argv);
  try {
    const auto parsed = parse_command_line(argc, argv);
    return parsed ? (*parsed)() : 0;
  } catch (const UsageError& error) {
    return report_usage(error.what(), command);
  } catch (const Interrupted&) {
    say("quantspec: interrupted\n");
    return interrupted_exit_code();
  } catch (const BrokenPipe&) {
    return kExitBrokenPipe;
  } catch (const Error& error) {
    return report_error(error, command);
  } catch (const std::filesystem::filesystem_error& error) {
    return report_failure(error.what());
  } catch (const std::bad_alloc&) {
    return report_failure("out of memory; a shorter text or context needs less");
  } catch (const std::exception& error) {
    return report_bug(error.what());
  }
}

}  // namespace

}  // namespace quantspec::cli

int main(int argc, char** argv) { return quantspec::cli::run_command_line(argc, argv); }
