#include <thimble/core/ops/quant/fp8_linear.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/functors/unary.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/view.h>

namespace thimble {

namespace {

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

/// A build without CUDA plans for a machine that has the library.
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

}  // namespace

bool fp8_blocks_on_units(memory::Device device, const Fp8BlockProduct& product) {
  kernels::Fp8GemmArgs args;
  args.in_blocks = true;
  args.m = product.m, args.n = product.n, args.k = product.k;
  args.a_row_stride = args.b_row_stride = product.k, args.c_row_stride = product.n;
  args.a_dtype = product.a_dtype, args.b_dtype = product.b_dtype, args.c_dtype = product.c_dtype;
  return has_blocks(device) && kernels::is_library_fp8_gemm(args);
}

std::string why_no_fp8_blocks(memory::Device device) {
  if (has_blocks(device)) return {};
  if (!device.is_cuda()) return "a CPU multiplies bf16";
  if (!library_has_blocks()) return "this build's cuBLAS has no scales of blocks, 12.9 has";
  return "compute capability " + capability_text(compute_capability(device)) + ", and " +
         capability_text(capability_with_blocks) + " has units for them";
}

void fp8_matmul_into(const Fp8MatmulCall& call) {
  check(call);
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
  args.in_blocks = in_blocks(call.a);
  args.bias = call.bias.defined() ? &args : nullptr;  // any address: only null or not matters
  args.pre_activation = call.pre_activation.defined() ? &args : nullptr;
  const auto bytes = static_cast<std::int64_t>(kernels.gemm_workspace_bytes(args));
  Tensor workspace;
  if (bytes > 0) workspace = Tensor::empty({bytes}, DType::u8, device, memory::Category::workspace);
  kernels::Fp8ScalesArgs grids;
  Tensor a_scale = call.a.scale, b_scale = call.b.scale;
  if (args.in_blocks) {
    grids = grids_of(call, args);
    a_scale = Tensor::empty({grids.a.outer, grids.a.to_stride}, DType::f32, device, memory::Category::workspace);
    b_scale = Tensor::empty({grids.b.outer, grids.b.to_stride}, DType::f32, device, memory::Category::workspace);
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

namespace thimble::ops {

namespace {

/// Bytes of decoded x at a time: fit a processor's caches; on a GPU enough work to fill it.
std::int64_t window_bytes(memory::Device device) { return std::int64_t{4} << (device.is_cuda() ? 23 : 20); }
constexpr std::int64_t fewest_fp8_rows = 64;
constexpr std::int64_t turned_bytes = std::int64_t{32} << 20;  // of x's transposed codes at a time

bool is_gelu(kernels::Activation activation) {
  return activation == kernels::Activation::gelu_tanh || activation == kernels::Activation::gelu_erf;
}

// (..., I) -> (rows, I), dense.
Tensor contiguous_rows(const Tensor& x) {
  const std::int64_t columns = x.size(-1);
  return view::reshape(contiguous(x), {columns > 0 ? x.elements() / columns : 0, columns});
}

Shape with_last(Shape shape, std::int64_t size) {
  shape[shape.rank() - 1] = size;
  return shape;
}

void check(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scales, const Fp8State& state,
           bool weight_is_in_out) {
  if (x.rank() < 1 || weight.rank() != 2 || x.size(-1) != weight.size(weight_is_in_out ? 0 : 1)) {
    throw ShapeError("fp8_linear: input " + to_string(x.shape()) + " does not fit weight " + to_string(weight.shape()) +
                     (weight_is_in_out ? " (in, out)" : " (out, in)"));
  }
  const std::int64_t out = weight.size(weight_is_in_out ? 1 : 0);
  if (bias.defined() && bias.shape() != Shape{out}) {
    throw ShapeError("fp8_linear: bias " + to_string(bias.shape()) + " for " + std::to_string(out) + " outputs");
  }
  if (weight.dtype() != x.dtype() || (bias.defined() && bias.dtype() != x.dtype())) {
    throw DTypeError("fp8_linear: input " + describe(x) + ", weight " + describe(weight) + ", bias " + describe(bias) +
                     "; expected one dtype");
  }
  if (scales.defined() && (scales.dtype() != DType::f32 || scales.shape() != Shape{3} || !scales.is_contiguous())) {
    throw DTypeError("fp8_linear: scales " + describe(scales) + "; expected f32 (3)");
  }
  check_one_device("fp8_linear", x, weight);
  check_one_device("fp8_linear", x, scales);
  if (state.defined()) check_fp8_state("fp8_linear", state, x.device());
}

// dy through the activation's gradient.
Tensor through(kernels::Activation activation, Tensor kept, Tensor dy) {
  const auto run = [&]<class F>(const F& f) {
    typename Elementwise<F>::Saved saved;
    (activation == kernels::Activation::relu ? saved.out : saved.lhs) = std::move(kept);
    saved.lhs_shape = dy.shape();
    Gradients d = Elementwise<F>{f}.backward(std::move(saved), std::move(dy), Needs(1));
    return std::exchange(d[0], Tensor());
  };
  if (activation == kernels::Activation::relu) return run(Relu{});
  if (activation == kernels::Activation::gelu_tanh) return run(GeluTanh{});
  if (activation == kernels::Activation::gelu_erf) return run(GeluErf{});
  return dy;
}

// y = act(s x8 W8 + bias), a window of rows of x at a time. w is (I, O).
void multiply(const MatmulCall& whole, const Fp8Operand& x, const Fp8Operand& w) {
  const std::int64_t rows = x.values.size(0), in = x.values.size(1);
  const std::int64_t most =
      std::max(fewest_fp8_rows, window_bytes(x.values.device()) / (2 * std::max<std::int64_t>(in, 1)) /
                                    fewest_fp8_rows * fewest_fp8_rows);
  const Tensor window =
      Tensor::empty({std::min(rows, most), in}, DType::bf16, x.values.device(), memory::Category::workspace);
  for (std::int64_t r = 0; r < rows; r += most) {
    const std::int64_t end = std::min(rows, r + most);
    MatmulCall call = whole;
    call.a = view::slice(window, 0, 0, end - r);
    call.b = w.values;
    call.c = view::slice(whole.c, 0, r, end);
    if (whole.pre_activation.defined()) call.pre_activation = view::slice(whole.pre_activation, 0, r, end);
    call.b_scale = w.scale;
    if (x.scale.dtype() == DType::f32) call.a_scale = x.scale;
    fp8_decode_into(call.a, x, r, 0);
    matmul_into(call);
  }
}

// dW = s x8^T dy8 (I, O), or its transpose, a window of columns of x at a time.
void multiply_transposed(const char* name, const Tensor& dweight, const Fp8Operand& x, const Fp8Operand& dy,
                         bool is_in_out) {
  const std::int64_t rows = x.values.size(0), in = x.values.size(1);
  const std::int64_t most = std::max(
      fp8_block, window_bytes(x.values.device()) / (2 * std::max<std::int64_t>(rows, 1)) / fp8_block * fp8_block);
  const std::int64_t width = std::min(in, most);
  const Tensor window = Tensor::empty({width * rows}, DType::bf16, x.values.device(), memory::Category::workspace);
  for (std::int64_t i = 0; i < in; i += width) {
    const std::int64_t end = std::min(in, i + width);
    const Tensor part = view::reshape(view::slice(window, 0, 0, rows * (end - i)), {rows, end - i});
    fp8_decode_into(part, x, 0, i);
    MatmulCall call{name, {}, {}, view::slice(dweight, is_in_out ? 0 : 1, i, end), {}, {}};
    call.a = view::transpose(is_in_out ? part : dy.values);
    call.b = is_in_out ? dy.values : part;
    if (x.scale.dtype() == DType::f32) call.a_scale = x.scale;  // both are factors of alpha, so sides do not matter
    call.b_scale = dy.scale;
    matmul_into(call);
  }
}

bool is_block(const Fp8Use& use) { return use.format.scaling == Fp8Scaling::block; }

// Whether the product of a's values (rows, from) with the weight's reads codes: with one scale per tensor on every CUDA
// device, with block scales if its units support them.
bool reads_codes(memory::Device device, const Fp8Use& use, Fp8Role a, std::int64_t rows, std::int64_t from,
                 std::int64_t to, DType dtype) {
  if (!is_block(use)) return device.is_cuda();
  return fp8_blocks_on_units(device, {rows, to, from, use.dtype(a), use.dtype(Fp8Role::weight), dtype});
}

// dW = dy^T x sums over rows with different block scales, which FP8 units cannot apply; bf16 values represent these
// codes exactly.
bool weight_grad_reads_codes(memory::Device device, const Fp8Use& use) { return device.is_cuda() && !is_block(use); }

// The three products of codes. A weight (out, in) is read plain in forward and turned in backward, (in, out) the other
// way round.
void multiply_codes(const MatmulCall& whole, const Fp8Operand& x, const Fp8Sides& w) {
  const bool lies = w.plain.defined();
  fp8_matmul_into({whole.operation,
                   x,
                   {lies ? w.plain : w.turned, lies || w.scale.rank() < 2 ? w.scale : view::transpose(w.scale)},
                   whole.c,
                   whole.bias,
                   whole.pre_activation,
                   whole.activation});
}

void multiply_codes_transposed(const char* name, const Tensor& dweight, const Fp8Operand& x, const Fp8Operand& dy,
                               bool is_in_out) {
  const std::int64_t in = x.values.size(1), rows = dy.values.size(1);  // padded
  const std::int64_t most = std::max(fp8_block, turned_bytes / std::max<std::int64_t>(rows, 1) / fp8_block * fp8_block);
  const std::int64_t width = std::min(in, most);
  const Tensor window = Tensor::empty({width, rows}, x.values.dtype(), x.values.device(), memory::Category::workspace);
  for (std::int64_t i = 0; i < in; i += width) {
    const std::int64_t end = std::min(in, i + width);
    const Fp8Operand part{view::slice(window, 0, 0, end - i), x.scale};
    fp8_turn_into(part.values, x.values, i, end);
    const Tensor c = view::slice(dweight, is_in_out ? 0 : 1, i, end);
    fp8_matmul_into({name, is_in_out ? part : dy, is_in_out ? dy : part, c, {}, {}});
  }
}

}  // namespace

Tensor Fp8Linear::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scales, Needs needs,
                          Saved& saved) const {
  check(x, weight, bias, scales, use.state, weight_is_in_out);
  const std::int64_t out = weight.size(weight_is_in_out ? 1 : 0);
  const Fp8Operand codes = fp8_encode(contiguous_rows(x), Fp8Role::x, use, scales);  // (R, I)
  const bool on_units =
      reads_codes(x.device(), use, Fp8Role::x, codes.values.size(0), codes.values.size(1), out, x.dtype());
  Fp8Sides sides;
  Fp8Operand w;
  if (on_units) {
    sides = fp8_encode_sides(contiguous(weight), Fp8Role::weight, use, scales, !weight_is_in_out, weight_is_in_out);
  } else {
    w = fp8_round(contiguous(weight), Fp8Role::weight, use, scales);
    if (!weight_is_in_out) w.values = view::transpose(w.values);  // (I, O)
  }
  const Tensor y = Tensor::empty({codes.values.size(0), out}, x.dtype(), x.device());
  MatmulCall call{name, {}, {}, y, bias.defined() ? contiguous(bias) : bias, {}};
  call.activation = activation;
  const bool keeps_input = is_gelu(activation) && needs.any();
  if (keeps_input) call.pre_activation = Tensor::empty_like(y);
  if (on_units) {
    multiply_codes(call, codes, sides);
  } else {
    multiply(call, codes, w);
  }
  const Shape shape = with_last(x.shape(), out);
  const Tensor result = view::reshape(y, shape);
  if (needs[1]) saved.x = codes.values, saved.x_scale = codes.scale;
  if (needs[0]) saved.weight = weight;
  if (needs.any()) saved.scales = scales;
  if (keeps_input) saved.activation = view::reshape(call.pre_activation, shape);
  if (needs.any() && activation == kernels::Activation::relu) saved.activation = result;
  saved.x_shape = x.shape();
  return result;
}

Gradients Fp8Linear::backward(Saved saved, Tensor dy, Needs needs) const {
  dy = through(activation, std::exchange(saved.activation, Tensor()), std::move(dy));
  const DType dtype = dy.dtype();
  Tensor rows = contiguous_rows(dy);  // (R, O)
  dy = Tensor();
  Tensor dx, dweight, dbias;
  if (needs[2]) dbias = column_sum(rows);
  if (!needs[0] && !needs[1]) return {dx, dweight, dbias};
  Fp8Use again = use;  // forward has recorded the weight's amax
  again.records = false;
  const memory::Device device = rows.device();
  const std::int64_t count = rows.size(0), out = rows.size(1), in = saved.x_shape[saved.x_shape.rank() - 1];
  const bool dx_of_codes = needs[0] && reads_codes(device, use, Fp8Role::gradient, count, out, in, dtype);
  const bool dweight_of_codes = needs[1] && weight_grad_reads_codes(device, use);
  Fp8Sides sides;
  Fp8Operand d;  // (R, O) of bf16 values
  if (dx_of_codes || dweight_of_codes) {
    sides = fp8_encode_sides(rows, Fp8Role::gradient, use, saved.scales, needs[0], dweight_of_codes);
    if (dweight_of_codes || !needs[1]) rows = Tensor();
  } else {
    d = fp8_round(std::move(rows), Fp8Role::gradient, use, saved.scales);
  }
  const bool decodes_later = dx_of_codes && needs[1] && !dweight_of_codes;
  if (dx_of_codes) {
    const Fp8Sides w = fp8_encode_sides(contiguous(saved.weight), Fp8Role::weight, again, saved.scales,
                                        weight_is_in_out, !weight_is_in_out);
    dx = Tensor::empty({count, in}, dtype, device);
    const Tensor codes = decodes_later ? sides.plain : std::exchange(sides.plain, Tensor());
    multiply_codes({name, {}, {}, dx, {}, {}}, {codes, sides.scale}, w);
  } else if (needs[0]) {
    Fp8Operand w = fp8_round(contiguous(saved.weight), Fp8Role::weight, again, saved.scales);
    if (weight_is_in_out) w.values = view::transpose(w.values);  // (O, I)
    dx = Tensor::empty({count, in}, dtype, device);
    MatmulCall call{name, d.values, w.values, dx, {}, {}};
    call.a_scale = d.scale, call.b_scale = w.scale;
    matmul_into(call);
  }
  if (needs[0]) dx = view::reshape(dx, saved.x_shape);
  if (needs[1]) {
    // NOLINTNEXTLINE(bugprone-use-after-move): if rows were moved, nothing is decoded
    if (decodes_later) d.values = fp8_decode(std::move(rows), {std::exchange(sides.plain, Tensor()), sides.scale});
    dweight = Tensor::empty(weight_is_in_out ? Shape{in, out} : Shape{out, in}, dtype, device);
    const Fp8Operand x{saved.x, saved.x_scale};
    if (dweight_of_codes) {
      multiply_codes_transposed(name, dweight, x, {sides.turned, sides.scale}, weight_is_in_out);
    } else {
      multiply_transposed(name, dweight, x, d, weight_is_in_out);
    }
  }
  return {dx, dweight, dbias};
}

double Fp8Linear::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  return static_cast<double>(output.elements()) * static_cast<double>(inputs[0].size(-1));
}

}  // namespace thimble::ops
