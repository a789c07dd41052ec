#pragma once
// Tensors of 8-bit codes and the steps of QuantizedModel on them, not recorded on a tape. A dry device allocates the
// bytes of the real one. A CUDA device gives the CPU's bits; the host packs its weights. All functions throw
// DeviceError when tensors are on several devices or this build has no kernels, DTypeError and ShapeError.

#include <vector>

#include <thimble/core/kernels/quant_conv.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/nn/quant/program.h>

namespace thimble::nn::quant {

/// A u8 tensor and its scale.
struct Codes {
  Tensor tensor;
  CodeScale scale;
};

/// A layer's weights, ready to run. Bytes: the codes, padded to whole groups and blocks (kernels/quant_conv.h) or, on a
/// CUDA device, rows (kernels/quant_rows.h), and 12 for each filter.
struct PackedWeights {
  Shape shape;  ///< (O, KH, KW, I) or (O, I)
  StepWindow window;
  Tensor codes;         ///< packed
  Tensor weight_scale;  ///< (O) f32
  Tensor bias;          ///< (O, padded) i32, in units of input scale x weight scale, minus the input's zero point
  Tensor scale;         ///< (O, padded) f32: from these units to the output's codes, or to f32
};

/// Codes of f32 numbers. Throws ValueError when one is not finite; on a CUDA device the host waits for this check.
Codes to_codes(const Tensor& x, const CodeScale& scale);
Tensor from_codes(const Codes& x);

/// Codes of weight (O, ...) and bias (O), f32 or f64, for input codes `in` and output codes `out`; with `out` null the
/// layer's result is f32. A filter's scale is amax / 127, or more if its bias would otherwise exceed 24 bits, as with
/// tiny weights. Throws ValueError, naming the step: a number is not finite, a bias too large; ShapeError for a kernel
/// of more than 64 lines or a sum of more than 65793 products, which could overflow 32 bits.
PackedWeights pack_weights(const Tensor& weight, const Tensor& bias, const Step& step, const CodeScale& in,
                           const CodeScale* out, WeightScales scales);
/// Packs codes (O, ...) i8, weight scales (O) f32 and folded bias (O) i32 of a file. Throws ValueError, naming the
/// step, the index, the value and the expected one: a weight scale that is not finite and above 0, or too far from the
/// others, a bias with which a sum could overflow 32 bits.
PackedWeights pack_codes(const Tensor& codes, const Tensor& weight_scale, const Tensor& bias, const Step& step,
                         const CodeScale& in, const CodeScale* out);
/// The codes in the layout of `shape`, in the host's memory.
Tensor unpacked_codes(const PackedWeights& weights);

/// A convolution or linear layer. With `out` null the result's tensor is f32. `residual` may be null.
Codes conv_codes(const Codes& x, const PackedWeights& weights, const Step& step, const Codes* residual,
                 const CodeScale* out);
Codes max_pool_of(const Codes& x, const StepWindow& window);
Codes mean_of(const Codes& x, const CodeScale& out);
Codes sum_of(const Codes& a, const Codes& b, bool has_relu, const CodeScale& out);
Codes relu_of(const Codes& x);
/// Along the last axis; all parts must have one scale.
Codes concat_of(const std::vector<Codes>& parts);

}  // namespace thimble::nn::quant
