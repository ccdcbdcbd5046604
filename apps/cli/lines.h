// Lines of standard input. At a terminal they can be edited, and those before come back with the
// arrow keys (libedit; ~/.editrc holds).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace quantspec::cli {

class Lines {
 public:
  // asks: there is a terminal, where a line can be asked for.
  explicit Lines(bool asks);
  ~Lines();
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // Without its end; nullopt: there are no more, or an interrupt gave the text up. Throws
  // Interrupted where nobody can mean the text: without a terminal, and after a signal that is no
  // Ctrl-C; kInvalidRequest where standard input cannot be read.
  std::optional<std::string> next(std::string_view asked);
  bool given_up() const { return given_up_; }

 private:
  class Editor;

  std::optional<std::string> read_line();
  std::string take(std::size_t length);
  void give_up();

  std::unique_ptr<Editor> editor_;  // null: there is no terminal
  bool ended_ = false;
  bool given_up_ = false;
  std::string read_;
  std::size_t searched_ = 0;  // bytes of it that have no line end
};

}  // namespace quantspec::cli
