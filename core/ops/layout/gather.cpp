#include <thimble/core/ops/layout/gather.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/copy.h>
#include <thimble/core/kernels/gather.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {

namespace {

void check_index(const char* operation, const char* of, const Tensor& x, const Tensor& index) {
  const auto is = [&] {
    return std::string(operation) + ": " + of + " is " + describe(x) + ", the index is " + describe(index);
  };
  if (!x.defined() || !index.defined()) throw ValueError(is());
  if (index.dtype() != DType::i32 && index.dtype() != DType::i64) throw DTypeError(is() + ": expected i32 or i64");
  check_one_device(operation, x, index);
}

void check_found(const char* operation, const kernels::BadIndex& bad, std::int64_t size) {
  if (bad.position < 0) return;
  throw ValueError(std::string(operation) + ": index " + std::to_string(bad.value) + " at position " +
                   std::to_string(bad.position) + ", expected " +
                   (size > 0 ? "0 to " + std::to_string(size - 1) : "none, because the axis is empty"));
}

// The lines of x and of a dense tensor of shape `out` along `axis`.
kernels::GatherArgs lines_of(const Tensor& x, const Tensor& index, const Shape& out, int axis) {
  kernels::GatherArgs args;
  args.lines = out;
  args.x_strides = x.strides();
  args.index_strides = index.strides();
  args.out_strides = contiguous_strides(out);
  args.x_length = x.shape()[axis];
  args.out_length = out[axis];
  args.x_step = args.x_strides[axis];
  args.index_step = args.index_strides[axis];
  args.out_step = args.out_strides[axis];
  args.lines.erase(axis);
  args.x_strides.erase(axis);
  args.index_strides.erase(axis);
  args.out_strides.erase(axis);
  args.index_dtype = index.dtype();
  return args;
}

Tensor room_of(const kernels::GatherArgs& args, const Tensor& x) {
  return Tensor::empty({x.device().is_cuda() ? 0 : kernels::gather_room_elements(args, size_of(x.dtype()))}, x.dtype(),
                       x.device(), memory::Category::workspace);
}

// Turns an index of rows (L) into one of elements: repeats it along the axes of `shape` other than `axis`.
Tensor spread_index(const char* operation, const Tensor& x, const Tensor& index, int axis) {
  if (index.rank() != 1) {
    throw ShapeError(std::string(operation) + ": the index is " + describe(index) + ", expected one axis");
  }
  Shape unit, shape = x.shape();
  for (int i = 0; i < x.rank(); ++i) unit.push_back(i == axis ? index.size(0) : 1);
  shape[axis] = index.size(0);
  const Tensor dense = contiguous(index);
  return view::expand(view::reshape(dense, unit), shape);
}

void check_axes(const char* operation, const Tensor& x, const Tensor& index, int along) {
  bool fits = x.rank() == index.rank();
  for (int i = 0; i < x.rank() && fits; ++i) fits = i == along || index.shape()[i] <= x.shape()[i];
  if (fits) return;
  throw ShapeError(std::string(operation) + ": x is " + describe(x) + ", the index is " + describe(index) +
                   ": its axes other than " + std::to_string(along) + " must be at most those of x");
}

// For an index of rows, maps `position` to the index.
kernels::BadIndex of_rows(kernels::BadIndex bad, const kernels::GatherArgs& args) {
  if (bad.position >= 0) bad.position = bad.position / args.out_step % args.out_length;
  return bad;
}

// y[line, j] = x[line, index[line, j]].
Tensor gathered(const char* operation, const Tensor& x, const Tensor& index, int along, bool is_of_rows) {
  const Tensor y = Tensor::empty_like(x, index.shape());
  kernels::GatherArgs args = lines_of(x, index, y.shape(), along);
  const Tensor room = room_of(args, x);
  kernels::BadIndex bad;
  launch(x.device(), [&](const Addresses& at) {
    args.dtype = x.dtype();
    args.x = at(x);
    args.index = at(index);
    args.out = at(y);
    args.room = at(room);
    bad = kernels::gather_kernels(x.device()).gather(args);
  });
  check_found(operation, is_of_rows ? of_rows(bad, args) : bad, x.shape()[along]);
  return y;
}

// sums[line, index[line, j]] += from[line, j], `sums` in the compute type of `from`, which is dense.
void add_at(const char* operation, const Tensor& sums, const Tensor& index, const Tensor& from, int along,
            bool is_of_rows) {
  kernels::GatherArgs args = lines_of(sums, index, from.shape(), along);
  const Tensor room = room_of(args, sums);
  kernels::BadIndex bad;
  launch(from.device(), [&](const Addresses& at) {
    args.dtype = from.dtype();
    args.x = at(sums);
    args.index = at(index);
    args.out = at(from);
    args.room = at(room);
    bad = kernels::gather_kernels(from.device()).scatter_add(args);
  });
  check_found(operation, is_of_rows ? of_rows(bad, args) : bad, sums.shape()[along]);
}

DType sum_dtype_of(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : is_floating(dtype) ? DType::f32 : DType::i64;
}

}  // namespace

Tensor Embedding::forward(const Tensor& table, const Tensor& ids, Needs needs, Saved& saved) const {
  check_index(name, "table", table, ids);
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
  check_found(name, bad, classes);
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
                                     dy.device(), memory::Category::workspace);
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

template <bool is_of_rows>
Tensor GatherAlong<is_of_rows>::forward(const Tensor& x, const Tensor& index, Needs needs, Saved& saved) const {
  check_index(name, "x", x, index);
  const int along = view::axis_of(name, axis, x);
  if constexpr (!is_of_rows) check_axes(name, x, index, along);
  const Tensor at = is_of_rows ? spread_index(name, x, index, along) : index;
  const Tensor y = gathered(name, x, at, along, is_of_rows);
  if (needs[0]) {
    saved.index = index;
    saved.shape = x.shape();
  }
  return y;
}

template <bool is_of_rows>
Gradients GatherAlong<is_of_rows>::backward(Saved saved, Tensor dy, Needs) const {
  dy = contiguous(dy);
  const int along = normalize_axis(name, axis, dy.rank());
  const DType sum_dtype = sum_dtype_of(dy.dtype());
  const Tensor sums = zeros(saved.shape, sum_dtype, dy.device(),
                            sum_dtype == dy.dtype() ? memory::Category::temporary : memory::Category::workspace);
  const Tensor at = is_of_rows ? spread_index(name, sums, saved.index, along) : saved.index;
  add_at(name, sums, at, dy, along, is_of_rows);
  return {to_dtype(sums, dy.dtype()), Tensor()};
}

template struct GatherAlong<false>;
template struct GatherAlong<true>;

template <bool is_of_rows>
Tensor ScatterAddAlong<is_of_rows>::forward(const Tensor& x, const Tensor& index, const Tensor& source, Needs needs,
                                            Saved& saved) const {
  check_index(name, "x", x, index);
  const auto is = [&] {
    return std::string(name) + ": x is " + describe(x) + ", the index is " + describe(index) + ", the source is " +
           describe(source);
  };
  if (!source.defined()) throw ValueError(is());
  if (x.dtype() != source.dtype() || x.dtype() == DType::boolean) {
    throw DTypeError(is() + ": expected one dtype of numbers");
  }
  check_one_device(name, x, source);
  const int along = view::axis_of(name, axis, x);
  if constexpr (!is_of_rows) check_axes(name, x, index, along);
  const Tensor at = is_of_rows ? spread_index(name, x, index, along) : index;
  if (source.shape() != at.shape()) throw ShapeError(is() + ": expected a source " + to_string(at.shape()));
  const DType sum_dtype = sum_dtype_of(x.dtype());
  const Tensor sums = Tensor::empty(x.shape(), sum_dtype, x.device(),
                                    sum_dtype == x.dtype() ? memory::Category::temporary : memory::Category::workspace);
  copy_into(sums, x);
  add_at(name, sums, at, contiguous(source), along, is_of_rows);
  saved.shape = at.shape();
  if (needs[2]) saved.index = index;
  return to_dtype(sums, x.dtype());
}

template <bool is_of_rows>
Gradients ScatterAddAlong<is_of_rows>::backward(Saved saved, Tensor dy, Needs needs) const {
  Tensor dsource;
  if (needs[2]) {
    const int along = normalize_axis(name, axis, dy.rank());
    const Tensor at = is_of_rows ? spread_index(name, dy, saved.index, along) : saved.index;
    dsource = gathered(name, dy, at, along, is_of_rows);
  }
  return {needs[0] ? dy : Tensor(), Tensor(), dsource};
}

template struct ScatterAddAlong<false>;
template struct ScatterAddAlong<true>;

namespace {

void check_part(int along, const Tensor& first, const Tensor& part, std::size_t which) {
  const std::string is = "concat along axis " + std::to_string(along) + ": the first is " + describe(first) +
                         ", number " + std::to_string(which) + " is " + describe(part);
  if (!part.defined()) throw ValueError(is);
  bool fits = part.rank() == first.rank();
  for (int i = 0; i < first.rank() && fits; ++i) fits = i == along || part.shape()[i] == first.shape()[i];
  if (!fits) throw ShapeError(is);
  if (part.dtype() != first.dtype()) throw DTypeError(is);
  check_one_device("concat", first, part);
}

}  // namespace

Tensor Concat::forward(std::span<const Tensor> parts, Needs needs, Saved& saved) const {
  if (parts.empty() || !parts[0].defined()) throw ValueError(std::string(name) + ": there is nothing to put together");
  const int along = view::axis_of(name, axis, parts[0]);
  Shape shape = parts[0].shape();
  shape[along] = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_part(along, parts[0], parts[i], i);
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
  check_scalar(name, x, value);
  Shape shape = x.shape();
  for (int i = 0; i < max_rank; ++i) {
    const std::int64_t before = low[static_cast<std::size_t>(i)], after = high[static_cast<std::size_t>(i)];
    const std::int64_t most = i < x.rank() ? std::int64_t{1} << 60 : 0;
    if (before < 0 || after < 0 || before > most || after > most) {
      throw ValueError(std::string(name) + ": " + std::to_string(before) + " before and " + std::to_string(after) +
                       " after axis " + std::to_string(i) + " of " + describe(x) + ", expected 0 to " +
                       std::to_string(most));
    }
    if (i < x.rank()) shape[i] += before + after;
  }
  const Tensor y = Tensor::empty_like(x, shape);
  Tensor inner = y;  // shrinks to x's window; the rest of each axis is padding
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

namespace {

Tensor rolled(const Tensor& x, int axis, std::int64_t shift) {
  const int along = view::axis_of(Roll::name, axis, x);
  const std::int64_t size = x.shape()[along];
  const Tensor y = Tensor::empty_like(x, x.shape());
  if (size == 0) return y;
  const std::int64_t first = (shift % size + size) % size;  // index in y of x's first element
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

}  // namespace

Tensor Roll::forward(const Tensor& x, Needs, Saved&) const { return rolled(x, axis, shift); }

Gradients Roll::backward(Saved, Tensor dy, Needs) const { return {rolled(dy, axis, -shift)}; }

Tensor Flip::forward(const Tensor& x, Needs, Saved&) const { return flipped(x, axes); }

Gradients Flip::backward(Saved, Tensor dy, Needs) const { return {flipped(dy, axes)}; }

}  // namespace thimble::ops
