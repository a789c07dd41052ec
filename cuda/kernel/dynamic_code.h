#pragma once
// The dynamic codes on a CUDA device: its copy of their tables.

#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

static THIMBLE_DEVICE_GLOBAL const quant::DynamicTable signed_codes = quant::make_dynamic_table(true);
static THIMBLE_DEVICE_GLOBAL const quant::DynamicTable unsigned_codes = quant::make_dynamic_table(false);

/// Makes a code in device code: only dynamic codes need a table.
template <class Code>
struct MakeCode {
  THIMBLE_DEVICE static Code make() { return {}; }
};
template <bool is_signed>
struct MakeCode<quant::DynamicCode<is_signed>> {
  THIMBLE_DEVICE static quant::DynamicCode<is_signed> make() { return {is_signed ? &signed_codes : &unsigned_codes}; }
};

}  // namespace thimble::cuda_kernels
