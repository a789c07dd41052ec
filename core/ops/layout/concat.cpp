#include <thimble/core/ops/layout/concat.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/copy.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace concat_detail {

void check_part(int along, const Tensor& first, const Tensor& part, std::size_t which) {
  const std::string is = "concat along axis " + std::to_string(along) + ": the first is " + describe(first) +
                         ", number " + std::to_string(which) + " is " + describe(part);
  if (!part.defined()) throw ValueError(is);
  bool fits = part.rank() == first.rank();
  for (int i = 0; i < first.rank() && fits; ++i) fits = i == along || part.shape()[i] == first.shape()[i];
  if (!fits) throw ShapeError(is);
  if (part.dtype() != first.dtype()) throw DTypeError(is);
  if (part.device() != first.device()) throw DeviceError(is);
}

}  // namespace concat_detail

Tensor Concat::forward(std::span<const Tensor> parts, Needs needs, Saved& saved) const {
  if (parts.empty() || !parts[0].defined()) throw ValueError(std::string(name) + ": there is nothing to put together");
  const int along = normalize_axis(name, axis, parts[0].rank());
  Shape shape = parts[0].shape();
  shape[along] = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    concat_detail::check_part(along, parts[0], parts[i], i);
    shape[along] += parts[i].shape()[along];
    if (needs.any()) saved.sizes.at(i) = parts[i].shape()[along];
  }
  saved.count = static_cast<int>(parts.size());
  const Tensor y = Tensor::empty_like(parts[0], shape);
  std::int64_t begin = 0;
  for (const Tensor& part : parts) {
    const std::int64_t end = begin + part.shape()[along];
    copy_into(view::slice(y, along, begin, end), part);
    begin = end;
  }
  return y;
}

Gradients Concat::backward(Saved saved, Tensor dy, Needs needs) const {
  Gradients gradients;
  std::int64_t begin = 0;
  for (int i = 0; i < saved.count; ++i) {
    const std::int64_t end = begin + saved.sizes[static_cast<std::size_t>(i)];
    gradients.push_back(needs[i] ? view::slice(dy, axis, begin, end) : Tensor());
    begin = end;
  }
  return gradients;
}

Tensor Pad::forward(const Tensor& x, Needs, Saved&) const {
  if (!x.defined()) throw ValueError(std::string(name) + ": x is undefined");
  Shape shape = x.shape();
  for (int i = 0; i < max_rank; ++i) {
    const std::int64_t before = low[static_cast<std::size_t>(i)], after = high[static_cast<std::size_t>(i)];
    if (before < 0 || after < 0 || (i >= x.rank() && (before > 0 || after > 0))) {
      throw ValueError(std::string(name) + ": " + std::to_string(before) + " before and " + std::to_string(after) +
                       " after axis " + std::to_string(i) + " of " + describe(x) + ", expected at least 0");
    }
    if (i < x.rank()) shape[i] += before + after;
  }
  const Tensor y = Tensor::empty_like(x, shape);
  Tensor inner = y;  // shrinks to x's region; the rest of each axis is padding
  for (int i = 0; i < x.rank(); ++i) {
    const std::int64_t begin = low[static_cast<std::size_t>(i)], end = begin + x.shape()[i];
    fill(view::slice(inner, i, 0, begin), value);
    fill(view::slice(inner, i, end, inner.shape()[i]), value);
    inner = view::slice(inner, i, begin, end);
  }
  copy_into(inner, x);
  return y;
}

Gradients Pad::backward(Saved, Tensor dy, Needs) const {
  Tensor dx = dy;
  for (int i = 0; i < dy.rank(); ++i) {
    dx = view::slice(dx, i, low[static_cast<std::size_t>(i)], dx.shape()[i] - high[static_cast<std::size_t>(i)]);
  }
  return {dx};
}

namespace concat_detail {

Tensor rolled(const Tensor& x, int axis, std::int64_t shift) {
  const int along = normalize_axis(Roll::name, axis, x.rank());
  const std::int64_t size = x.shape()[along];
  const Tensor y = Tensor::empty_like(x, x.shape());
  if (size == 0) return y;
  const std::int64_t first = (shift % size + size) % size;  // of y, where x's first element goes
  copy_into(view::slice(y, along, first, size), view::slice(x, along, 0, size - first));
  copy_into(view::slice(y, along, 0, first), view::slice(x, along, size - first, size));
  return y;
}

Tensor flipped(const Tensor& x, std::uint32_t axes) {
  const Tensor y = Tensor::empty_like(x, x.shape());
  if (x.elements() == 0) return y;
  launch(x.device(), [&](const Addresses& at) {
    kernels::CopyArgs args;
    args.shape = x.shape();
    args.from_strides = x.strides();
    std::int64_t last = 0;
    for (int i = 0; i < x.rank(); ++i) {
      if (((axes >> i) & 1u) == 0) continue;
      last += (x.shape()[i] - 1) * x.strides()[i];
      args.from_strides[i] = -x.strides()[i];
    }
    args.from = static_cast<const std::byte*>(at(x)) + last * static_cast<std::int64_t>(size_of(x.dtype()));
    args.from_dtype = args.to_dtype = x.dtype();
    args.to = at(y);
    args.to_strides = y.strides();
    kernels::copy_kernels(x.device()).copy(args);
  });
  return y;
}

}  // namespace concat_detail

Tensor Roll::forward(const Tensor& x, Needs, Saved&) const { return concat_detail::rolled(x, axis, shift); }

Gradients Roll::backward(Saved, Tensor dy, Needs) const { return {concat_detail::rolled(dy, axis, -shift)}; }

Tensor Flip::forward(const Tensor& x, Needs, Saved&) const { return concat_detail::flipped(x, axes); }

Gradients Flip::backward(Saved, Tensor dy, Needs) const { return {concat_detail::flipped(dy, axes)}; }

}  // namespace thimble::ops
