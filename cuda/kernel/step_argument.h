#pragma once
// An argument of a kernel that changes from step to step: a value, or, in a captured step, an address in device memory
// (core/kernels/shared/step_numbers.h).

#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/shared/step_numbers.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

template <class T>
struct StepArgument {
  T value;
  const T* place;  // null to use `value`
  THIMBLE_DEVICE const T& get() const { return place ? *place : value; }
};

/// The result of make(args), recomputed for every replay with the arguments of its step.
template <class Args, class Make>
auto step_argument(const Args& args, Make make) {
  using T = decltype(make(args));
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kernels::StepBlock::alignment);
  StepArgument<T> made{make(args), nullptr};
  if (kernels::StepBlock* const block = kernels::current_step_block()) {
    made.place = static_cast<const T*>(block->add(
        sizeof(T), [args, make](const kernels::StepNumbers& recorded, const kernels::StepNumbers& now, std::byte* to) {
          Args then = args;
          kernels::go_to(then, recorded, now);
          const T value = make(then);
          std::memcpy(to, &value, sizeof value);
        }));
  }
  return made;
}

/// For arguments that kernels take unchanged.
inline auto step_argument(const RandomSite& site) {
  return step_argument(site, [](const RandomSite& s) { return s; });
}

}  // namespace thimble::cuda_kernels
