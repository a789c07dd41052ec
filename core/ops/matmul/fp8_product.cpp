#include <thimble/core/ops/matmul/fp8_product.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>

namespace thimble {
namespace fp8_matmul_detail {

bool is_fp8(const Tensor& t) { return t.dtype() == DType::f8e4m3 || t.dtype() == DType::f8e5m2; }

static_assert(fp8_block == kernels::fp8_block_side);

std::int64_t blocks(std::int64_t size) { return kernels::fp8_sum_blocks(size); }

bool in_blocks(const Fp8Operand& operand) { return operand.scale.dtype() == DType::u8; }

bool has_dense_rows(const Tensor& t) { return t.rank() == 2 && (t.strides()[1] == 1 || t.size(1) <= 1); }

void check(const Fp8MatmulCall& call) {
  const Tensor &a = call.a.values, &b = call.b.values, &c = call.c;
  const auto what = [&] {
    return std::string(call.operation) + ": codes " + describe(a) + " and " + describe(b) + " to " + describe(c) +
           (call.bias.defined() ? ", bias " + describe(call.bias) : "");
  };
  if (!has_dense_rows(a) || !has_dense_rows(b) || !has_dense_rows(c) || c.size(0) != a.size(0) ||
      c.size(1) != b.size(0) || std::max(a.size(1), b.size(1)) - std::min(a.size(1), b.size(1)) >= fp8_multiple ||
      (call.bias.defined() && (call.bias.shape() != Shape{c.size(1)} || !call.bias.is_contiguous())) ||
      (call.pre_activation.defined() &&
       (call.pre_activation.shape() != c.shape() || call.pre_activation.strides() != c.strides()))) {
    throw ShapeError(what() + "; expected (M, K), (N, K) and (M, N) with dense rows");
  }
  const DType dtype = c.dtype();
  if (!is_fp8(a) || !is_fp8(b) || (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) ||
      (call.bias.defined() && call.bias.dtype() != dtype) ||
      (call.pre_activation.defined() && call.pre_activation.dtype() != dtype) ||
      (call.a.scale.dtype() != DType::f32 && !in_blocks(call.a)) || call.b.scale.dtype() != call.a.scale.dtype()) {
    throw DTypeError(what() +
                     "; expected f8e4m3 or f8e5m2 with scales in f32, or of blocks in u8, to f32, f16 or bf16");
  }
  const std::int64_t across = blocks(std::min(a.size(1), b.size(1)));
  if (in_blocks(call.a) &&
      (call.a.scale.shape() != Shape{c.size(0), across} || call.b.scale.shape() != Shape{blocks(c.size(1)), across})) {
    throw ShapeError(what() + ", scales " + describe(call.a.scale) + " and " + describe(call.b.scale) +
                     "; expected blocks of 1 x 128 and 128 x 128");
  }
  if (!a.device().is_cuda() || b.device() != a.device() || c.device() != a.device()) {
    throw DeviceError(what() + "; expected one CUDA device");
  }
}

constexpr int capability_with_blocks = 90;

/// A build without CUDA plans for one that has the library.
bool library_has_blocks() { return kernels::fp8_cuda == nullptr || kernels::fp8_cuda->library_has_blocks(); }

bool has_blocks(memory::Device device) {
  return device.is_cuda() && library_has_blocks() && compute_capability(device) == capability_with_blocks;
}

// Layouts of the block scales, source and destination, without addresses.
kernels::Fp8ScalesArgs grids_of(const Fp8MatmulCall& call, const kernels::Fp8GemmArgs& args) {
  const Tensor &a = call.a.scale, &b = call.b.scale;
  const std::int64_t across = blocks(args.k);
  kernels::Fp8ScalesArgs grids;
  grids.a = {nullptr, across, args.m, a.strides()[1], a.strides()[0], nullptr, args.m};
  grids.b = {nullptr, b.size(0), across, b.strides()[0], b.strides()[1], nullptr, kernels::fp8_square_stride(args.k)};
  return grids;
}

}  // namespace fp8_matmul_detail

bool fp8_blocks_on_units(memory::Device device, const Fp8BlockProduct& product) {
  kernels::Fp8GemmArgs args;
  args.in_blocks = true;
  args.m = product.m, args.n = product.n, args.k = product.k;
  args.a_row_stride = args.b_row_stride = product.k, args.c_row_stride = product.n;
  args.a_dtype = product.a_dtype, args.b_dtype = product.b_dtype, args.c_dtype = product.c_dtype;
  return fp8_matmul_detail::has_blocks(device) && kernels::is_library_fp8_gemm(args);
}

std::string why_no_fp8_blocks(memory::Device device) {
  namespace detail = fp8_matmul_detail;
  if (detail::has_blocks(device)) return {};
  if (!device.is_cuda()) return "a CPU multiplies bf16";
  if (!detail::library_has_blocks()) return "this build's cuBLAS has no scales of blocks, 12.9 has";
  return "compute capability " + capability_text(compute_capability(device)) + ", and " +
         capability_text(detail::capability_with_blocks) + " has units for them";
}

void fp8_matmul_into(const Fp8MatmulCall& call) {
  namespace detail = fp8_matmul_detail;
  detail::check(call);
  if (call.c.elements() == 0) return;
  const Tensor &a = call.a.values, &b = call.b.values;
  const memory::Device device = call.c.device();
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
  args.in_blocks = detail::in_blocks(call.a);
  args.bias = call.bias.defined() ? &args : nullptr;  // only whether they are defined matters
  args.pre_activation = call.pre_activation.defined() ? &args : nullptr;
  const auto bytes = static_cast<std::int64_t>(kernels.gemm_workspace_bytes(args));
  Tensor workspace;
  if (bytes > 0) workspace = Tensor::empty({bytes}, DType::u8, device, Category::workspace);
  kernels::Fp8ScalesArgs grids;
  Tensor a_scale = call.a.scale, b_scale = call.b.scale;
  if (args.in_blocks) {
    grids = detail::grids_of(call, args);
    a_scale = Tensor::empty({grids.a.outer, grids.a.to_stride}, DType::f32, device, Category::workspace);
    b_scale = Tensor::empty({grids.b.outer, grids.b.to_stride}, DType::f32, device, Category::workspace);
  }
  launch(device, [&](const Addresses& at) {
    args.a = at.as<std::uint8_t>(a);
    args.b = at.as<std::uint8_t>(b);
    args.a_scale = at.as<float>(a_scale);
    args.b_scale = at.as<float>(b_scale);
    if (args.in_blocks) {
      grids.a.scales = at.as<std::uint8_t>(call.a.scale), grids.a.to = at.as<float>(a_scale);
      grids.b.scales = at.as<std::uint8_t>(call.b.scale), grids.b.to = at.as<float>(b_scale);
      kernels.place_scales(grids);
    }
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
    throw DTypeError("fp8: " + describe(codes) + " turned into " + describe(to) + "; expected f8e4m3 or f8e5m2");
  }
  if (!codes.device().is_cuda() || to.device() != codes.device()) {
    throw DeviceError("fp8: " + describe(codes) + " turned into " + describe(to) + "; expected one CUDA device");
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
