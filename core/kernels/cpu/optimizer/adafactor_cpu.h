#pragma once
// One entry of the CPU's table of optimizer.h, in a file of its own.

#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

void adafactor_on_cpu(const AdafactorArgs& args);

}  // namespace thimble::kernels
