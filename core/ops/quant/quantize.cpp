#include <thimble/core/ops/quant/quantize.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/quantize.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/unrecorded.h>

namespace thimble {

namespace {

// A tensor's sizes as a matrix, and its blocks' sizes.
struct BlockLayout {
  std::int64_t rows, columns, block_rows, block_columns;
};

std::string name(const Quantization& how) {
  const ScaleBlocks& b = how.blocks;
  return std::string(to_string(how.dtype)) + " with " + std::string(to_string(how.scale)) + " scales of blocks of " +
         (b.is_flat ? std::to_string(b.columns) + " values"
                    : std::to_string(b.rows) + " x " + std::to_string(b.columns) + " values");
}

BlockLayout layout_of(const Shape& shape, const ScaleBlocks& blocks) {
  if (blocks.rows < 0 || blocks.columns < 0) {
    throw ValueError("quantize: blocks of " + std::to_string(blocks.rows) + " x " + std::to_string(blocks.columns) +
                     "; expected sizes >= 1, or 0 for all");
  }
  const std::int64_t elements = shape.elements();
  const bool is_row = blocks.is_flat || shape.rank() == 0;
  const std::int64_t columns = is_row ? elements : shape.back();
  const std::int64_t rows = is_row ? 1 : columns > 0 ? elements / columns : 0;
  const auto size = [](std::int64_t block, std::int64_t all) {
    return std::max<std::int64_t>(1, block == 0 ? all : std::min(block, all));
  };
  return {rows, columns, size(blocks.rows, rows), size(blocks.columns, columns)};
}

void check_description(const Quantization& how) {
  const bool has_code =
      how.dtype == DType::i8 || how.dtype == DType::u8 || how.dtype == DType::f8e4m3 || how.dtype == DType::f8e5m2;
  const bool has_scale = how.scale == DType::f32 || how.scale == DType::f16 || how.scale == DType::u8;
  if (has_code && has_scale) return;
  throw DTypeError("quantize: " + name(how) + "; expected codes in i8, u8, f8e4m3, f8e5m2 with scales in f32, f16, u8");
}

void check_codes(const char* operation, const Tensor& codes, const Quantization& how) {
  check_description(how);
  const auto begin = [&] { return std::string(operation) + ": " + describe(codes); };
  if (codes.dtype() != how.dtype) throw DTypeError(begin() + " is not " + name(how));
  if (!codes.scale()) throw DTypeError(begin() + " has no scales");
  const Tensor& scale = *codes.scale();
  const Shape expected = scale_shape(codes.shape(), how.blocks);
  if (scale.dtype() != how.scale || scale.shape() != expected) {
    throw ShapeError(begin() + " has scales " + describe(scale) + "; " + name(how) + " have " +
                     std::string(to_string(how.scale)) + " " + to_string(expected));
  }
  if (!codes.is_contiguous()) throw ShapeError(begin() + " is not dense: scales are those of the whole tensor");
}

void check_values(const char* operation, const Tensor& t) {
  const auto begin = [&] { return std::string(operation) + ": " + describe(t); };
  if (!t.defined()) throw ShapeError(begin());
  if (!is_floating(t.dtype())) throw DTypeError(begin() + "; expected a floating dtype");
  if (t.scale()) throw DTypeError(begin() + " has scales already");
}

kernels::QuantizeArgs arguments(const Addresses& at, const Tensor& values, const Tensor& codes,
                                const Quantization& how) {
  const BlockLayout layout = layout_of(codes.shape(), how.blocks);
  kernels::QuantizeArgs args;
  args.rows = layout.rows;
  args.columns = layout.columns;
  args.block_rows = layout.block_rows;
  args.block_columns = layout.block_columns;
  args.values = at(values);
  args.dtype = values.dtype();
  args.codes = at(codes);
  args.code_dtype = how.dtype;
  args.is_signed = how.is_signed;
  args.scales = at(*codes.scale());
  args.scale_dtype = how.scale;
  return args;
}

void wrote(const Tensor& t) {
  if (t.storage()) t.storage()->bump_version();
}

Tensor empty(const Shape& shape, const Quantization& how, memory::Device device, memory::Category category) {
  check_description(how);
  Tensor codes = Tensor::empty(shape, how.dtype, device, category);
  codes.set_scale(Tensor::empty(scale_shape(shape, how.blocks), how.scale, device, category));
  return codes;
}

}  // namespace

ScaleBlocks ScaleBlocks::per_channel(const Shape& shape, int axis) {
  const int at = normalize_axis("per_channel", axis, shape.rank());
  if (at == shape.rank() - 1) return {0, 1, false};
  if (at != 0) {
    throw ShapeError("per_channel: axis " + std::to_string(axis) + " of " + to_string(shape) +
                     "; expected the first or the last axis");
  }
  std::int64_t rows = 1;
  for (int i = 1; i < shape.rank() - 1; ++i) rows *= shape[i];
  return {std::max<std::int64_t>(1, rows), 0, false};
}

Shape scale_shape(const Shape& shape, const ScaleBlocks& blocks) {
  const BlockLayout layout = layout_of(shape, blocks);
  return {(layout.rows + layout.block_rows - 1) / layout.block_rows,
          (layout.columns + layout.block_columns - 1) / layout.block_columns};
}

std::size_t quantized_bytes(const Shape& shape, const Quantization& how) {
  return static_cast<std::size_t>(shape.elements()) * size_of(how.dtype) +
         static_cast<std::size_t>(scale_shape(shape, how.blocks).elements()) * size_of(how.scale);
}

Tensor quantize(const Tensor& t, const Quantization& how, memory::Category category) {
  check_values("quantize", t);
  const Tensor codes = empty(t.shape(), how, t.device(), category);
  quantize_into(codes, t, how);
  return codes;
}

void quantize_into(const Tensor& codes, const Tensor& t, const Quantization& how) {
  check_unrecorded("quantize", t, "fake_quantize()");
  check_values("quantize", t);
  check_codes("quantize", codes, how);
  if (codes.shape() != t.shape() || codes.device() != t.device()) {
    throw ShapeError("quantize: " + describe(t) + " into " + describe(codes));
  }
  const Tensor dense = contiguous(t);
  if (t.elements() > 0) {
    launch(t.device(), [&](const Addresses& at) {
      kernels::quantize_kernels(t.device()).quantize(arguments(at, dense, codes, how));
    });
  }
  wrote(codes);
  wrote(*codes.scale());
}

Tensor dequantize(const Tensor& codes, const Quantization& how, DType dtype, memory::Category category) {
  check_codes("dequantize", codes, how);
  if (!is_floating(dtype)) {
    throw DTypeError("dequantize: to " + std::string(to_string(dtype)) + "; expected a floating dtype");
  }
  Tensor t = Tensor::empty(codes.shape(), dtype, codes.device(), category);
  dequantize_into(t, codes, how);
  return t;
}

void dequantize_into(const Tensor& t, const Tensor& codes, const Quantization& how) {
  check_values("dequantize", t);
  check_codes("dequantize", codes, how);
  if (codes.shape() != t.shape() || codes.device() != t.device() || !t.is_contiguous()) {
    throw ShapeError("dequantize: " + describe(codes) + " into " + describe(t) +
                     "; expected a dense tensor of the same shape and device");
  }
  if (t.elements() > 0) {
    launch(t.device(), [&](const Addresses& at) {
      kernels::quantize_kernels(t.device()).dequantize(arguments(at, t, codes, how));
    });
  }
  wrote(t);
}

namespace {

bool is_scaled(DType dtype) noexcept { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2 || dtype == DType::i8; }

}  // namespace

bool can_pack(DType from, DType to) noexcept {
  return is_floating(from) && (is_floating(to) || to == DType::i8) && size_of(to) < size_of(from);
}

std::size_t packed_bytes(std::int64_t elements, DType dtype) {
  if (is_scaled(dtype)) return quantized_bytes({elements}, packing(dtype));
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

Tensor pack(const Tensor& t, DType dtype) {
  if (!can_pack(t.dtype(), dtype)) {
    throw DTypeError("pack: " + describe(t) + " to " + std::string(to_string(dtype)) +
                     "; expected a narrower one of f32, f16, bf16, f8e4m3, f8e5m2, i8");
  }
  return is_scaled(dtype) ? quantize(t, packing(dtype)) : to_dtype(t, dtype);
}

Tensor unpack(const Tensor& packed, DType dtype) {
  return packed.scale() ? dequantize(packed, packing(packed.dtype()), dtype) : to_dtype(packed, dtype);
}

}  // namespace thimble
