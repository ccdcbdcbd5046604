#include "apps/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <string_view>

namespace quantspec::cli {

namespace {

std::atomic<int> signal_seen = 0;  // its number
std::atomic<int> num_polled = 0;   // PolledInterrupts that live
bool on_terminal = false;          // standard error is
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  int none = 0;
  if (signal == SIGINT) {  // which does not hide what is to end the program
    signal_seen.compare_exchange_strong(none, signal);
  } else {
    signal_seen = signal;
  }
  if (num_polled > 0) return;
  constexpr std::string_view kMessage = "\r\x1b[Kquantspec: interrupted\n";  // over a progress bar
  const std::string_view text = kMessage.substr(on_terminal ? 0 : kMessage.find('q'));
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, text.data(), text.size());
  _exit(interrupted_exit_code());
}

}  // namespace

void catch_interrupts() {
  on_terminal = isatty(STDERR_FILENO) == 1;
  struct sigaction action {
  }, before{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const bool known = sigaction(signal, nullptr, &before) == 0;
    if (!known || before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

bool interrupted() { return signal_seen != 0; }

int interrupted_exit_code() { return 128 + signal_seen; }

void forget_interrupt() {
  int ctrl_c = SIGINT;
  signal_seen.compare_exchange_strong(ctrl_c, 0);
  catch_interrupts();
}

PolledInterrupts::PolledInterrupts() { ++num_polled; }
PolledInterrupts::~PolledInterrupts() { --num_polled; }

}  // namespace quantspec::cli
