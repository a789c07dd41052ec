#pragma once
// How parameters narrower than f32 are updated. An update is made in f32 either way; what differs is what is left of it
// when it is stored. A small step on a large bf16 number is rounded away: 1 + 2^-9 is 1.

#include <cstdint>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::optim {

struct Named;

/// Parameters in f32 and f64 are updated where they lie, whatever is asked for.
enum class NarrowUpdate : std::uint8_t {
  /// To nearest: no state, and small steps are lost.
  rounded,
  /// A master copy in f32 is updated, and the parameter is that copy, rounded (Micikevicius et al. 2018,
  /// arXiv:1710.03740, section 3.1). 4 bytes per element.
  master,
  /// bf16 alone: up with the probability that makes the mean right (Gupta et al. 2015, arXiv:1502.02551, section 3.2).
  /// No state. The random bits are Philox's at (seed of the generator in force, update, parameter's name, element): the
  /// same whatever the plan, the number of threads or the order of updates.
  stochastic,
  /// What rounding took is kept in a tensor of the parameter's dtype and added at the next update (Kahan 1965;
  /// Zamirai et al. 2020, arXiv:2010.06192, algorithm 3). 2 bytes per element.
  kahan
};

/// "rounded", "master", "stochastic", "kahan".
const char* to_string(NarrowUpdate update) noexcept;

/// What a parameter needs besides, from its value, counted as optimizer state under its path: "master" or
/// "compensation"; undefined where it needs nothing. A master copy made before weights are loaded is not theirs. Throws
/// DTypeError for a narrow parameter that is not bf16 with `stochastic`, or neither bf16 nor f16 with `kahan`.
Named make_extra(NarrowUpdate update, const Named& parameter);

/// Where a parameter draws random numbers for `purpose` in update `step`, or period of updates: by the seed of the
/// generator in force, `step`, and the parameter's name, so the same whatever the plan, the threads or the order.
RandomSite random_site(const Named& parameter, std::string_view purpose, std::uint64_t step);

/// A kernel's arguments for a parameter and its extra, in the update with this number.
kernels::NarrowArgs narrow_arguments(NarrowUpdate update, const Named& parameter, const Tensor& extra,
                                     std::int64_t step_count, const Addresses& at);

}  // namespace thimble::optim
