#include <thimble/autograd/functions/view.h>

#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/layout/view.h>
#include <thimble/core/tensor/view.h>

namespace thimble {

Tensor reshape(const Tensor& x, const Shape& shape) { return apply(ops::Reshape{shape}, view::defined("reshape", x)); }

Tensor permute(const Tensor& x, std::initializer_list<int> order) {
  if (static_cast<int>(order.size()) != x.rank()) {
    throw ShapeError("permute: " + std::to_string(order.size()) + " axes for " + describe(x));
  }
  ops::Permute op;
  std::size_t i = 0;
  for (const int axis : order) op.order[i++] = axis;
  return apply(op, x);
}

Tensor transpose(const Tensor& x, int axis0, int axis1) {
  const int a = view::axis_of("transpose", axis0, x), b = view::axis_of("transpose", axis1, x);
  ops::Permute op;
  for (int i = 0; i < x.rank(); ++i) op.order[static_cast<std::size_t>(i)] = i == a ? b : i == b ? a : i;
  return apply(op, x);
}

Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const int a = view::axis_of("slice", axis, x);
  const std::int64_t size = x.shape()[a];
  return apply(ops::Slice{a, begin < 0 ? begin + size : begin, end < 0 ? end + size : end, step}, x);
}

Tensor select(const Tensor& x, int axis, std::int64_t index) {
  const int a = view::axis_of("select", axis, x);
  const std::int64_t size = x.shape()[a], at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) {
    throw ShapeError("select: element " + std::to_string(index) + " of axis " + std::to_string(a) + " of " +
                     describe(x) + " is outside of [" + std::to_string(-size) + ", " + std::to_string(size) + ")");
  }
  return squeeze(slice(x, a, at, at + 1), a);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int axis) {
  const int a = view::axis_of("chunk", axis, x);
  if (count < 1 || x.shape()[a] % count != 0) {
    throw ShapeError("chunk: " + std::to_string(count) + " equal parts of axis " + std::to_string(a) + " of " +
                     describe(x) + ", expected a divisor of " + std::to_string(x.shape()[a]));
  }
  return split(x, a, std::vector<std::int64_t>(static_cast<std::size_t>(count), x.shape()[a] / count));
}

std::vector<Tensor> split(const Tensor& x, int axis, std::span<const std::int64_t> sizes) {
  const int a = view::axis_of("split", axis, x);
  std::int64_t total = 0;
  bool fits = true;
  for (const std::int64_t size : sizes) {
    fits = fits && size >= 0 && size <= x.shape()[a] - total;
    total += fits ? size : 0;
  }
  if (!fits || total != x.shape()[a]) {
    throw ShapeError("split: the sizes do not sum to axis " + std::to_string(a) + " of " + describe(x));
  }
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(slice(x, a, begin, begin + size));
    begin += size;
  }
  return parts;
}

std::vector<Tensor> split(const Tensor& x, int axis, std::initializer_list<std::int64_t> sizes) {
  return split(x, axis, std::span<const std::int64_t>(sizes.begin(), sizes.size()));
}

Tensor squeeze(const Tensor& x, int axis) {
  const int a = view::axis_of("squeeze", axis, x);
  if (x.shape()[a] != 1) {
    throw ShapeError("squeeze: axis " + std::to_string(a) + " of " + describe(x) + " is not of size 1");
  }
  Shape shape = x.shape();
  shape.erase(a);
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int axis) {
  Shape shape = view::defined("unsqueeze", x).shape();
  shape.insert(normalize_axis("unsqueeze", axis, x.rank() + 1), 1);
  return reshape(x, shape);
}

Tensor expand(const Tensor& x, const Shape& shape) { return apply(ops::Expand{shape}, view::defined("expand", x)); }

Tensor flatten(const Tensor& x, int first_axis) {
  const int a = view::axis_of("flatten", first_axis, x);
  Shape shape;
  std::int64_t rest = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < a) {
      shape.push_back(x.shape()[i]);
    } else {
      rest *= x.shape()[i];
    }
  }
  shape.push_back(rest);
  return reshape(x, shape);
}

Tensor dense(const Tensor& x) { return apply<ops::Contiguous>(view::defined("dense", x)); }

Tensor cast(const Tensor& x, DType dtype) {
  return view::defined("cast", x).dtype() == dtype ? x : apply(ops::Cast{dtype}, x);
}

}  // namespace thimble
