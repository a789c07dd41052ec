#include <thimble/optim/moments.h>

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {
namespace {

std::int64_t block_count(std::int64_t elements) { return (elements + kernels::state_block - 1) / kernels::state_block; }

}  // namespace

void check_format(const char* optimizer, const MomentFormat& format) {
  const std::string begin = std::string(optimizer) + ": ";
  if (format.dtype != DType::f32 && format.dtype != DType::bf16 && format.dtype != DType::u8) {
    throw ValueError(begin + "moments in " + std::string(to_string(format.dtype)) + "; expected f32, bf16 or u8");
  }
  if (format.smallest < 0) {
    throw ValueError(begin + "tensors of fewer than " + std::to_string(format.smallest) + " elements; expected >= 0");
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
    return {zeros(p.shape(), is_full ? full : format.dtype, p.device(), memory::Category::optimizer), Tensor()};
  }
  const double zero = is_signed ? 127 : 0;  // the code of 0
  return {full(p.shape(), zero, DType::u8, p.device(), memory::Category::optimizer),
          zeros({block_count(p.elements())}, DType::f32, p.device(), memory::Category::optimizer)};
}

namespace {

bool is_narrow(const Tensor& t) { return is_floating(t.dtype()) && size_of(t.dtype()) < size_of(DType::f32); }

}  // namespace

const char* to_string(NarrowUpdate update) noexcept {
  constexpr const char* names[] = {"rounded", "master", "stochastic", "kahan"};
  return names[static_cast<int>(update)];
}

// FNV-1a of name and purpose, unlike the hashes of paths that dropout and initial values use.
RandomSite random_site(const Named& parameter, std::string_view purpose, std::uint64_t step) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  };
  add(parameter.name), add("#"), add(purpose);
  return {.seed = current_generator().seed(), .step = step, .site = hash};
}

Named make_extra(NarrowUpdate update, const Named& parameter) {
  const Tensor& p = parameter.tensor;
  if (!is_narrow(p)) return {};
  const bool is_16_bit = p.dtype() == DType::bf16 || p.dtype() == DType::f16;
  if (update == NarrowUpdate::stochastic && p.dtype() != DType::bf16) {
    throw DTypeError("optimizer: " + parameter.name + " is " + describe(p) + "; stochastic rounding expects bf16");
  }
  if (update == NarrowUpdate::kahan && !is_16_bit) {
    throw DTypeError("optimizer: " + parameter.name + " is " + describe(p) + "; Kahan's sum expects bf16 or f16");
  }
  const PathScope path(p.storage() ? p.storage()->path() : PathId{0});
  if (update == NarrowUpdate::kahan) {
    return {"compensation", zeros(p.shape(), p.dtype(), p.device(), memory::Category::optimizer)};
  }
  if (update != NarrowUpdate::master) return {};
  const Tensor master = Tensor::empty(p.shape(), DType::f32, p.device(), memory::Category::optimizer);
  copy_into(master, p.detach());
  return {"master", master};
}

kernels::NarrowArgs narrow_arguments(NarrowUpdate update, const Named& parameter, const Tensor& extra,
                                     std::int64_t step_count, const Addresses& at) {
  kernels::NarrowArgs args;
  if (!is_narrow(parameter.tensor)) return args;
  switch (update) {
    case NarrowUpdate::rounded:
      break;
    case NarrowUpdate::master:
      args.master = at.as<float>(extra);
      break;
    case NarrowUpdate::stochastic:
      args.is_stochastic = true;
      args.site = random_site(parameter, "round", static_cast<std::uint64_t>(step_count));
      args.first_element = parameter.first_element;
      break;
    case NarrowUpdate::kahan:
      args.compensation = at(extra);
      break;
  }
  return args;
}

}  // namespace thimble::optim
