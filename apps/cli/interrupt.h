// Ctrl-C. The first one asks the program to stop where it can; a second one kills it.
#pragma once

namespace quantspec::cli {

inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells have it

// Thrown where there is nothing to show yet: while the model loads or reads the prompt.
struct Interrupted {};

void catch_interrupts();
bool interrupted();

}  // namespace quantspec::cli
