// `thimble train --show-memory` on a terminal: a pseudo-terminal whose screen is kept by hand.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "support/catch.h"
#include "support/files.h"

namespace {

using files_test::contains;

// The lines of a screen. It knows what the live view writes: lines, CR, colours, "up by n" and "clear to the end".
class Screen {
 public:
  void write(char c) {
    if (!escape_.empty()) {
      escape_ += c;
      if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) obey();
    } else if (c == '\033') {
      escape_ = c;
    } else if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      if (++row_ == lines_.size()) lines_.emplace_back();
    } else {
      std::string& line = lines_[row_];
      line.resize(std::max(line.size(), column_), ' ');
      line.replace(column_++, 1, 1, c);
    }
  }
  std::size_t lines_with(const std::string& text) const {
    return static_cast<std::size_t>(
        std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) { return contains(line, text); }));
  }
  bool has_unknown() const noexcept { return has_unknown_; }

 private:
  void obey() {
    const char what = escape_.back();
    const std::size_t number = escape_.size() > 3 ? std::strtoul(escape_.c_str() + 2, nullptr, 10) : 0;
    if (what == 'A') {
      has_unknown_ = has_unknown_ || number > row_;  // above the screen
      row_ -= std::min(row_, number);
    } else if (what == 'J') {
      lines_.resize(row_ + 1);
      lines_.back().resize(std::min(lines_.back().size(), column_));
    } else if (what == 'K') {
      lines_[row_].resize(std::min(lines_[row_].size(), column_));
    } else if (what != 'm') {
      has_unknown_ = true;
    }
    escape_.clear();
  }

  std::vector<std::string> lines_ = std::vector<std::string>(1);
  std::size_t row_ = 0, column_ = 0;
  std::string escape_;
  bool has_unknown_ = false;
};

// A pseudo-terminal of 100 columns; what is read from the first end is what the program writes to the second.
struct Terminal {
  int ours = -1;
  std::string name;
  Terminal() {
    ours = posix_openpt(O_RDWR | O_NOCTTY);
    if (ours < 0 || grantpt(ours) != 0 || unlockpt(ours) != 0) return;
    name = ptsname(ours);
    const winsize size{40, 100, 0, 0};
    ioctl(ours, TIOCSWINSZ, &size);
  }
  ~Terminal() {
    if (ours >= 0) close(ours);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
};

}  // namespace

TEST_CASE("live: on a terminal there is one picture below the progress, and none at the end", "[seeing]") {
  const char* const program = std::getenv("THIMBLE_PROGRAM");
  if (program == nullptr) {
    WARN("SKIPPED: THIMBLE_PROGRAM does not name the program");
    return;
  }
  const Terminal terminal;
  if (terminal.name.empty()) {
    WARN("SKIPPED: this system gives no pseudo-terminal");
    return;
  }
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int theirs = open(terminal.name.c_str(), O_RDWR | O_NOCTTY), nothing = open("/dev/null", O_WRONLY);
    dup2(theirs, STDERR_FILENO);
    dup2(nothing, STDOUT_FILENO);
    close(terminal.ours);
    execl(program, program, "train", "mlp", "--data", "synthetic", "--image", "16", "--steps", "12", "--budget",
          "64MiB", "--show-memory", nullptr);
    _exit(127);
  }
  Screen screen;
  std::size_t most_pictures = 0, most_with_parameters = 0;
  std::array<char, 1 << 12> bytes;
  for (;;) {
    // It ends when the program, the only one to have the other end open, has gone.
    const ssize_t count = read(terminal.ours, bytes.data(), bytes.size());
    if (count <= 0) {
      int status = 0;
      const bool is_over = waitpid(child, &status, WNOHANG) == child;
      if (!is_over) {  // it has not opened its end yet
        usleep(10'000);
        continue;
      }
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
      break;
    }
    for (ssize_t i = 0; i < count; ++i) {
      screen.write(bytes[static_cast<std::size_t>(i)]);
      most_pictures = std::max(most_pictures, screen.lines_with("committed "));
      most_with_parameters = std::max(most_with_parameters, screen.lines_with("parameters "));
    }
  }
  CHECK(most_pictures == 1);
  CHECK(most_with_parameters == 1);
  CHECK(screen.lines_with("committed ") == 0);
  CHECK_FALSE(screen.has_unknown());
  CHECK(screen.lines_with("12/12") + screen.lines_with("step 12") > 0);
}
