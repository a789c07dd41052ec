#include <thimble/core/ops/matmul/matmul.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/tensor/view.h>

namespace thimble {

namespace {

// Stride of `t` along c's leading axis `axis`; 0 if t is repeated.
std::int64_t batch_stride(const Tensor& t, const Shape& c, int axis) {
  const int own = axis - (c.rank() - t.rank());
  return own < 0 || t.shape()[own] == 1 ? 0 : t.strides()[own];
}

kernels::GemmArgs arguments(const MatmulCall& call) {
  const Tensor &a = call.a, &b = call.b, &c = call.c;
  const int ra = a.rank(), rb = b.rank(), rc = c.rank();
  kernels::GemmArgs args;
  args.m = c.shape()[rc - 2];
  args.n = c.shape()[rc - 1];
  args.k = a.shape()[ra - 1];
  args.a_row_stride = a.strides()[ra - 2];
  args.a_column_stride = a.strides()[ra - 1];
  args.b_row_stride = b.strides()[rb - 2];
  args.b_column_stride = b.strides()[rb - 1];
  args.c_row_stride = c.strides()[rc - 2];
  args.c_column_stride = c.strides()[rc - 1];
  args.dtype = a.dtype();
  args.c_dtype = c.dtype();
  args.alpha = call.alpha;
  args.accumulate = call.accumulate;
  args.activation = call.activation;
  for (int axis = 0; axis < rc - 2; ++axis) {
    if (c.shape()[axis] == 1) continue;
    const kernels::GemmBatchDim dim{c.shape()[axis], batch_stride(a, c.shape(), axis), batch_stride(b, c.shape(), axis),
                                    c.strides()[axis], 0};
    // Merge neighbouring axes that are one axis in all operands.
    if (args.batch_rank > 0) {
      auto& last = args.batch[static_cast<std::size_t>(args.batch_rank - 1)];
      if (last.a == dim.a * dim.size && last.b == dim.b * dim.size && last.c == dim.c * dim.size) {
        last = {last.size * dim.size, dim.a, dim.b, dim.c, 0};
        continue;
      }
    }
    args.batch[static_cast<std::size_t>(args.batch_rank++)] = dim;
  }
  return args;
}

void check(const MatmulCall& call) {
  const Tensor &a = call.a, &b = call.b, &c = call.c;
  const auto operation = [&] { return std::string(call.operation); };  // built only for errors
  if (a.dtype() != b.dtype()) {
    throw DTypeError(operation() + ": dtypes differ, lhs " + describe(a) + ", rhs " + describe(b));
  }
  if (is_floating(a.dtype()) != is_floating(c.dtype())) {
    throw DTypeError(operation() + ": operands " + describe(a) + ", result " + describe(c));
  }
  check_one_device(call.operation, a, b);
  check_one_device(call.operation, a, c);
  check_one_device(call.operation, a, call.bias);
  if (a.device().is_cuda() && (call.a_scale.defined() || call.b_scale.defined())) {
    throw DeviceError(operation() + ": scaled operands on " + to_string(a.device()) + "; expected the CPU");
  }
}

}  // namespace

std::int64_t matmul_workspace_bytes(const MatmulCall& call) {
  if (call.c.elements() == 0) return 0;
  kernels::GemmArgs args = arguments(call);
  args.bias = call.bias.defined() ? &args : nullptr;  // any address: only null or not matters
  args.pre_activation = call.pre_activation.defined() ? &args : nullptr;
  return static_cast<std::int64_t>(kernels::matmul_kernels(call.c.device()).gemm_workspace_bytes(args, thread_count()));
}

void matmul_into(const MatmulCall& call) {
  check(call);
  if (call.c.elements() == 0) return;
  const memory::Device device = call.c.device();
  kernels::GemmArgs args = arguments(call);
  const int threads = thread_count();
  const auto& kernels = kernels::matmul_kernels(device);
  const std::int64_t bytes = matmul_workspace_bytes(call);
  const auto run = [&](const Tensor* workspace) {
    launch(device, [&](const Addresses& at) {
      args.a = at(call.a);
      args.b = at(call.b);
      args.c = at(call.c);
      args.bias = at(call.bias);
      args.pre_activation = at(call.pre_activation);
      if (call.a_scale.defined()) args.alpha *= static_cast<double>(*at.as<float>(call.a_scale));
      if (call.b_scale.defined()) args.alpha *= static_cast<double>(*at.as<float>(call.b_scale));
      kernels.gemm(args, workspace != nullptr ? at(*workspace) : nullptr, threads);
    });
  };
  if (bytes > 0 && call.workspace.defined()) {
    run(&call.workspace);
  } else if (bytes > 0) {
    const Tensor workspace = Tensor::empty({bytes}, DType::u8, device, memory::Category::workspace);
    run(&workspace);
  } else {
    run(nullptr);  // small products need no workspace, and a tensor would slow them
  }
  call.c.storage()->bump_version();
}

Tensor as_rows(const Tensor& x) {
  std::int64_t rows = 1;  // by leading axes, for rows without elements
  for (int axis = 0; axis < x.rank() - 1; ++axis) rows *= x.size(axis);
  const Shape shape{rows, x.size(-1)};
  return view::reshape(view::can_reshape(x, shape) ? x : contiguous(x), shape);
}

Tensor column_sum(const Tensor& x) {
  const Tensor dense = contiguous(x);
  const Tensor out = Tensor::empty({x.shape()[1]}, x.dtype(), x.device());
  if (out.elements() == 0) return out;
  Tensor partial;
  if (x.device().is_cuda()) {
    partial = Tensor::empty({kernels::column_sum_partial_elements(x.shape()[0], x.shape()[1])},
                            x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.device(), memory::Category::workspace);
  }
  launch(x.device(), [&](const Addresses& at) {
    kernels::ColumnSumArgs args;
    args.rows = x.shape()[0];
    args.columns = x.shape()[1];
    args.in = at(dense);
    args.out = at(out);
    args.dtype = args.out_dtype = x.dtype();
    args.partial = at(partial);
    kernels::matmul_kernels(x.device()).column_sum(args);
  });
  return out;
}

}  // namespace thimble

namespace thimble::ops {

namespace {

Shape leading(const Shape& shape) {
  Shape result;
  for (int axis = 0; axis < shape.rank() - 2; ++axis) result.push_back(shape[axis]);
  return result;
}

Shape with_matrix(Shape shape, std::int64_t rows, std::int64_t columns) {
  shape.push_back(rows);
  shape.push_back(columns);
  return shape;
}

Tensor product(const char* name, const Tensor& a, const Tensor& b, double alpha) {
  const Shape batch = broadcast(name, leading(a.shape()), leading(b.shape()));
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : DType::i64;
  const Tensor c = Tensor::empty(with_matrix(batch, a.size(-2), b.size(-1)), dtype, a.device());
  MatmulCall call{name, a, b, c, {}, {}};
  call.alpha = alpha;
  matmul_into(call);
  return c;
}

}  // namespace

Tensor Matmul::forward(const Tensor& a, const Tensor& b, Needs needs, Saved& saved) const {
  if (a.rank() < 2 || b.rank() < 2) {
    throw ShapeError("matmul: operands need at least two axes, lhs " + to_string(a.shape()) + ", rhs " +
                     to_string(b.shape()));
  }
  const Tensor left = transpose_a ? view::transpose(a) : a, right = transpose_b ? view::transpose(b) : b;
  if (left.size(-1) != right.size(-2)) {
    throw ShapeError("matmul: inner sizes differ, lhs " + to_string(left.shape()) + ", rhs " +
                     to_string(right.shape()));
  }
  const Tensor y = product(name, left, right, alpha);
  check_scalar(name, y, alpha);
  if (needs[0]) saved.b = b;
  if (needs[1]) saved.a = a;
  saved.a_shape = a.shape();
  saved.b_shape = b.shape();
  return y;
}

Gradients Matmul::backward(Saved saved, Tensor dy, Needs needs) const {
  Tensor da, db;
  if (needs[0]) {
    const Tensor right = transpose_b ? view::transpose(saved.b) : saved.b;  // (..., K, N)
    // d(left) = dy right^T. If a is stored transposed, computes the transpose, right dy^T, directly.
    da = transpose_a ? product(name, right, view::transpose(dy), alpha)
                     : product(name, dy, view::transpose(right), alpha);
    da = sum_to(da, saved.a_shape);
    saved.b = Tensor();
  }
  if (needs[1]) {
    const Tensor left = transpose_a ? view::transpose(saved.a) : saved.a;  // (..., M, K)
    db =
        transpose_b ? product(name, view::transpose(dy), left, alpha) : product(name, view::transpose(left), dy, alpha);
    db = sum_to(db, saved.b_shape);
  }
  return {da, db};
}

double Matmul::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  return static_cast<double>(output.elements()) * static_cast<double>(inputs[0].size(transpose_a ? -2 : -1));
}

Tensor Linear::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  if (x.rank() < 1 || weight.rank() != 2 || x.size(-1) != weight.size(weight_is_in_out ? 0 : 1)) {
    throw ShapeError("linear: input " + to_string(x.shape()) + " does not fit weight " + to_string(weight.shape()) +
                     (weight_is_in_out ? " (in, out)" : " (out, in)"));
  }
  const Tensor w = weight_is_in_out ? weight : view::transpose(weight);  // (I, O)
  if (bias.defined() && bias.shape() != Shape{w.size(1)}) {
    throw ShapeError("linear: bias " + to_string(bias.shape()) + " for " + std::to_string(w.size(1)) + " outputs");
  }
  if (!is_floating(x.dtype())) throw DTypeError("linear: " + describe(x) + " is not floating; matmul() takes it");
  if (bias.defined() && bias.dtype() != x.dtype()) {
    throw DTypeError("linear: bias is " + describe(bias) + ", input " + describe(x));
  }
  const Tensor rows = as_rows(x);  // (R, I)
  const Tensor y = Tensor::empty({rows.size(0), w.size(1)}, x.dtype(), x.device());
  const bool has_gelu = activation == kernels::Activation::gelu_tanh || activation == kernels::Activation::gelu_erf;
  MatmulCall call{name, rows, w, y, bias.defined() ? contiguous(bias) : bias, {}};
  call.activation = activation;
  if (has_gelu && needs.any()) call.pre_activation = Tensor::empty_like(y);
  matmul_into(call);
  if (needs[1]) saved.x = x;
  if (needs[0]) saved.weight = weight;
  if (needs.any() && activation == kernels::Activation::relu) saved.activation = y;
  if (needs.any() && has_gelu) saved.activation = call.pre_activation;
  saved.x_shape = x.shape();
  Shape shape = x.shape();
  shape[shape.rank() - 1] = w.size(1);
  const Tensor result = view::reshape(y, shape);
  if (saved.activation.defined()) saved.activation = view::reshape(saved.activation, shape);
  return result;
}

Tensor Linear::output_from_saved(Saved saved, std::span<const Tensor> inputs) const {
  using kernels::Activation;
  const bool has_gelu = activation == Activation::gelu_tanh || activation == Activation::gelu_erf;
  const DType dtype = inputs[0].dtype();
  // Narrower dtypes have kept a rounded input of the activation, which does not give the result's bits.
  if (has_gelu && saved.activation.defined() && (dtype == DType::f32 || dtype == DType::f64)) {
    const auto apply_again = [&]<class F>(const F& f) {
      typename Elementwise<F>::Saved nothing{};
      return Elementwise<F>{f}.forward(saved.activation, Needs(), nothing);
    };
    return activation == Activation::gelu_tanh ? apply_again(GeluTanh{}) : apply_again(GeluErf{});
  }
  Saved nothing;
  return forward(inputs[0], inputs[1], inputs[2], Needs(), nothing);
}

double Linear::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  return static_cast<double>(output.elements()) * static_cast<double>(inputs[0].size(-1));
}

Gradients Linear::backward(Saved saved, Tensor dy, Needs needs) const {
  using kernels::Activation;
  const auto through = [&]<class F>(const F& f) {
    typename Elementwise<F>::Saved kept;
    (activation == Activation::relu ? kept.out : kept.lhs) = std::exchange(saved.activation, Tensor());
    kept.lhs_shape = dy.shape();
    Gradients d = Elementwise<F>{f}.backward(std::move(kept), std::exchange(dy, Tensor()), Needs(1));
    dy = std::exchange(d[0], Tensor());
  };
  if (activation == Activation::relu) through(Relu{});
  if (activation == Activation::gelu_tanh) through(GeluTanh{});
  if (activation == Activation::gelu_erf) through(GeluErf{});

  const Tensor rows = as_rows(dy);  // (R, O)
  Tensor dx, dweight, dbias;
  if (needs[1]) {
    const Tensor x = as_rows(std::exchange(saved.x, Tensor()));  // (R, I)
    dweight = weight_is_in_out ? Tensor::empty({x.size(1), rows.size(1)}, dy.dtype(), dy.device())
                               : Tensor::empty({rows.size(1), x.size(1)}, dy.dtype(), dy.device());
    const Tensor left = view::transpose(weight_is_in_out ? x : rows);
    matmul_into({name, left, weight_is_in_out ? rows : x, dweight, {}, {}});
  }  // frees x
  if (needs[2]) dbias = column_sum(rows);
  if (needs[0]) {
    const Tensor w = weight_is_in_out ? view::transpose(saved.weight) : saved.weight;  // (O, I)
    dx = Tensor::empty({rows.size(0), w.size(1)}, dy.dtype(), dy.device());
    matmul_into({name, rows, w, dx, {}, {}});
    dx = view::reshape(dx, saved.x_shape);
  }
  return {dx, dweight, dbias};
}

}  // namespace thimble::ops
