#include <thimble/optim/narrow.h>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {
namespace narrow_detail {

bool is_narrow(const Tensor& t) { return is_floating(t.dtype()) && size_of(t.dtype()) < size_of(DType::f32); }

}  // namespace narrow_detail

const char* to_string(NarrowUpdate update) noexcept {
  constexpr const char* names[] = {"rounded", "master", "stochastic", "kahan"};
  return names[static_cast<int>(update)];
}

// FNV-1a of a name and a purpose. Differs from the paths' hashes, which dropout and initial values use.
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
  if (!narrow_detail::is_narrow(p)) return {};
  const bool is_16_bit = p.dtype() == DType::bf16 || p.dtype() == DType::f16;
  if (update == NarrowUpdate::stochastic && p.dtype() != DType::bf16) {
    throw DTypeError("optimizer: " + parameter.name + " is " + describe(p) + "; stochastic rounding expects bf16");
  }
  if (update == NarrowUpdate::kahan && !is_16_bit) {
    throw DTypeError("optimizer: " + parameter.name + " is " + describe(p) + "; Kahan's sum expects bf16 or f16");
  }
  const PathScope path(p.storage() ? p.storage()->path() : PathId{0});
  if (update == NarrowUpdate::kahan) {
    return {"compensation", zeros(p.shape(), p.dtype(), p.device(), Category::optimizer)};
  }
  if (update != NarrowUpdate::master) return {};
  const Tensor master = Tensor::empty(p.shape(), DType::f32, p.device(), Category::optimizer);
  copy_into(master, p.detach());
  return {"master", master};
}

kernels::NarrowArgs narrow_arguments(NarrowUpdate update, const Named& parameter, const Tensor& extra,
                                     std::int64_t step_count, const Addresses& at) {
  kernels::NarrowArgs args;
  if (!narrow_detail::is_narrow(parameter.tensor)) return args;
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
