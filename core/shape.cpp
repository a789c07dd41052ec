#include <thimble/core/shape.h>

#include <algorithm>

#include <thimble/core/error.h>

namespace thimble {

Shape::Shape(std::span<const std::int64_t> sizes) {
  if (sizes.size() > static_cast<std::size_t>(max_rank)) {
    throw ShapeError("shape: rank " + std::to_string(sizes.size()) + " is above the largest, " +
                     std::to_string(max_rank));
  }
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  rank_ = static_cast<int>(sizes.size());
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  bool has_zero = false;
  for (const std::int64_t size : *this) {
    if (size < 0) throw ShapeError("shape: negative size in " + to_string(*this));
    has_zero = has_zero || size == 0;
    if (!has_zero && __builtin_mul_overflow(product, size, &product)) {
      throw ShapeError("shape: element count of " + to_string(*this) + " overflows 64 bits");
    }
  }
  return has_zero ? 0 : product;
}

void Shape::push_back(std::int64_t size) { insert(rank_, size); }

void Shape::insert(int axis, std::int64_t size) {
  if (rank_ == max_rank) throw ShapeError("shape: rank would exceed the largest, " + std::to_string(max_rank));
  std::copy_backward(sizes_.begin() + axis, sizes_.begin() + rank_, sizes_.begin() + rank_ + 1);
  sizes_[static_cast<std::size_t>(axis)] = size;
  ++rank_;
}

void Shape::erase(int axis) {
  std::copy(sizes_.begin() + axis + 1, sizes_.begin() + rank_, sizes_.begin() + axis);
  --rank_;
}

bool operator==(const Shape& a, const Shape& b) noexcept { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

int normalize_axis(const char* operation, int axis, int rank) {
  if (axis < -rank || axis >= rank) {
    throw ShapeError(std::string(operation) + ": axis " + std::to_string(axis) +
                     (rank == 0 ? std::string(" of a scalar, which has none")
                                : " is outside of [" + std::to_string(-rank) + ", " + std::to_string(rank) + ")"));
  }
  return axis < 0 ? axis + rank : axis;
}

Shape broadcast(const char* operation, const Shape& a, const Shape& b) {
  Shape result = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  const int lead = result.rank() - shorter.rank();
  for (int i = 0; i < shorter.rank(); ++i) {
    std::int64_t& size = result[lead + i];
    if (size == 1) {
      size = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != size) {
      throw ShapeError(std::string(operation) + ": shapes do not broadcast, lhs " + to_string(a) + ", rhs " +
                       to_string(b));
    }
  }
  return result;
}

}  // namespace thimble
