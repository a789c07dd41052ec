#pragma once
// The members of reduce_cpu that are in separate files.

#include <thimble/core/kernels/reduce.h>

namespace thimble::kernels {

void extreme_on_cpu(const ExtremeArgs& args);
void place_on_cpu(const PlaceArgs& args);

}  // namespace thimble::kernels
