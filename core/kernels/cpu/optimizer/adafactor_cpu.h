#pragma once
// CPU Adafactor kernels.

#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

void adafactor_on_cpu(const AdafactorArgs& args);

}  // namespace thimble::kernels
