#pragma once
// Precision policies: the dtypes of parameters, norms and products, the rounding of updates, and whether the loss is
// scaled. Layers apply the dtypes (nn::TensorOptions). Under every policy arithmetic inside norms, softmax, attention
// and losses is in f32, and losses are f32.

#include <optional>
#include <span>
#include <string_view>

#include <thimble/nn/layers/module.h>
#include <thimble/optim/moments.h>

namespace thimble::nn {

/// name             parameters  norms  products  update      loss scale
/// O0               f32         f32    f32       plain       none
/// O1               f32         f32    f16       plain       dynamic
/// O2               f16         f32    f16       master      dynamic
/// O3               f16         f16    f16       rounded     none (1)
/// bf16             bf16        f32    bf16      master      none
/// bf16-stochastic  bf16        bf16   bf16      stochastic  none
/// bf16-kahan       bf16        bf16   bf16      kahan       none
/// fp8              bf16        f32    bf16      master      none
/// fp8-current      bf16        f32    bf16      master      none
/// fp8-block        bf16        f32    bf16      master      none
///
/// O0 to O3 are the levels of NVIDIA's Apex (amp). Embeddings, positions and the residual stream have the parameters'
/// dtype; under O1, as in Apex, the result of a product stays f16 until it meets f32.
///
/// The last three are bf16 except for the linear layers of blocks, whose operands are FP8 (nn/layers/fp8.h). fp8 uses
/// delayed and fp8-current uses current scaling, with E4M3 forward and E5M2 for gradients; fp8-block uses E4M3 with
/// scales for 1 x 128 of x and dy and 128 x 128 of weights.
struct Precision {
  std::string_view name;
  DType parameters = DType::f32;      ///< of all parameters but norms', and of activations outside products
  DType norms = DType::f32;           ///< of norms' parameters
  std::optional<DType> compute = {};  ///< operands of products are cast to it; defaults to `parameters`
  optim::NarrowUpdate update = optim::NarrowUpdate::rounded;
  bool scales_loss = false;  ///< dynamically, by optim::GradScaler with default options
  std::optional<Fp8Recipe> fp8 = {};

  /// Options for a model with this policy.
  TensorOptions on(memory::Device device) const { return {device, parameters, norms, compute, fp8}; }
};

/// All policies, O0 first.
std::span<const Precision> precisions();

/// The policy with this name. Throws ValueError, listing all names.
const Precision& precision(std::string_view name);

}  // namespace thimble::nn
