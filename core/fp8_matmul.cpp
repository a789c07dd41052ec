#include <thimble/core/fp8_matmul.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/launch.h>

namespace thimble {
namespace fp8_matmul_detail {

bool is_fp8(const Tensor& t) { return t.dtype() == DType::f8e4m3 || t.dtype() == DType::f8e5m2; }

bool has_dense_rows(const Tensor& t) { return t.rank() == 2 && (t.strides()[1] == 1 || t.size(1) <= 1); }

void check(const Fp8MatmulCall& call) {
  const Tensor &a = call.a.values, &b = call.b.values, &c = call.c;
  const std::string what = std::string(call.operation) + ": codes " + describe(a) + " and " + describe(b) + " to " +
                           describe(c) + (call.bias.defined() ? ", bias " + describe(call.bias) : "");
  if (!has_dense_rows(a) || !has_dense_rows(b) || !has_dense_rows(c) || c.size(0) != a.size(0) ||
      c.size(1) != b.size(0) || std::max(a.size(1), b.size(1)) - std::min(a.size(1), b.size(1)) >= fp8_multiple ||
      (call.bias.defined() && (call.bias.shape() != Shape{c.size(1)} || !call.bias.is_contiguous())) ||
      (call.pre_activation.defined() &&
       (call.pre_activation.shape() != c.shape() || call.pre_activation.strides() != c.strides()))) {
    throw ShapeError(what + "; (M, K), (N, K) and (M, N) with dense rows are needed");
  }
  const DType dtype = c.dtype();
  if (!is_fp8(a) || !is_fp8(b) || (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) ||
      (call.bias.defined() && call.bias.dtype() != dtype) ||
      (call.pre_activation.defined() && call.pre_activation.dtype() != dtype) || call.a.scale.dtype() != DType::f32 ||
      call.b.scale.dtype() != DType::f32) {
    throw DTypeError(what + "; f8e4m3 or f8e5m2 with scales in f32 to f32, f16 or bf16 are allowed");
  }
  if (!a.device().is_cuda() || b.device() != a.device() || c.device() != a.device()) {
    throw DeviceError(what + "; one CUDA device is needed");
  }
}

}  // namespace fp8_matmul_detail

void fp8_matmul_into(const Fp8MatmulCall& call) {
  fp8_matmul_detail::check(call);
  if (call.c.elements() == 0) return;
  const Tensor &a = call.a.values, &b = call.b.values;
  const Device device = call.c.device();
  const kernels::Fp8Kernels& kernels = kernels::fp8_kernels(device);
  kernels::Fp8GemmArgs args;
  args.m = call.c.size(0);
  args.n = call.c.size(1);
  args.k = std::min(a.size(1), b.size(1));
  args.a_row_stride = a.strides()[0];
  args.a_dtype = a.dtype();
  args.b_row_stride = b.strides()[0];
  args.b_dtype = b.dtype();
  args.c_row_stride = call.c.strides()[0];
  args.c_dtype = call.c.dtype();
  args.activation = call.activation;
  args.bias = call.bias.defined() ? &args : nullptr;  // that they are there counts, not where
  args.pre_activation = call.pre_activation.defined() ? &args : nullptr;
  const auto bytes = static_cast<std::int64_t>(kernels.gemm_workspace_bytes(args));
  Tensor workspace;
  if (bytes > 0) workspace = Tensor::empty({bytes}, DType::u8, device, Category::workspace);
  launch(device, [&](const Addresses& at) {
    args.a = at.as<std::uint8_t>(a);
    args.b = at.as<std::uint8_t>(b);
    args.a_scale = at.as<float>(call.a.scale);
    args.b_scale = at.as<float>(call.b.scale);
    args.c = at(call.c);
    args.bias = at(call.bias);
    args.pre_activation = at(call.pre_activation);
    kernels.gemm(args, at(workspace));
  });
  call.c.storage()->bump_version();
}

void fp8_turn_into(const Tensor& to, const Tensor& codes, std::int64_t begin, std::int64_t end) {
  using namespace fp8_matmul_detail;
  const std::int64_t rows = codes.rank() == 2 ? codes.size(0) : 0;
  const std::int64_t padded = (rows + fp8_multiple - 1) / fp8_multiple * fp8_multiple;
  if (!has_dense_rows(codes) || begin < 0 || begin > end || end > codes.size(1) ||
      to.shape() != Shape{end - begin, padded} || !to.is_contiguous()) {
    throw ShapeError("fp8: columns " + std::to_string(begin) + " to " + std::to_string(end) + " of " + describe(codes) +
                     " turned into " + describe(to));
  }
  if (!is_fp8(codes) || to.dtype() != codes.dtype()) {
    throw DTypeError("fp8: " + describe(codes) + " turned into " + describe(to) + "; f8e4m3, f8e5m2 are allowed");
  }
  if (!codes.device().is_cuda() || to.device() != codes.device()) {
    throw DeviceError("fp8: " + describe(codes) + " turned into " + describe(to) + "; one CUDA device is needed");
  }
  if (to.elements() == 0) return;
  launch(to.device(), [&](const Addresses& at) {
    kernels::Fp8TurnArgs args;
    args.values = at.as<std::uint8_t>(codes) + begin;
    args.dtype = args.code_dtype = codes.dtype();
    args.rows = rows;
    args.columns = end - begin;
    args.row_stride = codes.strides()[0];
    args.turned = at.as<std::uint8_t>(to);
    args.turned_stride = padded;
    kernels::fp8_kernels(to.device()).turn(args);
  });
  to.storage()->bump_version();
}

}  // namespace thimble
