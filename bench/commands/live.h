#pragma once
// A picture of memory in a terminal while a program runs: bytes by category now, what the arena has committed, the peak
// and the budget, drawn again a few times a second with ANSI codes (ECMA-48).

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

/// What one picture shows.
struct LiveBytes {
  CategoryBytes now{};              ///< live
  std::size_t committed_bytes = 0;  ///< by the arena now
  std::size_t peak_bytes = 0;       ///< committed at most
  std::size_t budget_bytes = 0;     ///< 0: none
};

/// Lines in a live picture.
inline constexpr int live_lines = 3;

/// A picture of `live_lines` lines, each ended by "\n" and of at most `columns` columns (at least 40): a bar in which a
/// column stands for an equal part of the budget (without one, of the peak), what is committed and free in it dotted,
/// the peak a stroke; the categories with their bytes; committed, peak and budget. Colours are 24-bit.
std::string live_picture(const LiveBytes& bytes, int columns);

/// A line on standard error, where that is a terminal: what planning is doing, once it takes longer than a second. Gone
/// at the end of its scope.
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

/// Draws pictures on a terminal from a thread of its own until it is destroyed. What the program prints on the same
/// terminal goes through `print`, so that it stands above the picture.
class LiveView {
 public:
  /// The ledger and the arena are those of the run; `terminal` is a terminal, `budget_bytes` 0 for none.
  LiveView(std::FILE* terminal, const memory::Stack& stack, std::size_t budget_bytes);
  /// Takes the picture away; the lines above it stay.
  ~LiveView();
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  /// The line above the picture; it takes the place of the one before unless that `stays`.
  void print(const std::string& line, bool stays);

 private:
  void run();
  void draw();

  std::FILE* terminal_;
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Arena> arena_;
  std::size_t budget_bytes_;
  std::mutex mutex_;  // of all below, and of the terminal
  std::condition_variable wake_;
  std::string line_;
  bool is_drawn_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace thimble::bench
