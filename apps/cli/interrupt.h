// Ctrl-C, SIGTERM and a terminal that goes away. The first one ends the program at once, saying so,
// but where a PolledInterrupts lives: there it asks for an end, which what polls takes where
// nothing is lost. A second one kills.
#pragma once

namespace quantspec::cli {

// Thrown where there is nothing to show yet: while the model loads or reads the prompt.
struct Interrupted {};

// May be called again. Signals that are ignored, as those of a job in the background, stay so.
void catch_interrupts();
bool interrupted();
// 128 and the signal's number, as shells have it: 130 after a Ctrl-C. REQUIRES: interrupted().
int interrupted_exit_code();
// A Ctrl-C was taken: the next one is the first again.
void forget_interrupt();

// While it lives, someone calls interrupted() again and again.
class PolledInterrupts {
 public:
  PolledInterrupts();
  ~PolledInterrupts();
  PolledInterrupts(const PolledInterrupts&) = delete;
  PolledInterrupts& operator=(const PolledInterrupts&) = delete;
};

}  // namespace quantspec::cli
