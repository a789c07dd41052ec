#pragma once
// A residual network whose convolutions share their kernels: all 3x3 convolutions of a stage combine the kernels of one
// basis, each with separate coefficients.
//
// A convolution of `in` to `out` channels has in out k^2 weights. With a basis of r (out, k, k) kernels it has in r
// coefficients, and layers with equal `out` and k share the r out k^2 elements of the basis (ops::SharedConv2d). A
// stage of two blocks and width w has r (9 w + 3 w + w / 2) in place of 9 w (3 w + w / 2): with r = 3 w / 4, 30 %. At
// most one layer's expanded kernel exists at any moment.

#include <vector>

#include <thimble/models/theory.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/shared_conv.h>

namespace thimble::models {

/// Number of stages. The first has the stem's `width`, each further stage twice the channels.
inline constexpr std::int64_t sharedconv_stages = 3;

/// Kernels in the basis of a stage with `width` channels.
constexpr std::int64_t sharedconv_rank(std::int64_t width) noexcept { return width * 3 / 4; }

/// relu(norm(conv(relu(norm(conv(x))))) + x). If the shapes differ, the last x passes a strided 1x1 convolution and a
/// batch norm. Convolutions are nn::SharedConv2d on `basis`, or nn::Conv2d if that is undefined.
class SharedconvBlock final : public nn::Layer {
 public:
  SharedconvBlock(std::int64_t in, std::int64_t out, std::int64_t stride, const Tensor& basis, Build build,
                  const nn::TensorOptions& on);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  nn::Layer& add_conv(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t stride,
                      const Tensor& basis, const nn::TensorOptions& on);

  Build build_;
  nn::Layer& conv1_;
  nn::BatchNorm2d& norm1_;
  nn::Layer& conv2_;
  nn::BatchNorm2d& norm2_;
  nn::Sequential* downsample_ = nullptr;
};

/// The complete options. Defaults: image 32, channels 3, classes 10, 2 blocks per stage (`layers`), width 32 (channels
/// of the first stage). Throws ValueError for an image below 8, a width below 2, an option of models over text.
ModelOptions sharedconv_options(ModelOptions options = {});

/// Images (N, H, W, C) -> class scores (N, K). Parameters: `stem.weight`, `stage1.basis`,
/// `stage1.0.conv1.coefficients`, ..., `fc.weight`. Without shares_kernels it is its plain twin, with
/// `stage1.0.conv1.weight` and no basis.
///
/// textbook: convolution, batch norm, addition and relu are separate operators. fused: batch norm includes addition and
/// relu. Both give equal bits.
class Sharedconv final : public Model {
 public:
  /// Throws ValueError as sharedconv_options does.
  explicit Sharedconv(const ModelOptions& options = {}, const nn::TensorOptions& on = {});

  Tensor forward(const Tensor& images) override;
  Batch empty_batch(std::int64_t samples, memory::Device device) const override;
  bool is_text() const noexcept override { return false; }

 private:
  DType dtype_;
  nn::Conv2d& stem_;
  nn::BatchNorm2d& stem_norm_;
  std::vector<nn::Parameter> bases_;  // one per stage
  std::vector<SharedconvBlock*> blocks_;
  nn::Linear* fc_ = nullptr;
};

/// Its memory in closed form (models/theory.h), or its plain twin's. Both keep equal tensors for backward, which are
/// resnet_theory's: basis and coefficients are parameters, and expanded kernels are not kept. Only the state differs: a
/// 3x3 convolution from `in` to `out` channels has 9 in out elements in the twin, here in r and a share of the stage's
/// 9 r out. No layers. Outside: "images" and "targets" (input), "conv outputs", "relu outputs", "batch-norm mean",
/// "batch-norm rstd", "fc input", "logits", "logsumexp". If products cast their operands, "weight casts" are of the
/// head and of all convolutions but the first, each with a cast of its basis. Unknown for the fused build. Throws
/// ValueError as sharedconv_options does.
Theory sharedconv_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
