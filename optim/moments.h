#pragma once
// Storage of an optimizer's moments: in full, in bf16, or in blocks of 8-bit codes.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::optim {

struct Named;

struct MomentFormat {
  /// f32: in the parameter's compute type, f32 or f64. bf16: 2 bytes per value. u8: dynamic codes, blocks of 256 values
  /// with their largest magnitude in f32 (Dettmers et al. 2022, arXiv:2110.02861): 1 + 4 / 256 bytes.
  DType dtype = DType::f32;
  /// With bf16 and u8, parameters with fewer elements keep their moments in full; so do f64 parameters and the named
  /// ones: "wte", or "gpt.h0" for all that begin with "gpt.h0.". The paper lists embeddings among them.
  std::int64_t smallest = 4096;
  std::vector<std::string> full = {};
};

/// A moment of one parameter. Codes and scales are separate tensors, so that files and tiers treat them like any other.
struct Moment {
  Tensor values;  ///< u8, bf16, f32 or f64, of the parameter's shape
  Tensor scales;  ///< of u8: f32, one per 256 values; else undefined
};

/// Throws ValueError for a dtype that is not f32, bf16 or u8, or a negative size.
void check_format(const char* optimizer, const MomentFormat& format);

/// Whether a parameter's moments are in its compute type.
bool is_kept_full(const Named& parameter, const MomentFormat& format);

/// Zeros, counted as optimizer state under the parameter's path. Unsigned codes are for moments that are never
/// negative.
Moment make_moment(const Named& parameter, const MomentFormat& format, bool is_signed);

// ---- Updates of parameters narrower than f32. Arithmetic is in f32; the forms differ in how they store the result.
// Rounding loses a small step on a large bf16 number: 1 + 2^-9 is 1.

struct Named;

/// Parameters in f32 and f64 are updated in place, whatever the form.
enum class NarrowUpdate : std::uint8_t {
  /// To nearest: no state, and small steps are lost.
  rounded,
  /// Updates a master copy in f32; the parameter is its rounded value (Micikevicius et al. 2018, arXiv:1710.03740,
  /// section 3.1). 4 bytes per element.
  master,
  /// Only bf16: rounds up with the probability that makes the mean exact (Gupta et al. 2015, arXiv:1502.02551, section
  /// 3.2). No state. The random bits are Philox's at (the current generator's seed, update, parameter's name, element):
  /// the same for any plan, number of threads or order of updates.
  stochastic,
  /// Keeps the rounding error in a tensor of the parameter's dtype and adds it at the next update (Kahan 1965; Zamirai
  /// et al. 2020, arXiv:2010.06192, algorithm 3). 2 bytes per element.
  kahan
};

/// "rounded", "master", "stochastic", "kahan".
const char* to_string(NarrowUpdate update) noexcept;

/// The extra state of a parameter, made from its value and counted as optimizer state under its path: "master" or
/// "compensation"; undefined if it needs none. A master copy made before weights are loaded does not follow them.
/// Throws DTypeError for a narrow parameter that is not bf16 with `stochastic`, or neither bf16 nor f16 with `kahan`.
Named make_extra(NarrowUpdate update, const Named& parameter);

/// A parameter's random site for `purpose` in update `step`, or period of updates: depends on the current generator's
/// seed, `step`, and the parameter's name, so it is the same for any plan, threads or order.
RandomSite random_site(const Named& parameter, std::string_view purpose, std::uint64_t step);

/// A kernel's arguments for a parameter and its extra, in the update with this number.
kernels::NarrowArgs narrow_arguments(NarrowUpdate update, const Named& parameter, const Tensor& extra,
                                     std::int64_t step_count, const Addresses& at);

}  // namespace thimble::optim
