#include <thimble/core/ops/matmul/lora_linear.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {

namespace {

enum Operand : int { of_x, of_weight, of_bias, of_z, of_a, of_b };

void check(const LoraLinear& op, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z,
           const Tensor& a, const Tensor& b) {
  const int in_axis = op.weight_is_in_out ? 0 : 1;
  const bool fits =
      x.rank() >= 1 && weight.rank() == 2 && a.rank() == 2 && b.rank() == 2 && x.size(-1) == weight.size(in_axis) &&
      a.size(1) == x.size(-1) && a.size(0) >= 1 && b.shape() == Shape{weight.size(1 - in_axis), a.size(0)} &&
      (!bias.defined() || bias.shape() == Shape{weight.size(1 - in_axis)}) && (!z.defined() || z.shape() == x.shape());
  if (!fits) {
    throw ShapeError("lora_linear: input " + to_string(x.shape()) + ", weight " + to_string(weight.shape()) +
                     (op.weight_is_in_out ? " (in, out)" : " (out, in)") + ", bias " + to_string(bias.shape()) +
                     (z.defined() ? ", adapter's input " + to_string(z.shape()) : "") + ", A " + to_string(a.shape()) +
                     ", B " + to_string(b.shape()) + "; expected (..., in), (out), (r, in) and (out, r)");
  }
  for (const Tensor* t : {&weight, &bias, &z, &a, &b}) {
    if (t->defined() && (t->dtype() != x.dtype() || !is_floating(x.dtype()))) {
      throw DTypeError("lora_linear: input " + describe(x) + " and " + describe(*t) + "; expected one floating dtype");
    }
    check_one_device("lora_linear", x, *t);
  }
}

/// scale a b, added to `into` if defined.
Tensor product(const Tensor& a, const Tensor& b, double scale = 1, const Tensor& into = {}) {
  MatmulCall call{LoraLinear::name, a, b, into, {}, {}};
  if (!into.defined()) call.c = Tensor::empty({a.size(0), b.size(1)}, a.dtype(), a.device());
  call.alpha = scale;
  call.accumulate = into.defined();
  matmul_into(call);
  return call.c;
}

/// The number of outputs of a tile is a multiple of this, because libraries need a bias aligned to 16 bytes.
constexpr std::int64_t aligned = 4;

/// Bytes of decoded f32 rows: fit a processor's cache; on a GPU their work outweighs the launches.
std::int64_t tile_bytes(memory::Device device) { return std::int64_t{1} << (device.is_cuda() ? 25 : 20); }

void check(const Tensor& x, const Tensor& blocks, const Tensor& bias) {
  if (x.dtype() != DType::f32 || blocks.dtype() != DType::u8 || (bias.defined() && bias.dtype() != DType::f32)) {
    throw DTypeError("linear_q8: input " + describe(x) + ", blocks " + describe(blocks) + ", bias " + describe(bias) +
                     "; expected f32, u8 and f32");
  }
  if (x.rank() < 1 || blocks.rank() != 2 || blocks.size(1) % kernels::q8_block_bytes != 0 ||
      x.size(-1) != blocks.size(1) / kernels::q8_block_bytes * kernels::q8_block) {
    throw ShapeError("linear_q8: input " + to_string(x.shape()) + " does not fit blocks " + to_string(blocks.shape()) +
                     ", expected (out, 34 in / 32)");
  }
  if (bias.defined() && bias.shape() != Shape{blocks.size(0)}) {
    throw ShapeError("linear_q8: bias " + to_string(bias.shape()) + " for " + std::to_string(blocks.size(0)) +
                     " outputs");
  }
  check_one_device("linear_q8", x, blocks);
  check_one_device("linear_q8", x, bias);
}

}  // namespace

Tensor LoraLinear::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z, const Tensor& a,
                           const Tensor& b, Needs needs, Saved& saved) const {
  check(*this, x, weight, bias, z, a, b);
  const Tensor w = weight_is_in_out ? weight : view::transpose(weight);  // (I, O)
  const Tensor rows = as_rows(x);                                        // (R, I)
  const Tensor y = Tensor::empty({rows.size(0), w.size(1)}, x.dtype(), x.device());
  matmul_into({name, rows, w, y, bias.defined() ? contiguous(bias) : bias, {}});
  const Tensor u = product(z.defined() ? as_rows(z) : rows, view::transpose(a));  // (R, r)
  product(u, view::transpose(b), scale, y);
  const bool needs_adapter_input = needs[z.defined() ? of_z : of_x];
  if (needs[of_weight] || (needs[of_a] && !z.defined())) saved.x = x;
  if (needs[of_x]) saved.weight = weight;
  if (needs[of_a]) saved.z = z;
  if (needs_adapter_input) saved.a = a;
  if (needs_adapter_input || needs[of_a]) saved.b = b;
  if (needs[of_b]) saved.u = u;
  saved.x_shape = x.shape();
  saved.has_z = z.defined();
  Shape shape = x.shape();
  shape[shape.rank() - 1] = w.size(1);
  return view::reshape(y, shape);
}

Gradients LoraLinear::backward(Saved saved, Tensor dy, Needs needs) const {
  const Tensor rows = as_rows(dy);  // (R, O)
  Tensor dx, dweight, dbias, dz, da, db;
  if (needs[of_bias]) dbias = column_sum(rows);
  if (needs[of_weight]) {
    const Tensor x = as_rows(saved.x);  // (R, I)
    dweight = weight_is_in_out ? product(view::transpose(x), rows) : product(view::transpose(rows), x);
  }
  if (needs[of_b]) db = product(view::transpose(rows), saved.u, scale);  // (O, r)
  Tensor du;                                                             // (R, r)
  if (saved.b.defined()) du = product(rows, saved.b, scale);
  if (needs[of_a]) da = product(view::transpose(du), as_rows(saved.has_z ? saved.z : saved.x));  // (r, I)
  if (needs[of_x]) {
    dx = product(rows, weight_is_in_out ? view::transpose(saved.weight) : saved.weight);  // (R, I)
    if (!saved.has_z) product(du, saved.a, 1, dx);
    dx = view::reshape(dx, saved.x_shape);
  }
  if (needs[of_z]) dz = view::reshape(product(du, saved.a), saved.x_shape);
  return {dx, dweight, dbias, dz, da, db};
}

double LoraLinear::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const auto in = static_cast<double>(inputs[0].size(-1)), out = static_cast<double>(output.size(-1));
  const auto rank = static_cast<double>(inputs[of_a].size(0));
  const double rows = out > 0 ? static_cast<double>(output.elements()) / out : 0;
  return rows * (in * out + rank * (in + out));
}

Tensor LinearQ8::forward(const Tensor& x, const Tensor& blocks, const Tensor& bias, Needs needs, Saved&) const {
  check(x, blocks, bias);
  if (needs.any()) throw AutogradError("linear_q8: quantized weights have no gradients; record nothing around them");
  const std::int64_t in = x.size(-1), out = blocks.size(0);
  const Tensor rows = view::reshape(contiguous(x), {in > 0 ? x.elements() / in : 0, in});  // (R, I)
  const Tensor weight = contiguous(blocks);
  const Tensor y = Tensor::empty({rows.size(0), out}, DType::f32, x.device());
  std::int64_t in_tile = std::clamp<std::int64_t>(tile_bytes(x.device()) / std::max<std::int64_t>(4 * in, 1), 1,
                                                  std::max<std::int64_t>(out, 1));
  if (in_tile < out && in_tile > aligned) in_tile -= in_tile % aligned;
  const Tensor tile = Tensor::empty({in_tile, in}, DType::f32, x.device(), memory::Category::workspace);
  for (std::int64_t o = 0; o < out; o += in_tile) {
    const std::int64_t count = std::min(in_tile, out - o);
    const Tensor part = view::slice(tile, 0, 0, count);  // (count, I)
    launch(x.device(), [&](const Addresses& at) {
      kernels::q8_kernels(x.device())
          .dequantize(at.as<std::uint8_t>(weight) + o * weight.size(1), count * in / kernels::q8_block,
                      at.as<float>(part));
    });
    MatmulCall call{name, rows, view::transpose(part), view::slice(y, 1, o, o + count), {}, {}};
    if (bias.defined()) call.bias = contiguous(view::slice(bias, 0, o, o + count));
    call.activation = activation;
    matmul_into(call);
  }
  Shape shape = x.shape();
  shape[shape.rank() - 1] = out;
  return view::reshape(y, shape);
}

Gradients LinearQ8::backward(Saved, Tensor, Needs) const {
  throw AutogradError("linear_q8: quantized weights have no gradients");
}

double LinearQ8::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  return static_cast<double>(output.elements()) * static_cast<double>(inputs[0].size(-1));
}

}  // namespace thimble::ops
