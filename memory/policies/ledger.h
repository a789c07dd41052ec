#pragma once
// The ledger: bytes by category and path, now and at the moment of the peak.
//
// Policy
// - Counts requested bytes by category and by (path, category), under the lock of its stack, so that it agrees with the
//   arena below at every instant.
// - The picture at the peak is exact and costs nothing to keep: a cell remembers its value at the last peak only when
//   it is about to change after it (copy on write, by the peak's serial number). Sums over cells are computed on
//   request.
// - The peak is the first moment that reaches the largest live sum. A relabel never moves the peak.
// - In a steady state it allocates nothing: a path gets its row on first use.
// - An OutOfMemory from below gains the bytes in use by category; its in-use and peak bytes become the ledger's.
//
// Terms
//   live          requested and not yet given back
//   peak          largest live sum since construction or reset_peak()
//   path prefix   "gpt.h.3" matches gpt.h.3 and all below it (gpt.h.3.mlp), not gpt.h.30; "" matches everything

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/memory/arena/lock.h>

namespace thimble {
class OutOfMemory;
}

namespace thimble::memory {

/// Bytes per category, indexed by the category's number.
using CategoryBytes = std::array<std::size_t, category_count>;

/// allocate throws as upstream does, and OutOfMemory when the host has no memory for a new path's row.
class Ledger final : public Decorator {
 public:
  explicit Ledger(std::shared_ptr<Resource> upstream);

  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;

  /// Live bytes: in all, of a category, at and below a path, and both.
  std::size_t bytes() const;
  std::size_t bytes(Category category) const;
  std::size_t bytes_by_path(std::string_view prefix) const;
  std::size_t bytes(Category category, std::string_view prefix) const;
  CategoryBytes bytes_by_category() const;

  /// Largest live sum, and its composition.
  std::size_t max_allocated() const;
  CategoryBytes peak_by_category() const;
  std::size_t peak_bytes_by_path(std::string_view prefix) const;
  std::size_t peak_bytes(Category category, std::string_view prefix) const;

  /// Largest live bytes of one category, not necessarily at the peak.
  std::size_t max_allocated(Category category) const;

  /// Makes the current bytes the peak.
  void reset_peak();

  /// One row per path with bytes now or at the peak, in order of path ids.
  struct PathRow {
    PathId path;
    CategoryBytes now;
    CategoryBytes at_peak;
  };
  std::vector<PathRow> paths() const;

  /// A table: every category now and at the peak, then the `path_count` paths with the most bytes at the peak.
  std::string summary(std::size_t path_count = 10) const;

 private:
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override;

  struct Cell {
    std::size_t live = 0;
    std::size_t at_peak = 0;        // if the cell has changed since the peak, else live
    std::uint64_t peak_serial = 0;  // serial number of the peak before the last change
  };
  using Row = std::array<Cell, category_count>;

  void add(Cell& cell, std::size_t bytes) noexcept;
  void subtract(Cell& cell, std::size_t bytes) noexcept;
  std::size_t at_peak(const Cell& cell) const noexcept;
  CategoryBytes at_peak(const Row& row) const noexcept;
  CategoryBytes total_at_peak() const noexcept;
  static CategoryBytes now(const Row& row) noexcept;
  std::vector<PathRow> path_rows() const;
  void make_row(PathId path);
  [[noreturn]] void refuse(const OutOfMemory& error) const;
  template <class Value>
  std::size_t sum(std::string_view prefix, Value&& value) const;
  std::string category_list() const;

  CategoryBytes totals_{};
  CategoryBytes category_peaks_{};
  std::vector<Row> rows_;  // by PathId
  std::size_t row_count_ = 0;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t peak_serial_ = 0;
};

}  // namespace thimble::memory
