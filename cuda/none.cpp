// Definitions for a build without CUDA: one line per kernel family, and no memory of a GPU.

#include <thimble/core/error.h>
#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/copy.h>
#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/kernels/elementwise.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/gather.h>
#include <thimble/core/kernels/lines.h>
#include <thimble/core/kernels/matmul.h>
#include <thimble/core/kernels/norm.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/pool.h>
#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/quant_conv.h>
#include <thimble/core/kernels/quantize.h>
#include <thimble/core/kernels/random.h>
#include <thimble/core/kernels/recurrent.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/kernels/rotary.h>
#include <thimble/core/kernels/softmax.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/memory/arena/backing.h>

namespace thimble {
namespace kernels {

const DeviceRuntime* const device_runtime_cuda = nullptr;
const ElementwiseCuda elementwise_cuda = nullptr;
const AttentionKernels* const attention_cuda = nullptr;
const CopyKernels* const copy_cuda = nullptr;
const Fp8Kernels* const fp8_cuda = nullptr;
const GatherKernels* const gather_cuda = nullptr;
const LineKernels* const line_cuda = nullptr;
const MatmulKernels* const matmul_cuda = nullptr;
const Nf4Kernels* const nf4_cuda = nullptr;
const NormKernels* const norm_cuda = nullptr;
const OptimizerKernels* const optimizer_cuda = nullptr;
const PoolKernels* const pool_cuda = nullptr;
const Q8Kernels* const q8_cuda = nullptr;
const QuantCodeKernels* const quant_codes_cuda = nullptr;
const QuantConvKernels* const quant_conv_cuda = nullptr;
const QuantizeKernels* const quantize_cuda = nullptr;
const RecurrentKernels* const recurrent_cuda = nullptr;
const ReduceKernels* const reduce_cuda = nullptr;
const RandomKernels* const random_cuda = nullptr;
const RotaryKernels* const rotary_cuda = nullptr;
const SoftmaxKernels* const softmax_cuda = nullptr;
const CrossEntropyKernels* const cross_entropy_cuda = nullptr;

}  // namespace kernels

std::unique_ptr<memory::Backing> memory::make_cuda_backing(memory::Device device) {
  throw DeviceError(to_string(device) + ": this build has no CUDA memory, available are cpu, dry(cpu) and dry(cuda)");
}

}  // namespace thimble
