#pragma once
// Numbers that training state cannot have, although shape and dtype are right: a file with them is refused before the
// first value changes.
//
//   tensor                                                         dtype   allowed
//   fp8_amax                                                       f32     finite, >= 0
//   fp8_scale                                                      f32     0 (none yet), 2^-60 to 2^100
//   (core/ops/quant/fp8.h) fp8_steps                                                      i64     >= 0
//   first_moment_scale, second_moment_scale, momentum_scale        f32     finite, >= 0
//   second_moment, row_moment, column_moment                       float   finite, >= 0
//
// The name is the last dotted part. Tensors of another dtype are not checked, nor those of FP8's names whose first size
// is not 3, nor moments that are not under "optimizer.".

#include <string>

#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {

/// If there is a rule for `target`, which check_file_tensor() has passed, reads the values in pieces through `room`, as
/// they would be in its dtype. Throws ValueError, naming the tensor, the index, its value and the allowed ones. Targets
/// on a dry device get no values and are skipped.
void check_state_numbers(const std::string& operation, const SafetensorsReader& file, const SafetensorsEntry& entry,
                         const NamedTensor& target, FileStaging& room);

}  // namespace thimble::nn
