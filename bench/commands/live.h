#pragma once
// A live picture of memory in a terminal: bytes by category, the arena's committed bytes, the peak and the budget,
// redrawn a few times a second with ANSI codes (ECMA-48).

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <thimble/memory/stack.h>

namespace thimble::bench {

/// The figures of one picture.
struct LiveBytes {
  memory::CategoryBytes now{};      ///< live bytes
  std::size_t committed_bytes = 0;  ///< the arena's, now
  std::size_t peak_bytes = 0;       ///< of committed bytes
  std::size_t budget_bytes = 0;     ///< 0 without a budget
};

/// Lines in a live picture.
inline constexpr int live_lines = 3;

/// A picture of `live_lines` lines, each ended by "\n" and at most `columns` columns wide (at least 40): a bar as long
/// as the budget, or the peak without one, that shades committed free bytes and marks the peak by a stroke; the
/// categories with their bytes; committed, peak and budget. Colours are 24-bit.
std::string live_picture(const LiveBytes& bytes, int columns);

/// Shows the planner's progress in a line on standard error, if that is a terminal, once planning takes longer than a
/// second. The destructor clears the line.
class PlanningLine {
 public:
  PlanningLine();
  ~PlanningLine();
  PlanningLine(const PlanningLine&) = delete;
  PlanningLine& operator=(const PlanningLine&) = delete;

  void show(const std::string& text) const;

 private:
  bool is_shown() const;

  bool is_terminal_;
  std::chrono::steady_clock::time_point begin_;
};

/// Draws pictures on a terminal from a separate thread until destroyed. The program prints to the same terminal through
/// `print`, which puts lines above the picture.
class LiveView {
 public:
  /// `stack` is the run's; `terminal` is a terminal; `budget_bytes` 0 means no budget.
  LiveView(std::FILE* terminal, const memory::Stack& stack, std::size_t budget_bytes);
  /// Erases the picture; the lines above it stay.
  ~LiveView();
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  /// Prints a line above the picture. The next line replaces it unless it `stays`.
  void print(const std::string& line, bool stays);

 private:
  void run();
  void draw();

  std::FILE* terminal_;
  std::shared_ptr<memory::Ledger> ledger_;
  std::shared_ptr<memory::Arena> arena_;
  std::size_t budget_bytes_;
  std::mutex mutex_;  // guards the members below and the terminal
  std::condition_variable wake_;
  std::string line_;
  bool is_drawn_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace thimble::bench
