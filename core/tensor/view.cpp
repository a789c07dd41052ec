#include <thimble/core/tensor/view.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include <thimble/core/error.h>

namespace thimble::view {
namespace {

// Strides of t's elements under `shape`, if they exist. Splits both shapes into the smallest groups of neighbouring
// axes with equal products; a group of old axes must have no gaps, and the new axes divide it.
std::optional<Shape> reshaped_strides(const Tensor& t, const Shape& shape) {
  Shape strides = contiguous_strides(shape);
  if (t.elements() == 0 || t.is_contiguous()) return strides;
  Shape sizes, steps;  // t's axes of other sizes than 1
  for (int axis = 0; axis < t.rank(); ++axis) {
    if (t.shape()[axis] == 1) continue;
    sizes.push_back(t.shape()[axis]);
    steps.push_back(t.strides()[axis]);
  }
  int old_end = 0, new_end = 0;
  while (old_end < sizes.rank()) {
    const int old_begin = old_end, new_begin = new_end;
    std::int64_t old_count = sizes[old_end++], new_count = shape[new_end++];
    while (old_count != new_count) {
      if (new_count < old_count) {
        new_count *= shape[new_end++];
      } else {
        old_count *= sizes[old_end++];
      }
    }
    for (int axis = old_begin; axis + 1 < old_end; ++axis) {
      if (steps[axis] != sizes[axis + 1] * steps[axis + 1]) return std::nullopt;
    }
    std::int64_t stride = steps[old_end - 1];
    for (int axis = new_end - 1; axis >= new_begin; --axis) {
      strides[axis] = stride;
      stride *= shape[axis];
    }
  }
  return strides;
}

}  // namespace

const Tensor& defined(const char* operation, const Tensor& t) {
  if (!t.defined()) throw ShapeError(std::string(operation) + ": the tensor is undefined");
  return t;
}

int axis_of(const char* operation, int axis, const Tensor& t) {
  return normalize_axis(operation, axis, defined(operation, t).rank());
}

Shape resolve_shape(const char* operation, const Shape& shape, std::int64_t elements) {
  Shape resolved = shape;
  int open = -1;
  std::int64_t product = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == -1 && open < 0) {
      open = axis;
    } else if (shape[axis] < 0) {
      throw ShapeError(std::string(operation) + ": " + to_string(shape) + " is not a shape; one size may be -1");
    } else {
      product *= shape[axis];
    }
  }
  if (open >= 0 && product > 0) resolved[open] = elements / product;
  if ((open >= 0 && product == 0) || resolved.elements() != elements) {
    throw ShapeError(std::string(operation) + ": " + std::to_string(elements) + " elements do not fit " +
                     to_string(shape));
  }
  return resolved;
}

bool can_reshape(const Tensor& t, const Shape& shape) {
  return reshaped_strides(t, resolve_shape("reshape", shape, t.elements())).has_value();
}

Tensor reshape(const Tensor& t, const Shape& shape) {
  const Shape resolved = resolve_shape("reshape", shape, t.elements());
  const auto strides = reshaped_strides(t, resolved);
  if (!strides) {
    throw ShapeError("reshape: " + describe(t) + " with strides " + to_string(t.strides()) + " cannot be seen as " +
                     to_string(resolved) + " without a copy");
  }
  return t.window(resolved, *strides, t.offset());
}

Tensor permute(const Tensor& t, std::span<const int> order) {
  if (static_cast<int>(order.size()) != t.rank()) {
    throw ShapeError("permute: " + std::to_string(order.size()) + " axes for " + describe(t));
  }
  Shape shape = t.shape(), strides = t.strides();
  std::array<bool, max_rank> seen{};
  for (int i = 0; i < t.rank(); ++i) {
    const int from = axis_of("permute", order[static_cast<std::size_t>(i)], t);
    if (seen[static_cast<std::size_t>(from)]) {
      throw ShapeError("permute: axis " + std::to_string(from) + " is named twice");
    }
    seen[static_cast<std::size_t>(from)] = true;
    shape[i] = t.shape()[from];
    strides[i] = t.strides()[from];
  }
  return t.window(shape, strides, t.offset());
}

Tensor permute(const Tensor& t, std::initializer_list<int> order) {
  return permute(t, std::span<const int>(order.begin(), order.size()));
}

Tensor transpose(const Tensor& t, int axis0, int axis1) {
  const int a = axis_of("transpose", axis0, t), b = axis_of("transpose", axis1, t);
  Shape shape = t.shape(), strides = t.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return t.window(shape, strides, t.offset());
}

Tensor slice(const Tensor& t, int axis, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const int a = axis_of("slice", axis, t);
  if (begin < 0 || end < begin || end > t.shape()[a] || step < 1) {
    throw ShapeError("slice: [" + std::to_string(begin) + ", " + std::to_string(end) + ") step " +
                     std::to_string(step) + " does not fit axis " + std::to_string(a) + " of " + describe(t));
  }
  Shape shape = t.shape(), strides = t.strides();
  step = std::min(step, std::max<std::int64_t>(1, shape[a]));  // a longer step also leaves one element
  shape[a] = (end - begin + step - 1) / step;
  strides[a] *= step;
  return t.window(shape, strides, t.offset() + begin * t.strides()[a]);
}

std::vector<Tensor> split(const Tensor& t, int axis, std::span<const std::int64_t> sizes) {
  const int a = axis_of("split", axis, t);
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > t.shape()[a] - begin) break;
    parts.push_back(view::slice(t, a, begin, begin + size));
    begin += size;
  }
  if (parts.size() != sizes.size() || begin != t.shape()[a]) {
    throw ShapeError("split: sizes " + to_string(Shape(sizes)) + " do not sum to axis " + std::to_string(a) + " of " +
                     describe(t));
  }
  return parts;
}

Tensor squeeze(const Tensor& t, int axis) {
  const int a = axis_of("squeeze", axis, t);
  if (t.shape()[a] != 1) {
    throw ShapeError("squeeze: axis " + std::to_string(a) + " of " + describe(t) + " is not of size 1");
  }
  Shape shape = t.shape(), strides = t.strides();
  shape.erase(a);
  strides.erase(a);
  return t.window(shape, strides, t.offset());
}

Tensor unsqueeze(const Tensor& t, int axis) {
  const int a = normalize_axis("unsqueeze", axis, t.rank() + 1);
  Shape shape = t.shape(), strides = t.strides();
  shape.insert(a, 1);
  strides.insert(a, a < t.rank() ? t.strides()[a] * t.shape()[a] : 1);
  return t.window(shape, strides, t.offset());
}

Tensor expand(const Tensor& t, const Shape& shape) {
  const int lead = shape.rank() - t.rank();
  Shape strides = shape;
  bool fits = lead >= 0;
  for (int axis = 0; axis < shape.rank() && fits; ++axis) {
    const bool is_new = axis < lead;
    const bool is_repeated = is_new || (t.shape()[axis - lead] == 1 && shape[axis] != 1);
    fits = is_repeated || t.shape()[axis - lead] == shape[axis];
    strides[axis] = is_repeated ? 0 : is_new ? 0 : t.strides()[axis - lead];
  }
  if (!fits) throw ShapeError("expand: " + describe(t) + " does not broadcast to " + to_string(shape));
  return t.window(shape, strides, t.offset());
}

}  // namespace thimble::view
