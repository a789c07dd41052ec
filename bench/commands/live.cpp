#include <thimble/bench/commands/live.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/files/printable.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace {

constexpr std::chrono::milliseconds interval{250};
constexpr int narrowest = 40, widest = 160;

std::string colour_of(memory::Category category) {
  const std::string_view hex = report::paint_of(category).dark;
  std::string code = "\033[38;2";
  for (std::size_t i = 1; i < 7; i += 2)
    code += ";" + std::to_string(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return code + "m";
}

constexpr const char* plain = "\033[0m";

int columns_of(std::FILE* terminal) {
  winsize size{};
  if (ioctl(fileno(terminal), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return std::clamp(static_cast<int>(size.ws_col), narrowest, widest);
}

// Draws the categories side by side; each ends at the column of the running sum of bytes.
std::string bar(const LiveBytes& bytes, std::size_t whole, int width) {
  const auto column = [&](std::size_t sum) {
    const double part = whole == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(whole);
    return std::min(width, static_cast<int>(std::lround(part * width)));
  };
  const int peak = std::max(0, column(bytes.peak_bytes) - 1);
  std::string text;
  int at = 0;
  std::size_t sum = 0;
  const auto fill = [&](int end, const char* cell) {
    for (; at < end; ++at) text += at == peak ? "\033[0m\xE2\x94\x83" : cell;  // vertical stroke
  };
  for (const memory::Category category : report::stacking_order) {
    sum += bytes.now[static_cast<std::size_t>(category)];
    const int end = column(sum);
    if (end > at) text += colour_of(category);
    while (at < end) {
      const int stop = at <= peak && peak < end ? peak : end;
      fill(stop, "\xE2\x96\x88");  // full block
      if (at == peak && at < end) {
        fill(at + 1, "");
        text += colour_of(category);
      }
    }
  }
  text += plain;
  fill(column(bytes.committed_bytes), "\xE2\x96\x91");  // lightly shaded: committed and free
  fill(width, "\xC2\xB7");
  return text + plain;
}

std::string clipped(const std::string& text, int columns) {
  std::string kept;
  int width = 0;
  for (const char c : text) {
    const bool is_start = (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;  // first byte of a code point in UTF-8
    if (is_start && ++width > columns) break;
    kept += c;
  }
  return kept;
}

}  // namespace

std::string live_picture(const LiveBytes& bytes, int columns) {
  columns = std::max(columns, narrowest);
  const std::size_t whole = bytes.budget_bytes > 0 ? bytes.budget_bytes : bytes.peak_bytes;
  std::string legend;
  int width = 0;
  for (const memory::Category category : report::stacking_order) {
    const std::size_t part = bytes.now[static_cast<std::size_t>(category)];
    if (part == 0) continue;
    const std::string entry = std::string(report::label_of(category)) + " " + format_bytes(part);
    const int needs = static_cast<int>(report::display_width(entry)) + 2 + (width == 0 ? 0 : 2);
    if (width + needs > columns) break;  // the bar still shows it
    legend += (width == 0 ? "" : "  ") + colour_of(category) + "\xE2\x96\x88" + plain + " " + entry;
    width += needs;
  }
  std::string sums = "committed " + format_bytes(bytes.committed_bytes) + "  peak " + format_bytes(bytes.peak_bytes);
  if (bytes.budget_bytes > 0) sums += "  budget " + format_bytes(bytes.budget_bytes);
  return bar(bytes, whole, columns) + "\n" + legend + "\n" + clipped(sums, columns) + "\n";
}

PlanningLine::PlanningLine() : is_terminal_(isatty(STDERR_FILENO) != 0), begin_(std::chrono::steady_clock::now()) {}

// Clears the line even without show(), because a child process that plans prints lines, too.
PlanningLine::~PlanningLine() {
  if (is_shown()) std::fprintf(stderr, "\r\033[K");
}

bool PlanningLine::is_shown() const {
  return is_terminal_ && std::chrono::steady_clock::now() - begin_ >= std::chrono::seconds(1);
}

void PlanningLine::show(const std::string& text) const {
  if (!is_shown()) return;
  std::fprintf(stderr, "\r\033[Kplanning: %s", printable(with_flags(text)).c_str());
  std::fflush(stderr);
}

LiveView::LiveView(std::FILE* terminal, const memory::Stack& stack, std::size_t budget_bytes)
    : terminal_(terminal), ledger_(stack.ledger), arena_(stack.arena), budget_bytes_(budget_bytes) {
  thread_ = std::thread([this] { run(); });
}

LiveView::~LiveView() {
  {
    const std::lock_guard guard(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  thread_.join();
  // The run has freed its blocks, so a last picture would be empty.
  if (is_drawn_) std::fprintf(terminal_, "\033[%dA\033[J", live_lines + (line_.empty() ? 1 : 0));
  std::fflush(terminal_);
}

void LiveView::print(const std::string& line, bool stays) {
  const std::lock_guard guard(mutex_);
  line_ = line;
  if (stays) {
    // Prints the whole line over any number of rows; the next picture begins below it.
    if (is_drawn_) std::fprintf(terminal_, "\033[%dA\r\033[J", live_lines + 1);
    std::fprintf(terminal_, "%s\n", line.c_str());
    line_.clear();
    is_drawn_ = false;
  }
  draw();
}

void LiveView::run() {
  std::unique_lock guard(mutex_);
  do {
    draw();
  } while (!wake_.wait_for(guard, interval, [this] { return is_over_; }));
}

void LiveView::draw() {
  LiveBytes bytes;
  bytes.now = ledger_->bytes_by_category();
  const memory::Arena::Statistics arena = arena_->statistics();
  bytes.committed_bytes = arena.committed_bytes;
  bytes.peak_bytes = arena.peak_committed_bytes;
  bytes.budget_bytes = budget_bytes_;
  const int columns = columns_of(terminal_) - 1;  // the last column of some terminals wraps
  // Moves up to the line above the picture, clears the rest of the screen and draws again.
  std::string text;
  if (is_drawn_) text += "\033[" + std::to_string(live_lines + 1) + "A";
  text += "\r\033[J" + clipped(line_, columns) + "\n" + live_picture(bytes, columns);
  std::fwrite(text.data(), 1, text.size(), terminal_);
  std::fflush(terminal_);
  is_drawn_ = true;
}

namespace {

// Joins the lines of a text, such as an out-of-memory table, by "; ".
std::string one_line(const std::string& text) {
  std::string line;
  bool is_break = false;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      is_break = true;
      continue;
    }
    if (is_break && c == ' ') continue;
    if (is_break && !line.empty()) line += "; ";
    is_break = false;
    line += c;
  }
  return line;
}

}  // namespace

void print_error(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "thimble: %s\n",
               printable(one_line(with_flags(what))).c_str());  // names may contain control characters
}

int status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const nn::BudgetError&) {
    return memory_status;
  } catch (const OutOfMemory&) {
    return memory_status;
  } catch (const std::bad_alloc&) {
    return memory_status;
  } catch (const std::system_error& e) {  // the system cannot start a thread
    const bool is_for_want =
        e.code() == std::errc::resource_unavailable_try_again || e.code() == std::errc::not_enough_memory;
    return is_for_want ? memory_status : bad_input_status;
  } catch (const std::exception& e) {
    try {
      std::rethrow_if_nested(e);
    } catch (...) {
      return status_of(std::current_exception());
    }
    return bad_input_status;
  } catch (...) {
    return bad_input_status;
  }
}

}  // namespace thimble::bench
