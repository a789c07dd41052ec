#include <thimble/optim/narrow.h>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {
namespace narrow_detail {

bool is_narrow(const Tensor& t) { return is_floating(t.dtype()) && size_of(t.dtype()) < size_of(DType::f32); }

// FNV-1a. Dropout and initial values draw under module paths; this is no path's hash but that of a name and a purpose.
std::uint32_t site_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&](const char c) { hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u; };
  for (const char c : name) add(c);
  for (const char c : {'#', 'r', 'o', 'u', 'n', 'd'}) add(c);
  return hash;
}

}  // namespace narrow_detail

const char* to_string(NarrowUpdate update) noexcept {
  constexpr const char* names[] = {"rounded", "master", "stochastic", "kahan"};
  return names[static_cast<int>(update)];
}

void NarrowUpdateState::add(const Named& parameter) {
  const Tensor& p = parameter.tensor;
  Tensor extra;
  if (narrow_detail::is_narrow(p)) {
    const bool is_16_bit = p.dtype() == DType::bf16 || p.dtype() == DType::f16;
    if (update_ == NarrowUpdate::stochastic && p.dtype() != DType::bf16) {
      throw DTypeError("optimizer: " + parameter.name + " is " + describe(p) +
                       "; stochastic rounding is to bf16, which alone is allowed");
    }
    if (update_ == NarrowUpdate::kahan && !is_16_bit) {
      throw DTypeError("optimizer: " + parameter.name + " is " + describe(p) +
                       "; with Kahan's sum bf16 and f16 are allowed");
    }
    const PathScope path(p.storage() ? p.storage()->path() : PathId{0});
    if (update_ == NarrowUpdate::master) {
      extra = Tensor::empty(p.shape(), DType::f32, p.device(), Category::optimizer);
      copy_into(extra, p.detach());
    } else if (update_ == NarrowUpdate::kahan) {
      extra = zeros(p.shape(), p.dtype(), p.device(), Category::optimizer);
    }
  }
  has_.push_back(extra.defined() ? 1 : 0);
  extra_.push_back(std::move(extra));
}

Tensor* NarrowUpdateState::state_of(std::size_t index) { return has_[index] != 0 ? &extra_[index] : nullptr; }

void NarrowUpdateState::list(std::size_t index, const std::string& parameter, std::vector<Named>& list) const {
  const bool is_master = update_ == NarrowUpdate::master;
  if (has_[index] != 0) list.push_back({parameter + (is_master ? ".master" : ".compensation"), extra_[index]});
}

kernels::NarrowArgs NarrowUpdateState::arguments(std::size_t index, const Tensor& parameter, const std::string& name,
                                                 std::int64_t step_count, const Addresses& at) const {
  kernels::NarrowArgs args;
  if (!narrow_detail::is_narrow(parameter)) return args;
  switch (update_) {
    case NarrowUpdate::rounded:
      break;
    case NarrowUpdate::master:
      args.master = at.as<float>(extra_[index]);
      break;
    case NarrowUpdate::stochastic:
      args.is_stochastic = true;
      args.site.seed = current_generator().seed();
      args.site.step = static_cast<std::uint64_t>(step_count);
      args.site.site = narrow_detail::site_of(name);
      break;
    case NarrowUpdate::kahan:
      args.compensation = at(extra_[index]);
      break;
  }
  return args;
}

void NarrowUpdateState::bump_version(std::size_t index) const {
  if (extra_[index].defined()) extra_[index].storage()->bump_version();
}

}  // namespace thimble::optim
