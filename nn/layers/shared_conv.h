#pragma once
// Convolutions whose kernels are combinations of a few shared ones: see core/ops/conv/conv.h.

#include <thimble/autograd/functions/matmul.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// A basis for SharedConv2d's kernels: a leaf (rank, out, kernel, kernel), normal with deviation
/// sqrt(2 / (out kernel^2)). A module that owns one for several layers lists it with Module::add_parameter.
Tensor make_kernel_basis(std::int64_t rank, std::int64_t out, std::int64_t kernel, const TensorOptions& on = {});

/// (N, H, W, I) -> (N, OH, OW, O) with kernels made of `basis` (r, O, K, K) and the layer's coefficients (I / groups,
/// r). These start normal with deviation sqrt(1 / r), which gives kernels Conv2d's deviation, sqrt(2 / (O K^2)).
///
/// Parameters: "basis", listed once for all layers that share it, and "coefficients".
class SharedConv2d final : public Layer {
 public:
  /// Other layers may share the basis. Throws ShapeError unless it is (r, O, K, K).
  SharedConv2d(std::int64_t in, const Tensor& basis, const Conv2dOptions& options = {}, const TensorOptions& on = {});
  /// Makes a basis of `rank` kernels.
  SharedConv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t rank,
               const Conv2dOptions& options = {}, const TensorOptions& on = {});

  Parameter basis, coefficients;
  Fp8Status fp8_status() const override { return {false, fp8_fallback_}; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Conv2dOptions options_;
  std::optional<DType> compute_;
  std::string fp8_fallback_;
};

}  // namespace thimble::nn
