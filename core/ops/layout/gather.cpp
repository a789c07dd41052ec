#include <thimble/core/ops/layout/gather.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/gather.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::ops {
namespace gather_detail {

void check_index(const char* operation, const char* of, const Tensor& x, const Tensor& index) {
  const auto is = [&] {
    return std::string(operation) + ": " + of + " is " + describe(x) + ", the index is " + describe(index);
  };
  if (!x.defined() || !index.defined()) throw ValueError(is());
  if (index.dtype() != DType::i32 && index.dtype() != DType::i64) throw DTypeError(is() + ": expected i32 or i64");
  if (x.device() != index.device()) throw DeviceError(is());
}

void check_found(const char* operation, const kernels::BadIndex& bad, std::int64_t size) {
  if (bad.position < 0) return;
  throw ValueError(std::string(operation) + ": index " + std::to_string(bad.value) + " at position " +
                   std::to_string(bad.position) + ", expected 0 to " + std::to_string(size - 1));
}

// The lines of x (of `shape`, with `strides`) and of a dense tensor of shape `out` along `axis`.
kernels::GatherArgs lines_of(const Shape& shape, const Shape& strides, const Shape& out, int axis) {
  kernels::GatherArgs args;
  args.lines = out;
  args.x_strides = strides;
  args.out_strides = contiguous_strides(out);
  args.x_length = shape[axis];
  args.out_length = out[axis];
  args.x_step = strides[axis];
  args.out_step = args.out_strides[axis];
  args.lines.erase(axis);
  args.x_strides.erase(axis);
  args.out_strides.erase(axis);
  return args;
}

}  // namespace gather_detail

Tensor Embedding::forward(const Tensor& table, const Tensor& ids, Needs needs, Saved& saved) const {
  gather_detail::check_index(name, "table", table, ids);
  if (table.rank() != 2 || ids.rank() >= max_rank) {
    throw ShapeError(std::string(name) + ": table is " + describe(table) + ", ids are " + describe(ids) +
                     ": expected (V, C) and at most 7 axes");
  }
  const std::int64_t classes = all > 0 ? all : table.size(0);
  if (first < 0 || first + table.size(0) > classes) {
    throw ValueError(std::string(name) + ": table " + describe(table) + " from row " + std::to_string(first) + " of " +
                     std::to_string(classes) + "; expected rows of all classes");
  }
  const Tensor rows = contiguous(table);  // (V, C)
  const Tensor dense = contiguous(ids);   // (...)
  Shape shape = ids.shape();
  shape.push_back(table.shape()[1]);
  const Tensor y = Tensor::empty_like(table, shape);  // (..., C)
  kernels::BadIndex bad;
  launch(table.device(), [&](const Addresses& at) {
    bad = kernels::gather_kernels(table.device())
              .embedding({rows.shape()[0], rows.shape()[1], dense.elements(), first, classes, rows.dtype(), at(rows),
                          at(dense), dense.dtype(), at(y)});
  });
  gather_detail::check_found(name, bad, classes);
  if (needs[0]) {
    saved.ids = ids;
    saved.rows = table.shape()[0];
  }
  return y;
}

Gradients Embedding::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor ids = contiguous(saved.ids);
  dy = contiguous(dy);                                                            // (..., C)
  const Tensor dtable = Tensor::empty_like(dy, {saved.rows, dy.shape().back()});  // (V, C)
  const Tensor order = Tensor::empty({kernels::embedding_order_elements(saved.rows, ids.elements())}, DType::i64,
                                     dy.device(), Category::workspace);
  launch(dy.device(), [&](const Addresses& at) {
    kernels::EmbeddingGradArgs args;
    args.rows = saved.rows;
    args.columns = dy.shape().back();
    args.positions = ids.elements();
    args.first = first;
    args.dtype = dy.dtype();
    args.dy = at(dy);
    args.ids = at(ids);
    args.ids_dtype = ids.dtype();
    args.dtable = at(dtable);
    args.order = at.as<std::int64_t>(order);
    kernels::gather_kernels(dy.device()).embedding_backward(args);
  });
  return {dtable, Tensor()};
}

Tensor Gather::forward(const Tensor& x, const Tensor& index, Needs needs, Saved& saved) const {
  gather_detail::check_index(name, "x", x, index);
  const int along = normalize_axis(name, axis, x.rank());
  bool fits = x.rank() == index.rank();
  for (int i = 0; i < x.rank() && fits; ++i) fits = i == along || index.shape()[i] <= x.shape()[i];
  if (!fits) {
    throw ShapeError(std::string(name) + ": x is " + describe(x) + ", the index is " + describe(index) +
                     ": its axes other than " + std::to_string(along) + " must be at most those of x");
  }
  const Tensor dense = contiguous(index);
  const Tensor y = Tensor::empty_like(x, index.shape());
  kernels::GatherArgs args = gather_detail::lines_of(x.shape(), x.strides(), y.shape(), along);
  kernels::BadIndex bad;
  launch(x.device(), [&](const Addresses& at) {
    args.dtype = x.dtype();
    args.x = at(x);
    args.index = at(dense);
    args.index_dtype = dense.dtype();
    args.out = at(y);
    bad = kernels::gather_kernels(x.device()).gather(args);
  });
  gather_detail::check_found(name, bad, x.shape()[along]);
  if (needs[0]) {
    saved.index = index;
    saved.shape = x.shape();
  }
  return y;
}

Gradients Gather::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor index = contiguous(saved.index);
  dy = contiguous(dy);
  const DType sum_dtype = dy.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const bool is_sum_result = sum_dtype == dy.dtype();
  const Tensor sums =
      zeros(saved.shape, sum_dtype, dy.device(), is_sum_result ? Category::temporary : Category::workspace);
  kernels::GatherArgs args =
      gather_detail::lines_of(sums.shape(), sums.strides(), dy.shape(), normalize_axis(name, axis, dy.rank()));
  launch(dy.device(), [&](const Addresses& at) {
    args.dtype = dy.dtype();
    args.x = at(sums);
    args.index = at(index);
    args.index_dtype = index.dtype();
    args.out = at(dy);
    kernels::gather_kernels(dy.device()).scatter_add(args);
  });
  return {to_dtype(sums, dy.dtype()), Tensor()};
}

}  // namespace thimble::ops
