#include <thimble/core/ops/quant/fp8.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/quantize.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/fp8_linear.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble {
namespace {

void check(const Tensor& matrix, const Fp8Use& use, Fp8Role role) {
  const auto begin = [&] { return "fp8: " + describe(matrix); };
  if (matrix.rank() != 2 || !matrix.is_contiguous()) throw ShapeError(begin() + "; expected a dense matrix");
  const DType dtype = matrix.dtype();
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    throw DTypeError(begin() + " to " + std::string(to_string(use.dtype(role))) + "; expected f32, f16, bf16");
  }
  if (use.dtype(role) != DType::f8e4m3 && use.dtype(role) != DType::f8e5m2) {
    throw DTypeError(begin() + " to " + std::string(to_string(use.dtype(role))) + "; expected f8e4m3, f8e5m2");
  }
}

// Number of rows that share a block's scale.
std::int64_t rows_of_block(Fp8Role role) { return role == Fp8Role::weight ? fp8_block : 1; }
std::int64_t blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

/// The later update of an operand's row of the state by its amax, in f64.
tape::StateUpdate amax_update(const Fp8Use& use, Fp8Role role) {
  tape::StateUpdate update;
  update.state = {use.state.amax, use.state.scale, use.state.steps};
  update.number = use.format.margin;
  update.step = use.step;
  update.dtype = use.dtype(role);
  update.row = static_cast<std::int64_t>(role);
  update.apply = [](const tape::StateUpdate& u) {
    const Tensor amax = writable_state(u.state[0]), next = writable_state(u.state[1]),
                 steps = writable_state(u.state[2]);
    const Tensor found = to_dtype(u.found, DType::f32);
    const Tensor scale = Tensor::empty({1}, DType::f32, found.device());
    launch(found.device(), [&](const Addresses& at) {
      kernels::Fp8ScaleArgs args;
      args.values = at(found);
      args.count = 1;
      args.dtype = DType::f32;
      args.code_dtype = u.dtype;
      args.margin = static_cast<int>(u.number);
      args.scale = at.as<float>(scale);
      args.length = amax.size(1);
      args.history = at.as<float>(amax) + u.row * args.length;
      args.next_scale = at.as<float>(next) + u.row;
      args.steps = at.as<std::int64_t>(steps) + 2 * u.row;
      args.step = u.step;
      kernels::fp8_kernels(found.device()).scale(args);
    });
    for (const Tensor* t : {&amax, &next, &steps}) t->storage()->bump_version();
  };
  return update;
}

Tensor scale_of_tensor(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known) {
  const memory::Device device = matrix.device();
  const auto row = static_cast<std::int64_t>(role);
  const bool records = use.records && use.state.defined() && !context().is_recomputing;
  tape::Transaction* const later = records ? deferring_transaction() : nullptr;
  Fp8State state;
  if (known.defined() && (known.dtype() != DType::f32 || known.shape() != Shape{3} || !known.is_contiguous())) {
    throw DTypeError("fp8: known scales are " + describe(known) + "; expected f32 (3)");
  }
  check_one_device("fp8", matrix, known);
  if (records) {
    check_fp8_state("fp8", use.state, device);
    // If the state changes later, a temporary state takes this step's amax; infinity stays if amax is not finite.
    state = later != nullptr ? Fp8State{full({3, 1}, std::numeric_limits<double>::infinity(), DType::f32, device),
                                        zeros({3}, DType::f32, device), zeros({3, 2}, DType::i64, device)}
                             : Fp8State{writable_state(use.state.amax), writable_state(use.state.scale),
                                        writable_state(use.state.steps)};
  }
  const Tensor scale = Tensor::empty({1}, DType::f32, device);
  launch(device, [&](const Addresses& at) {
    kernels::Fp8ScaleArgs args;
    args.values = at(matrix);
    args.count = matrix.elements();
    args.dtype = matrix.dtype();
    args.code_dtype = use.dtype(role);
    args.margin = use.format.margin;
    args.known = known.defined() ? at.as<float>(known) + row : nullptr;
    args.scale = at.as<float>(scale);
    if (records) {
      args.length = state.amax.size(1);
      args.history = at.as<float>(state.amax) + row * args.length;
      args.next_scale = at.as<float>(state.scale) + row;
      args.steps = at.as<std::int64_t>(state.steps) + 2 * row;
      args.step = use.step;
    }
    kernels::fp8_kernels(device).scale(args);
  });
  if (records) {
    for (const Tensor* t : {&state.amax, &state.scale, &state.steps}) t->storage()->bump_version();
  }
  if (later != nullptr) {
    tape::StateUpdate update = amax_update(use, role);
    update.found = Tensor::empty({1}, DType::f64, device, memory::Category::communication);
    copy_into(update.found, state.amax.window({1}, {1}, row));
    later->defer(std::move(update));
  }
  return scale;
}

void cast_into(const Tensor& matrix, DType code_dtype, const Tensor& scale, const Tensor& codes,
               const Tensor& decoded) {
  launch(matrix.device(), [&](const Addresses& at) {
    kernels::Fp8CastArgs args;
    args.values = at(matrix);
    args.count = matrix.elements();
    args.dtype = matrix.dtype();
    args.code_dtype = code_dtype;
    args.scale = at.as<float>(scale);
    args.codes = at.as<std::uint8_t>(codes);
    args.decoded = at.as<bf16>(decoded);
    kernels::fp8_kernels(matrix.device()).cast(args);
  });
}

Fp8Operand encode_blocks(const Tensor& matrix, Fp8Role role, DType dtype, memory::Category category) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1), block_rows = rows_of_block(role);
  const Tensor codes = Tensor::empty(matrix.shape(), dtype, matrix.device(), category);
  const Tensor scale =
      Tensor::empty({blocks(rows, block_rows), blocks(columns, fp8_block)}, DType::u8, matrix.device(), category);
  if (matrix.elements() == 0) return {codes, scale};
  launch(matrix.device(), [&](const Addresses& at) {
    kernels::QuantizeArgs args;
    args.rows = rows;
    args.columns = columns;
    args.block_rows = std::min(block_rows, rows);
    args.block_columns = std::min(fp8_block, columns);
    args.values = at(matrix);
    args.dtype = matrix.dtype();
    args.codes = at(codes);
    args.code_dtype = dtype;
    args.scales = at(scale);
    args.scale_dtype = DType::u8;
    kernels::quantize_kernels(matrix.device()).quantize(args);
  });
  return {codes, scale};
}

Fp8Sides sides_of_blocks(const Tensor& matrix, Fp8Role role, DType dtype, bool plain, bool turned) {
  if (turned && role != Fp8Role::weight) {
    throw ValueError("fp8: " + describe(matrix) + " transposed in blocks; only blocks of weights are square");
  }
  Fp8Operand codes = encode_blocks(matrix, role, dtype, memory::Category::workspace);
  Fp8Sides sides;
  sides.scale = codes.scale;
  if (turned) {
    sides.turned = Tensor::empty({matrix.size(1), blocks(matrix.size(0), fp8_multiple) * fp8_multiple}, dtype,
                                 matrix.device(), memory::Category::workspace);
    fp8_turn_into(sides.turned, codes.values, 0, matrix.size(1));
  }
  if (plain) sides.plain = codes.values;
  return sides;
}

// The matrix itself if it is bf16 and reusable, else a new tensor.
Tensor place_of_decoded(const Tensor& matrix) {
  if (matrix.dtype() == DType::bf16 && is_reusable(matrix)) return matrix;
  return Tensor::empty(matrix.shape(), DType::bf16, matrix.device(), memory::Category::workspace);
}

}  // namespace

Fp8State make_fp8_state(std::int64_t history, memory::Device device) {
  if (history < 1 || history > fp8_history_max) {
    throw ValueError("fp8: a history of " + std::to_string(history) + " steps; expected 1 to " +
                     std::to_string(fp8_history_max));
  }
  return {zeros({3, history}, DType::f32, device), zeros({3}, DType::f32, device), zeros({3, 2}, DType::i64, device)};
}

void check_fp8_state(const char* operation, const Fp8State& state, memory::Device device) {
  const auto check = [&](const Tensor& t, const char* what, DType dtype, bool fits, const char* shape) {
    const auto begin = [&] { return std::string(operation) + ": the state's " + what + " is " + describe(t); };
    if (!t.defined() || !fits || !t.is_contiguous()) throw ShapeError(begin() + "; expected dense " + shape);
    if (t.dtype() != dtype) throw DTypeError(begin() + "; expected " + std::string(to_string(dtype)));
    if (t.device() != device) throw DeviceError(begin() + "; expected " + to_string(device));
  };
  const Tensor &amax = state.amax, &scale = state.scale, &steps = state.steps;
  const bool is_ring =
      amax.defined() && amax.rank() == 2 && amax.size(0) == 3 && amax.size(1) >= 1 && amax.size(1) <= fp8_history_max;
  check(amax, "amax", DType::f32, is_ring, "(3, 1 to 1024)");
  check(scale, "scale", DType::f32, scale.defined() && scale.shape() == Shape{3}, "(3)");
  check(steps, "steps", DType::i64, steps.defined() && steps.shape() == Shape{3, 2}, "(3, 2)");
}

Fp8Operand fp8_encode(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known) {
  check(matrix, use, role);
  const DType dtype = use.dtype(role);
  if (use.format.scaling == Fp8Scaling::block) return encode_blocks(matrix, role, dtype, memory::Category::temporary);
  const Tensor scale = scale_of_tensor(matrix, role, use, known);
  const Tensor codes = Tensor::empty(matrix.shape(), dtype, matrix.device());
  cast_into(matrix, dtype, scale, codes, Tensor());
  return {codes, scale};
}

Fp8Operand fp8_round(Tensor matrix, Fp8Role role, const Fp8Use& use, const Tensor& known) {
  if (use.format.scaling == Fp8Scaling::block) {
    const Fp8Operand codes = fp8_encode(matrix, role, use, known);
    return {fp8_decode(std::move(matrix), codes), Tensor()};
  }
  check(matrix, use, role);
  const Tensor scale = scale_of_tensor(matrix, role, use, known);
  const Tensor decoded = place_of_decoded(matrix);
  cast_into(matrix, use.dtype(role), scale, Tensor(), decoded);
  if (decoded.storage()) decoded.storage()->bump_version();
  return {decoded, scale};
}

Tensor fp8_decode(Tensor matrix, const Fp8Operand& codes) {
  const Tensor decoded = place_of_decoded(matrix);
  fp8_decode_into(decoded, codes, 0, 0);
  return decoded;
}

Fp8Sides fp8_encode_sides(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known, bool plain,
                          bool turned) {
  check(matrix, use, role);
  const memory::Device device = matrix.device();
  if (!device.is_cuda()) {
    throw DeviceError("fp8: codes of " + describe(matrix) + " for FP8 units; expected a CUDA device");
  }
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const DType dtype = use.dtype(role);
  Fp8Sides sides;
  if (use.format.scaling == Fp8Scaling::block) return sides_of_blocks(matrix, role, dtype, plain, turned);
  sides.scale = scale_of_tensor(matrix, role, use, known);
  if (plain) sides.plain = Tensor::empty({rows, columns}, dtype, device, memory::Category::workspace);
  if (!turned) {
    cast_into(matrix, dtype, sides.scale, sides.plain, Tensor());
    return sides;
  }
  const std::int64_t padded = blocks(rows, fp8_multiple) * fp8_multiple;
  sides.turned = Tensor::empty({columns, padded}, dtype, device, memory::Category::workspace);
  launch(device, [&](const Addresses& at) {
    kernels::Fp8TurnArgs args;
    args.values = at(matrix);
    args.dtype = matrix.dtype();
    args.rows = rows;
    args.columns = args.row_stride = columns;
    args.code_dtype = dtype;
    args.scale = at.as<float>(sides.scale);
    args.codes = at.as<std::uint8_t>(sides.plain);
    args.turned = at.as<std::uint8_t>(sides.turned);
    args.turned_stride = padded;
    kernels::fp8_kernels(device).turn(args);
  });
  return sides;
}

void fp8_decode_into(const Tensor& to, const Fp8Operand& codes, std::int64_t row, std::int64_t column) {
  const Tensor& all = codes.values;
  const bool fits = to.rank() == 2 && to.is_contiguous() && to.dtype() == DType::bf16 && row >= 0 && column >= 0 &&
                    row + to.size(0) <= all.size(0) && column + to.size(1) <= all.size(1);
  if (!fits) {
    throw ShapeError("fp8: codes " + describe(all) + " from (" + std::to_string(row) + ", " + std::to_string(column) +
                     ") into " + describe(to) + "; expected a dense bf16 window");
  }
  if (to.elements() == 0) return;
  launch(to.device(), [&](const Addresses& at) {
    kernels::Fp8DecodeArgs args;
    args.codes = at.as<std::uint8_t>(codes.values);
    args.code_dtype = codes.values.dtype();
    args.row_stride = codes.values.size(1);
    args.row = row;
    args.column = column;
    args.rows = to.size(0);
    args.columns = to.size(1);
    if (codes.scale.dtype() == DType::u8) {
      args.scales = at.as<std::uint8_t>(codes.scale);
      args.blocks_across = codes.scale.size(1);
      args.block_rows = codes.scale.size(0) == codes.values.size(0) ? 1 : fp8_block;
      args.block_columns = fp8_block;
    }
    args.decoded = at.as<bf16>(to);
    kernels::fp8_kernels(to.device()).decode(args);
  });
  to.storage()->bump_version();
}

}  // namespace thimble
