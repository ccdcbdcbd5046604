#include "apps/cli/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace quantspec::cli {

namespace {

volatile std::sig_atomic_t signal_seen = 0;  // its number

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { signal_seen = signal; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool interrupted() { return signal_seen != 0; }

int interrupted_exit_code() { return 128 + signal_seen; }

}  // namespace quantspec::cli
