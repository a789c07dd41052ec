#include <thimble/optim/narrow_state.h>

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer8.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::optim {
namespace narrow_state_detail {

bool is_named(const std::string& parameter, const std::string& name) {
  return parameter == name || parameter.starts_with(name + ".");
}

std::int64_t blocks_of(std::int64_t elements) { return (elements + kernels::state_block - 1) / kernels::state_block; }

}  // namespace narrow_state_detail

void check_narrow_state(const char* optimizer, const NarrowState& state, const std::vector<Named>& parameters) {
  const std::string begin = std::string(optimizer) + ": ";
  if (state.dtype != DType::u8 && state.dtype != DType::bf16) {
    throw ValueError(begin + "state in " + std::string(to_string(state.dtype)) + "; allowed are u8 and bf16");
  }
  if (state.smallest < 0) {
    throw ValueError(begin + "tensors of fewer than " + std::to_string(state.smallest) + " elements; allowed: >= 0");
  }
  for (const std::string& name : state.full) {
    const auto has = [&](const Named& p) { return narrow_state_detail::is_named(p.name, name); };
    if (std::any_of(parameters.begin(), parameters.end(), has)) continue;
    throw ValueError(begin + "no parameter is named '" + name + "' or begins with '" + name + ".'");
  }
}

bool is_kept_full(const Named& parameter, const NarrowState& state) {
  if (parameter.tensor.elements() < state.smallest || parameter.tensor.dtype() == DType::f64) return true;
  return std::any_of(state.full.begin(), state.full.end(),
                     [&](const std::string& name) { return narrow_state_detail::is_named(parameter.name, name); });
}

Moment make_moment(const Named& parameter, const NarrowState& state, bool is_signed) {
  const Tensor& p = parameter.tensor;
  if (is_kept_full(parameter, state)) return {make_state(p), Tensor()};
  const PathScope path(p.storage() ? p.storage()->path() : PathId{0});
  if (state.dtype != DType::u8) return {zeros(p.shape(), state.dtype, p.device(), Category::optimizer), Tensor()};
  const double zero = is_signed ? 127 : 0;  // its code
  return {full(p.shape(), zero, DType::u8, p.device(), Category::optimizer),
          zeros({narrow_state_detail::blocks_of(p.elements())}, DType::f32, p.device(), Category::optimizer)};
}

std::size_t moment_bytes(const Named& parameter, const NarrowState& state) {
  const auto n = static_cast<std::size_t>(parameter.tensor.elements());
  if (is_kept_full(parameter, state)) return n * (parameter.tensor.dtype() == DType::f64 ? 8 : 4);
  if (state.dtype != DType::u8) return n * size_of(state.dtype);
  return n + 4 * static_cast<std::size_t>(narrow_state_detail::blocks_of(parameter.tensor.elements()));
}

}  // namespace thimble::optim
