#include "apps/cli/interrupt.h"

#include <csignal>

namespace quantspec::cli {

namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupt_seen = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }

}  // namespace quantspec::cli
