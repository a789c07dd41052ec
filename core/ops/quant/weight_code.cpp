#include <thimble/core/ops/quant/weight_code.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/quantize.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/integers.h>

namespace thimble {
namespace {

constexpr std::int64_t magnitudes_in_block = 256;

/// Offsets of the regions of a coded weight.
struct CodeLayout {
  std::int64_t scales, magnitudes, codes, end;
};

CodeLayout layout_of(WeightCode code, std::int64_t n) {
  if (code == WeightCode::int8) {
    const std::int64_t of_scales = 2 * ceil_div(n, kernels::q8_block);
    return {0, of_scales, of_scales, of_scales + n};
  }
  const std::int64_t blocks = ceil_div(n, kernels::nf4_block);
  const std::int64_t scales = 4, magnitudes = scales + 4 * ceil_div(blocks, magnitudes_in_block);
  return {scales, magnitudes, magnitudes + blocks, magnitudes + blocks + ceil_div(n, 2)};
}

void check(WeightCode code, DType dtype, std::int64_t n, const Tensor& coded) {
  const std::string begin = "weight code: " + std::to_string(n) + " numbers of " + std::string(to_string(dtype)) +
                            " in " + std::string(to_string(code));
  if (!is_floating(dtype)) throw DTypeError(begin + "; expected a floating dtype");
  if (coded.dtype() == DType::u8 && coded.is_contiguous() &&
      coded.shape() == Shape{static_cast<std::int64_t>(coded_bytes(code, n))}) {
    return;
  }
  throw ShapeError(begin + " are u8 (" + std::to_string(coded_bytes(code, n)) + "), dense, not " + describe(coded));
}

/// The arguments for flat blocks of `block` values.
kernels::QuantizeArgs blocks(void* values, DType dtype, std::int64_t n, std::int64_t block, void* codes, void* scales) {
  kernels::QuantizeArgs args;
  args.rows = 1, args.columns = n;
  args.block_columns = std::min(block, n);
  args.values = values, args.dtype = dtype;
  args.codes = codes, args.scales = scales;
  return args;
}

kernels::QuantizeArgs int8_args(std::byte* coded, void* values, DType dtype, std::int64_t n) {
  const CodeLayout at = layout_of(WeightCode::int8, n);
  kernels::QuantizeArgs args = blocks(values, dtype, n, kernels::q8_block, coded + at.codes, coded + at.scales);
  args.scale_dtype = DType::f16;
  return args;
}

/// The arguments for NF4's magnitudes.
kernels::QuantizeArgs magnitude_args(std::byte* coded, float* amax, std::int64_t n) {
  const CodeLayout at = layout_of(WeightCode::nf4, n);
  kernels::QuantizeArgs args = blocks(amax, DType::f32, ceil_div(n, kernels::nf4_block), magnitudes_in_block,
                                      coded + at.magnitudes, coded + at.scales);
  args.code_dtype = DType::u8;
  return args;
}

kernels::Nf4Args nf4_args(std::byte* coded, float* amax, void* values, DType dtype, std::int64_t n) {
  const CodeLayout at = layout_of(WeightCode::nf4, n);
  return {n, values, dtype, reinterpret_cast<std::uint8_t*>(coded + at.codes), amax, reinterpret_cast<float*>(coded)};
}

Tensor magnitudes(std::int64_t n, memory::Device device) {
  return Tensor::empty({ceil_div(n, kernels::nf4_block)}, DType::f32, device, memory::Category::workspace);
}

}  // namespace

std::string_view to_string(WeightCode code) noexcept { return code == WeightCode::int8 ? "int8" : "nf4"; }

std::size_t coded_bytes(WeightCode code, std::int64_t elements) {
  return static_cast<std::size_t>(layout_of(code, elements).end);
}

void encode_weight(WeightCode code, const void* values, DType dtype, std::int64_t n, const Tensor& coded) {
  check(code, dtype, n, coded);
  if (n == 0) return;
  const memory::Device device = coded.device();
  void* const from = const_cast<void*>(values);  // NOLINT(cppcoreguidelines-pro-type-const-cast): only read
  if (code == WeightCode::int8) {
    launch(device, [&](const Addresses& at) {
      kernels::quantize_kernels(device).quantize(int8_args(at.as<std::byte>(coded), from, dtype, n));
    });
  } else {
    const Tensor amax = magnitudes(n, device);
    launch(device, [&](const Addresses& at) {
      auto* const to = at.as<std::byte>(coded);
      const kernels::Nf4Args args = nf4_args(to, at.as<float>(amax), from, dtype, n);
      kernels::nf4_kernels(device).encode(args);
      kernels::nf4_kernels(device).center(args);
      kernels::quantize_kernels(device).quantize(magnitude_args(to, at.as<float>(amax), n));
    });
  }
  coded.storage()->bump_version();
}

void decode_weight(WeightCode code, const Tensor& coded, void* values, DType dtype, std::int64_t n) {
  check(code, dtype, n, coded);
  if (n == 0) return;
  const memory::Device device = coded.device();
  if (code == WeightCode::int8) {
    launch(device, [&](const Addresses& at) {
      kernels::quantize_kernels(device).dequantize(int8_args(at.as<std::byte>(coded), values, dtype, n));
    });
    return;
  }
  const Tensor amax = magnitudes(n, device);
  launch(device, [&](const Addresses& at) {
    auto* const from = at.as<std::byte>(coded);
    kernels::quantize_kernels(device).dequantize(magnitude_args(from, at.as<float>(amax), n));
    kernels::nf4_kernels(device).decode(nf4_args(from, at.as<float>(amax), values, dtype, n));
  });
}

}  // namespace thimble
