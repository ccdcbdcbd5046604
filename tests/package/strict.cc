// Sees the public headers as a careful project does, and prints the version that they say.
#include <quantspec/engine.h>
#include <quantspec/fields.h>
#include <quantspec/version.h>

#include <iostream>
#include <string>

int main() {
  const auto number = [](int part) { return std::to_string(part); };
  if (number(QUANTSPEC_VERSION_MAJOR) + "." + number(QUANTSPEC_VERSION_MINOR) + "." +
          number(QUANTSPEC_VERSION_PATCH) !=
      QUANTSPEC_VERSION) {
    return 1;
  }
  if (quantspec::plain_name(quantspec::field::kContext) != "context size") return 1;
  std::cout << "quantspec " QUANTSPEC_VERSION "\n";
}
