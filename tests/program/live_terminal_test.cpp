// `thimble train --show-memory` on a pseudo-terminal, with a simulated screen.

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/live.h>
#include <thimble/core/error.h>
#include <thimble/nn/fit/fit.h>

#include "support/catch.h"
#include "support/files.h"

namespace {

using files_test::contains;

// The lines of a screen. It understands the live view's output: lines, CR, colours, "up by n" and "clear to the end".
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

// A pseudo-terminal of 100 columns; the test reads from `ours` the program's output to `name`.
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
    // Fails once the program, the only process with the other end open, has exited.
    const ssize_t count = read(terminal.ours, bytes.data(), bytes.size());
    if (count <= 0) {
      int status = 0;
      const bool is_over = waitpid(child, &status, WNOHANG) == child;
      if (!is_over) {  // the program has not opened its end yet
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

// ---- The picture of memory in a terminal while a program runs.

namespace {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;

}  // namespace

TEST_CASE("seeing: the exit status of an error is memory's only for what lacks memory or threads", "[seeing]") {
  const auto of = [](const auto& error) { return bench::status_of(std::make_exception_ptr(error)); };
  const auto of_code = [&](std::errc code) { return of(std::system_error(std::make_error_code(code))); };
  for (const int status : {of(nn::BudgetError("", 1, 2)), of(OutOfMemory("", {})), of(std::bad_alloc()),
                           of_code(std::errc::resource_unavailable_try_again), of_code(std::errc::not_enough_memory)}) {
    CHECK(status == bench::memory_status);
  }
  for (const int status : {of_code(std::errc::permission_denied), of(ValueError("")), of(7)}) {
    CHECK(status == bench::bad_input_status);
  }
  try {
    try {
      throw std::bad_alloc();
    } catch (...) {
      std::throw_with_nested(ValueError(""));
    }
  } catch (...) {
    CHECK(bench::status_of(std::current_exception()) == bench::memory_status);
  }
}

TEST_CASE("seeing: a live picture shows what the bytes are, to the column", "[seeing]") {
  bench::LiveBytes bytes;
  bytes.now[static_cast<std::size_t>(memory::Category::parameter)] = 25 << 20;
  bytes.now[static_cast<std::size_t>(memory::Category::activation)] = 25 << 20;
  bytes.committed_bytes = 60 << 20;
  bytes.peak_bytes = 80 << 20;
  bytes.budget_bytes = 100 << 20;
  const std::string picture = bench::live_picture(bytes, 100);
  // Without colours.
  std::string plain;
  for (std::size_t i = 0; i < picture.size(); ++i) {
    if (picture[i] == '\033')
      i = picture.find('m', i);
    else
      plain += picture[i];
  }
  const auto cells = [](const char* cell, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += cell;
    return text;
  };
  CHECK(plain == cells("\xE2\x96\x88", 50) + cells("\xE2\x96\x91", 10) + cells("\xC2\xB7", 19) + "\xE2\x94\x83" +
                     cells("\xC2\xB7", 20) +
                     "\n\xE2\x96\x88 parameters 25.00 MiB  \xE2\x96\x88 activations 25.00 MiB\n"
                     "committed 60.00 MiB  peak 80.00 MiB  budget 100.00 MiB\n");
  bytes.peak_bytes = 30 << 20;  // within the activations: no column is lost
  const std::string inside = bench::live_picture(bytes, 100);
  CHECK(contains(inside, "\xE2\x94\x83"));
  CHECK(std::count(inside.begin(), inside.end(), '\n') == bench::live_lines);
  CHECK_NOTHROW(bench::live_picture({}, 1));
}

TEST_CASE("seeing: the view draws by itself, and lines stand above it", "[seeing]") {
  const TemporaryFolder folder;
  std::FILE* const file = std::fopen((folder / "terminal").c_str(), "w");
  REQUIRE(file != nullptr);
  {
    const memory::Stack stack = memory::make_resource(cpu);
    bench::LiveView view(file, stack, std::size_t{1} << 20);
    memory::Block* const block = stack.top->allocate({1 << 19, 64, memory::Category::gradient, 0, nullptr});
    view.print("step 1", true);
    stack.top->deallocate(block, nullptr);
    view.print(std::string(300, '3'), true);
    view.print("step 2", false);
  }
  std::fclose(file);
  const std::string text = files_test::read_text_file(folder / "terminal");
  CHECK(contains(text, "step 1\n"));
  CHECK(contains(text, "gradients 512.00 KiB"));
  CHECK(contains(text, "budget 1.00 MiB"));
  const std::string whole = std::string(300, '3').append("\n");
  CHECK(contains(text, whole));  // the long line stays whole
  CHECK(contains(text, "step 2\n"));
  const std::string gone = "\033[3A\033[J";  // the picture; the line above stays
  CHECK(text.substr(text.size() - gone.size()) == gone);
}
