#include <thimble/core/ops/matmul/product.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble {
namespace matmul_detail {

// Stride of `t` along leading axis `axis` of c's leading axes: 0 where t is repeated.
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
    // Merges neighbouring axes that all operands walk with one stride.
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
  if (a.device() != b.device() || a.device() != c.device()) {
    throw DeviceError(operation() + ": operands on different devices, " + describe(a) + " and " + describe(b));
  }
  if (a.device().is_cuda() && (call.a_scale.defined() || call.b_scale.defined())) {
    throw DeviceError(operation() + ": scaled operands on " + to_string(a.device()) + "; expected the CPU");
  }
}

}  // namespace matmul_detail

std::int64_t matmul_workspace_bytes(const MatmulCall& call) {
  if (call.c.elements() == 0) return 0;
  kernels::GemmArgs args = matmul_detail::arguments(call);
  args.bias = call.bias.defined() ? &args : nullptr;  // only whether they are defined matters
  args.pre_activation = call.pre_activation.defined() ? &args : nullptr;
  return static_cast<std::int64_t>(kernels::matmul_kernels(call.c.device()).gemm_workspace_bytes(args, thread_count()));
}

void matmul_into(const MatmulCall& call) {
  matmul_detail::check(call);
  if (call.c.elements() == 0) return;
  const memory::Device device = call.c.device();
  kernels::GemmArgs args = matmul_detail::arguments(call);
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
    const Tensor workspace = Tensor::empty({bytes}, DType::u8, device, Category::workspace);
    run(&workspace);
  } else {
    run(nullptr);  // small products need none, and making a tensor would slow them
  }
  call.c.storage()->bump_version();
}

Tensor column_sum(const Tensor& x) {
  const Tensor dense = contiguous(x);
  const Tensor out = Tensor::empty({x.shape()[1]}, x.dtype(), x.device());
  if (out.elements() == 0) return out;
  Tensor partial;
  if (x.device().is_cuda()) {
    partial = Tensor::empty({kernels::column_sum_partial_elements(x.shape()[0], x.shape()[1])},
                            x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.device(), Category::workspace);
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
