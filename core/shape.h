#pragma once
// Sizes of a tensor, outermost first, or its strides (in elements).

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace thimble {

inline constexpr int max_rank = 8;

/// Up to eight 64-bit sizes; by default none, a scalar.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  /// Throws ShapeError when there are more than max_rank sizes.
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const noexcept { return rank_; }
  std::int64_t operator[](int axis) const noexcept { return sizes_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) noexcept { return sizes_[static_cast<std::size_t>(axis)]; }
  const std::int64_t* begin() const noexcept { return sizes_.data(); }
  const std::int64_t* end() const noexcept { return sizes_.data() + rank_; }
  std::int64_t back() const noexcept { return sizes_[static_cast<std::size_t>(rank_ - 1)]; }

  /// Product of the sizes; 1 for a scalar. Throws ShapeError when a size is negative or the product overflows.
  std::int64_t elements() const;

  void push_back(std::int64_t size);
  void insert(int axis, std::int64_t size);
  void erase(int axis);

  friend bool operator==(const Shape& a, const Shape& b) noexcept;

 private:
  std::array<std::int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

/// "(2, 3)"; a scalar is "()", one size is "(3)".
std::string to_string(const Shape& shape);

/// Strides of a dense row-major tensor.
Shape contiguous_strides(const Shape& shape);

/// Maps an axis in [-rank, rank) to [0, rank). Throws ShapeError naming `operation`.
int normalize_axis(const char* operation, int axis, int rank);

/// The shape to which two operands broadcast (NumPy's rules). Throws ShapeError naming `operation` and both shapes.
Shape broadcast(const char* operation, const Shape& a, const Shape& b);

}  // namespace thimble
