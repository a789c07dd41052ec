#include <thimble/optim/moments.h>

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/optim/named.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {
namespace moments_detail {

std::int64_t blocks_of(std::int64_t elements) { return (elements + kernels::state_block - 1) / kernels::state_block; }

}  // namespace moments_detail

void check_format(const char* optimizer, const MomentFormat& format, const std::vector<Named>& parameters) {
  const std::string begin = std::string(optimizer) + ": ";
  if (format.dtype != DType::f32 && format.dtype != DType::bf16 && format.dtype != DType::u8) {
    throw ValueError(begin + "moments in " + std::string(to_string(format.dtype)) + "; expected f32, bf16 or u8");
  }
  if (format.smallest < 0) {
    throw ValueError(begin + "tensors of fewer than " + std::to_string(format.smallest) + " elements; expected >= 0");
  }
  for (const std::string& name : format.full) {
    const auto has = [&](const Named& p) { return is_named(p.name, name); };
    if (std::any_of(parameters.begin(), parameters.end(), has)) continue;
    throw ValueError(begin + "no parameter is named '" + name + "' or begins with '" + name + ".'");
  }
}

bool is_kept_full(const Named& parameter, const MomentFormat& format) {
  if (format.dtype == DType::f32 || parameter.tensor.dtype() == DType::f64) return true;
  if (parameter.whole_elements() < format.smallest) return true;
  return std::any_of(format.full.begin(), format.full.end(),
                     [&](const std::string& name) { return is_named(parameter.name, name); });
}

Moment make_moment(const Named& parameter, const MomentFormat& format, bool is_signed) {
  const Tensor& p = parameter.tensor;
  const PathScope path(p.storage() ? p.storage()->path() : PathId{0});
  const bool is_full = is_kept_full(parameter, format);
  if (is_full || format.dtype != DType::u8) {
    const DType full = p.dtype() == DType::f64 ? DType::f64 : DType::f32;
    return {zeros(p.shape(), is_full ? full : format.dtype, p.device(), Category::optimizer), Tensor()};
  }
  const double zero = is_signed ? 127 : 0;  // its code
  return {full(p.shape(), zero, DType::u8, p.device(), Category::optimizer),
          zeros({moments_detail::blocks_of(p.elements())}, DType::f32, p.device(), Category::optimizer)};
}

}  // namespace thimble::optim
