#pragma once
// A residual network whose convolutions share their kernels: every 3x3 convolution of a stage is made of one basis that
// the stage has, and of coefficients of its own.
//
// A convolution of `in` to `out` channels has in out k^2 weights. Kernels made of a basis of r (out, k, k) kernels are
// in r coefficients, and r out k^2 numbers for the basis, which layers with the same `out` and k share
// (ops::SharedConv2d). In a stage of two blocks and width w that is r (9 w + 3 w + w / 2) in place of 9 w (3 w + w /
// 2): with r = 3 w / 4, 30 %. No more than one layer's expanded kernel exists at any moment.

#include <vector>

#include <thimble/models/theory.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/shared_conv.h>

namespace thimble::models {

/// Number of stages. The first has the `width` of the stem, each further one twice the channels of the one before.
inline constexpr std::int64_t sharedconv_stages = 3;

/// Kernels in the basis of a stage with `width` channels.
constexpr std::int64_t sharedconv_rank(std::int64_t width) noexcept { return width * 3 / 4; }

/// relu(norm(conv(relu(norm(conv(x))))) + x), x through a strided 1x1 convolution and a batch norm where the shapes
/// differ. Its convolutions are nn::SharedConv2d on `basis`, or nn::Conv2d where that is undefined.
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

/// The options with nothing left open: image 32, channels 3, classes 10, 2 blocks in a stage ("layers"), width 32
/// (channels of the first stage). Throws ValueError: an image below 8, a width below 2, an option of models over text.
ModelOptions sharedconv_options(ModelOptions options = {});

/// Images (N, H, W, C) -> class scores (N, K). Parameters: `stem.weight`, `stage1.basis`,
/// `stage1.0.conv1.coefficients`, ..., `fc.weight`. Without shares_kernels it is its plain twin: the same network with
/// `stage1.0.conv1.weight`.
///
/// textbook: convolution, batch norm, addition and relu are separate operators. fused: batch norm takes in the rest.
/// Both give the same bits.
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
  std::vector<nn::Parameter> bases_;  // of the stages
  std::vector<SharedconvBlock*> blocks_;
  nn::Linear* fc_ = nullptr;
};

/// Its memory in closed form (models/theory.h), and that of its plain twin. Both keep the same for backward, what
/// resnet_theory counts for a residual network: basis and coefficients are parameters, and expanded kernels are not
/// kept. What differs is the state: of a 3x3 convolution from `in` to `out` channels 9 in out numbers, or in r and its
/// share of a stage's 9 r out. There are no layers. Outside: "images" and "targets" (input), "conv outputs", "relu
/// outputs", "batch-norm mean", "batch-norm rstd", "fc input", "logits", "logsumexp". Where products cast their
/// operands, "weight casts" are of all convolutions but the first, each with a cast of its basis, and of the head. What
/// the fused build keeps is unknown. Throws ValueError as sharedconv_options does.
Theory sharedconv_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
