#pragma once
// What an optimizer hands to its kernel, whether its moments are kept in full (adam.h, sgd.h) or narrow (adam8.h).

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch/launch.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace thimble::optim {

/// Throws ValueError, under the optimizer's name, for options out of range. `is_plain`: momentum 0 is allowed.
void check_options(const char* optimizer, const AdamOptions& options);
void check_options(const char* optimizer, const SgdOptions& options, bool is_plain);

/// One parameter's update in the step that `optimizer` is in. Moments may be undefined; those of 8 bits need scales
/// besides.
kernels::AdamArgs adam_arguments(const Optimizer& optimizer, const AdamOptions& options, const Tensor& parameter,
                                 const Tensor& gradient, const Tensor& first, const Tensor& second,
                                 const Addresses& at);
kernels::SgdArgs sgd_arguments(const Optimizer& optimizer, const SgdOptions& options, const Tensor& parameter,
                               const Tensor& gradient, const Tensor& momentum, const Addresses& at);

}  // namespace thimble::optim
