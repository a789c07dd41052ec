#pragma once
// The ledger: the holders of bytes, now and at the moment of the peak.
//
// Policy
// - Books requested bytes by category and by (path, category), under the lock of its stack, so that the books and the
//   arena below agree at every instant.
// - The picture at the peak is exact and costs nothing to keep: a cell remembers its value at the last peak only when
//   it is about to change after it (copy on write, by the peak's serial number). Sums over cells are computed on
//   request.
// - The peak is the first moment that reaches the largest live sum. A relabel moves bytes between rows, never the peak.
// - In a steady state it allocates nothing: a row is made when a path is first seen.
// - An OutOfMemory from below passes with the table of categories added; its facts are the ledger's.
//
// Terms
//   live          bytes requested and not yet given back
//   peak          largest live sum since construction or reset_peak()
//   path prefix   "gpt.h.3" takes gpt.h.3 and all below it (gpt.h.3.mlp), not gpt.h.30; "" takes everything

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

/// Bytes per category, indexed by the category's number.
using CategoryBytes = std::array<std::size_t, category_count>;

/// Throws as upstream does; an OutOfMemory gains the bytes in use by category.
class Ledger final : public Decorator {
 public:
  explicit Ledger(std::shared_ptr<memory::Resource> upstream);

  memory::Block* allocate(const Request& request) override;
  void deallocate(memory::Block* block, Stream stream) noexcept override;

  /// Live bytes: all, of a category, at and below a path, and both.
  std::size_t bytes() const;
  std::size_t bytes(Category category) const;
  std::size_t bytes_by_path(std::string_view prefix) const;
  std::size_t bytes(Category category, std::string_view prefix) const;
  CategoryBytes bytes_by_category() const;

  /// Largest live sum, and its composition at that moment.
  std::size_t max_allocated() const;
  CategoryBytes peak_by_category() const;
  std::size_t peak_bytes_by_path(std::string_view prefix) const;
  std::size_t peak_bytes(Category category, std::string_view prefix) const;

  /// Largest live bytes of one category, at its own moment.
  std::size_t max_allocated(Category category) const;

  /// The present becomes the peak.
  void reset_peak();

  /// One row per path that holds bytes now or held some at the peak, in order of path ids.
  struct PathRow {
    PathId path;
    CategoryBytes now;
    CategoryBytes at_peak;
  };
  std::vector<PathRow> paths() const;

  /// A table: every category now and at the peak, then the `path_count` paths with most bytes at the peak.
  std::string summary(std::size_t path_count = 10) const;

 private:
  memory::Block* do_allocate(const Request& request) override;
  void do_deallocate(memory::Block* block, Stream stream) noexcept override;
  void do_relabel(memory::Block* block, Category category) noexcept override;

  struct Cell {
    std::size_t live = 0;
    std::size_t at_peak = 0;        // valid when the cell has changed since the peak; else live is
    std::uint64_t peak_serial = 0;  // of the last peak before the last change
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

}  // namespace thimble
