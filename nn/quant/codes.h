#pragma once
// Tensors of 8-bit codes and the steps between them: what QuantizedModel is made of. Not recorded on a tape. On a dry
// device they allocate what they allocate on the real one. On a CUDA device they give the CPU's bits; weights are
// packed by the host. All throw DeviceError where tensors are on several devices or this build has no kernels,
// DTypeError and ShapeError.

#include <vector>

#include <thimble/core/kernels/quant_conv.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/nn/quant/program.h>

namespace thimble::nn::quant {

/// A u8 tensor and what its codes stand for.
struct Codes {
  Tensor tensor;
  CodeScale scale;
};

/// A layer's weights, ready to run. Bytes: those of the codes, filled up to whole groups and blocks
/// (kernels/quant_conv.h) or, on a CUDA device, rows (kernels/quant_rows.h), and 12 for each filter.
struct PackedWeights {
  Shape shape;  ///< (O, KH, KW, I) or (O, I)
  StepWindow window;
  Tensor codes;         ///< packed
  Tensor weight_scale;  ///< (O) f32
  Tensor bias;   ///< (O, filled up) i32, in units of input scale x weight scale, the input's zero point taken off
  Tensor scale;  ///< (O, filled up) f32: from such units to the output's codes, or to f32
};

/// Numbers (f32) to codes. Throws ValueError when one is not finite, which a CUDA device is asked for: the host waits.
Codes to_codes(const Tensor& x, const CodeScale& scale);
Tensor from_codes(const Codes& x);

/// Codes of weight (O, ...) and bias (O), f32 or f64, for input codes `in` and output codes `out`; with `out` null the
/// layer's result is f32. A filter's scale is amax / 127, or more where its bias would otherwise leave 24 bits, which
/// happens where the weights are next to nothing. Throws ValueError, naming the step: a number is not finite, a bias
/// too large; ShapeError for a kernel of more than 64 lines or a sum of more than 65793 products, which 32 bits might
/// not hold.
PackedWeights pack_weights(const Tensor& weight, const Tensor& bias, const Step& step, const CodeScale& in,
                           const CodeScale* out, WeightScales scales);
/// From codes (O, ...) i8, weight scales (O) f32 and folded bias (O) i32, as a file has them. Throws ValueError,
/// naming the step, the index, the value and the expected one: a weight scale that is not finite and above 0, one that
/// is too far from the others, a bias with which a sum could leave 32 bits.
PackedWeights pack_codes(const Tensor& codes, const Tensor& weight_scale, const Tensor& bias, const Step& step,
                         const CodeScale& in, const CodeScale* out);
/// The codes in the layout of `shape`, in the host's memory.
Tensor unpacked_codes(const PackedWeights& weights);

/// What a convolution or linear layer does: y, or with `out` null an f32 tensor in y.tensor. `residual` may be null.
Codes conv_codes(const Codes& x, const PackedWeights& weights, const Step& step, const Codes* residual,
                 const CodeScale* out);
Codes max_pool_of(const Codes& x, const StepWindow& window);
Codes mean_of(const Codes& x, const CodeScale& out);
Codes sum_of(const Codes& a, const Codes& b, bool has_relu, const CodeScale& out);
Codes relu_of(const Codes& x);
/// Along the last axis; all have one scale.
Codes concat_of(const std::vector<Codes>& parts);

}  // namespace thimble::nn::quant
