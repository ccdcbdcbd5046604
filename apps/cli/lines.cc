#include "apps/cli/lines.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstring>
#include <cwchar>
#include <utility>

#include "apps/cli/interrupt.h"
#include "apps/cli/output.h"
#include "base/error.h"

namespace quantspec::cli {

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 26;  // no context holds as many
constexpr int kKeptLines = 1000;
constexpr auto kNoCharacter = static_cast<std::size_t>(-1);  // of mbrtowc()

// Bytes of standard input, 0 at its end; nullopt: an interrupt came. NOTE: another thread may get
// the signal, so that reading would not end.
std::optional<std::size_t> read_some(char* bytes, std::size_t most) {
  constexpr int kPollMs = 100;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (!interrupted()) {
    if (poll(&input, 1, kPollMs) <= 0) continue;
    const ssize_t count = read(STDIN_FILENO, bytes, most);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR && errno != EAGAIN) {
      fail(ErrorKind::kInvalidRequest, "cannot read standard input: {}", std::strerror(errno));
    }
  }
  return std::nullopt;
}

}  // namespace

// A line at a terminal.
class Lines::Editor {
 public:
  Editor() : history_(history_init()) {
    // NOTE: libedit reads characters by this. Texts are UTF-8 whatever the locale says.
    std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = el_init("quantspec", stdin, stdout, stderr);
    if (edit_ == nullptr || history_ == nullptr) {
      fail(ErrorKind::kInvalidRequest, "the terminal cannot be set up");
    }
    HistEvent event;
    history(history_, &event, H_SETSIZE, kKeptLines);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_PROMPT, &Editor::prompt);
    el_set(edit_, EL_GETCFN, &Editor::next_character);
    // NOTE: 3.1 of 2022 draws a line of several rows wrongly where it has the terminal insert.
    for (const char* inserts : {"ic", "im", "IC"}) el_set(edit_, EL_SETTC, inserts, "", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(edit_, nullptr);
  }
  ~Editor() {
    el_end(edit_);
    history_end(history_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  // With its end; nullopt: there are no more, or an interrupt came.
  std::optional<std::string> next(std::string_view asked) {
    asked_ = asked;
    el_resize(edit_);  // to what the terminal is now
    int count = 0;
    const char* const line = el_gets(edit_, &count);
    if (failure_) throw Error(*std::exchange(failure_, std::nullopt));
    if (line == nullptr || count <= 0) return std::nullopt;
    std::string text(line, static_cast<std::size_t>(count));
    HistEvent event;
    if (text != "\n") history(history_, &event, H_ENTER, text.c_str());
    return text;
  }

 private:
  static Editor& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }
  static char* prompt(EditLine* edit) { return of(edit).asked_.data(); }
  // 1: there is one; 0: there is no more; -1: no line comes.
  static int next_character(EditLine* edit, wchar_t* character) {
    return of(edit).read_character(*character);
  }
  int read_character(wchar_t& character) {
    std::mbstate_t state = {};
    try {
      while (true) {
        char byte = 0;
        const auto count = read_some(&byte, 1);
        if (!count) return -1;
        if (*count == 0) return 0;
        std::size_t used = std::mbrtowc(&character, &byte, 1, &state);
        if (used == kNoCharacter) {  // what is no UTF-8 is left out
          state = {};
          used = std::mbrtowc(&character, &byte, 1, &state);
        }
        if (used <= 1) return 1;
        if (used == kNoCharacter) state = {};
      }
    } catch (const Error& error) {  // which must not pass through libedit
      failure_ = error;
      return -1;
    }
  }

  History* history_;
  EditLine* edit_ = nullptr;
  std::string asked_;
  std::optional<Error> failure_;
};

Lines::Lines(bool asks) : editor_(asks ? std::make_unique<Editor>() : nullptr) {}
Lines::~Lines() = default;

std::optional<std::string> Lines::next(std::string_view asked) {
  given_up_ = false;
  std::optional<std::string> line = editor_ ? editor_->next(asked) : read_line();
  if (!line && interrupted()) give_up();
  if (line && line->ends_with('\n')) line->pop_back();
  if (line && line->ends_with('\r')) line->pop_back();
  return line;
}

std::optional<std::string> Lines::read_line() {
  while (true) {
    const std::size_t end = read_.find('\n', searched_);
    if (end != read_.npos) return take(end + 1);
    searched_ = read_.size();
    if (ended_) return read_.empty() ? std::nullopt : std::optional(take(read_.size()));
    char bytes[4096];
    const auto count = read_some(bytes, sizeof bytes);
    if (!count) return std::nullopt;
    read_.append(bytes, *count);
    ended_ = *count == 0;
    if (read_.size() > kMostBytes) {
      fail(ErrorKind::kInvalidRequest, "standard input: a line of more than {} bytes", kMostBytes);
    }
  }
}

std::string Lines::take(std::size_t length) {
  std::string line = read_.substr(0, length);
  read_.erase(0, length);
  searched_ = 0;
  return line;
}

// Only at a terminal somebody can mean the text; elsewhere it is for the program.
void Lines::give_up() {
  if (!editor_ || interrupted_exit_code() != 130) throw Interrupted();
  forget_interrupt();
  given_up_ = true;
  write_output("\n(Ctrl-D ends)\n");
}

}  // namespace quantspec::cli
