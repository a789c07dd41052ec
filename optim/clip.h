#pragma once
// Clipping by the global norm (Pascanu et al. 2013, algorithm 1).

#include <vector>

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), with the norm of all gradients as one vector. Returns the
/// sums of squares per gradient (f64, on the device) without waiting for the device. Throws ValueError if max_norm is
/// not positive, or a parameter is listed twice.
Tensor clip_grad_norm(const std::vector<Named>& parameters, double max_norm);

/// Scales gradients given the sums of squares of all gradients, including other ranks'.
void clip_gradients(const std::vector<Named>& parameters, const Tensor& square_sums, double max_norm);

/// The sums of squares of all existing gradients, one f64 each, on the device; undefined without gradients.
Tensor gradient_square_sums(const std::vector<Named>& parameters);

/// The square root of the sum of gradient_square_sums' or clip_grad_norm's result. Throws DeviceError on a dry device.
double norm_of(const Tensor& square_sums);

}  // namespace thimble::optim
