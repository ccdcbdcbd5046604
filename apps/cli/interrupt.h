// Ctrl-C and SIGTERM. The first one asks the program to stop where it can; a second one kills it.
#pragma once

namespace quantspec::cli {

// Thrown where there is nothing to show yet: while the model loads or reads the prompt.
struct Interrupted {};

void catch_interrupts();
bool interrupted();
// 128 and the signal's number, as shells have it: 130 after a Ctrl-C. REQUIRES: interrupted().
int interrupted_exit_code();

}  // namespace quantspec::cli
