#pragma once
// Convolutions whose kernels are combinations of a few that they share: see core/ops/conv/conv.h.

#include <thimble/autograd/functions/matmul.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// A leaf (rank, out, kernel, kernel), normal with deviation sqrt(2 / (out kernel^2)), from which SharedConv2d makes
/// its kernels. A module that owns one for several layers lists it with Module::add_parameter.
Tensor make_kernel_basis(std::int64_t rank, std::int64_t out, std::int64_t kernel, const TensorOptions& on = {});

/// (N, H, W, I) -> (N, OH, OW, O) with kernels made of `basis` (r, O, K, K) and own coefficients (I / groups, r), which
/// start as normals with deviation sqrt(1 / r): the kernels then have the deviation of Conv2d's, sqrt(2 / (O K^2)).
///
/// The basis is listed among the layer's parameters, once for all layers that share it. Parameters: "basis",
/// "coefficients".
class SharedConv2d final : public Layer {
 public:
  /// With a basis that others may share. Throws ShapeError unless it is (r, O, K, K).
  SharedConv2d(std::int64_t in, const Tensor& basis, const Conv2dOptions& options = {}, const TensorOptions& on = {});
  /// With a basis of `rank` kernels of its own.
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
