#pragma once
// Residual networks for images (He et al. 2015, arXiv:1512.03385, table 1), with a bottleneck's stride on its 3x3
// convolution ("v1.5"). Parameters and buffers have torchvision's names.

#include <array>
#include <string_view>
#include <vector>

#include <thimble/models/images.h>
#include <thimble/models/theory.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// A ResNet's architecture: the number of blocks in its four stages, and their kind.
struct ResnetArchitecture {
  std::string_view name;
  std::array<std::int64_t, 4> blocks;
  bool is_bottleneck;  ///< 1x1, 3x3, 1x1 to four times the channels, instead of 3x3, 3x3

  /// Channels of a block's result per channel of its 3x3 convolution.
  constexpr std::int64_t expansion() const noexcept { return is_bottleneck ? 4 : 1; }
};

/// resnet18, 34, 50 and 101.
inline constexpr std::array<ResnetArchitecture, 4> resnet_architectures = {{{"resnet18", {2, 2, 2, 2}, false},
                                                                            {"resnet34", {3, 4, 6, 3}, false},
                                                                            {"resnet50", {3, 4, 6, 3}, true},
                                                                            {"resnet101", {3, 4, 23, 3}, true}}};

/// Throws ValueError, listing all names, for another.
const ResnetArchitecture& resnet_architecture(std::string_view name);

/// The complete options. Defaults: image 224, channels 3, classes 1000 (10 with the small stem), width 64 (channels of
/// the first stage). The small stem is a 3x3 convolution of stride 1, the large one a 7x7 of stride 2 and a 3x3 max
/// pool of stride 2. Throws ValueError for an image below 8, `layers`, or a size of another family.
ModelOptions resnet_options(std::string_view name, ModelOptions options);

/// Two or three convolutions and a shortcut: relu(F(x) + x). If the shapes differ, the shortcut is a strided 1x1
/// convolution and a batch norm ("downsample").
class ResnetBlock final : public nn::Layer {
 public:
  /// `planes` is the number of channels of the 3x3 convolutions.
  ResnetBlock(const ResnetArchitecture& architecture, std::int64_t in, std::int64_t planes, std::int64_t stride,
              Build build, const nn::TensorOptions& on);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  struct ConvNorm {
    nn::Conv2d& conv;
    nn::BatchNorm2d& norm;
  };
  void add_conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                const nn::TensorOptions& on);

  Build build_;
  std::vector<ConvNorm> convs_;
  nn::Sequential* downsample_ = nullptr;
};

/// Images (N, H, W, C) -> class scores (N, K).
///
/// textbook: convolution, batch norm and relu are separate operators; the max pool keeps its input. fused: batch norm
/// includes the addition and the relu, and the max pool keeps one byte per output. Both give equal bits.
class Resnet final : public Model {
 public:
  /// Throws ValueError as resnet_architecture and resnet_options do.
  Resnet(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on = {});

  Tensor forward(const Tensor& images) override;
  Batch empty_batch(std::int64_t samples, memory::Device device) const override;
  bool is_text() const noexcept override { return false; }
  bool has_stages() const noexcept override { return true; }

 private:
  void add_stage(int stage, std::int64_t& in, std::int64_t& first, const nn::TensorOptions& on);
  Tensor stem(const Tensor& images);

  const ResnetArchitecture& architecture_;
  DType dtype_;
  nn::Conv2d* conv1_ = nullptr;  // on a pipeline's first stage
  nn::BatchNorm2d* bn1_ = nullptr;
  std::vector<nn::Sequential*> stages_;
  nn::Linear* fc_ = nullptr;  // on its last stage
};

/// Its memory in closed form (models/theory.h), from the table of the architecture. Kept tensors are known for the
/// textbook build (convolution, batch norm, relu as separate operators; He et al. 2015, section 3.4):
/// - a convolution keeps its input for the weight's gradient: the batch's images, a relu's result or the pool's
/// - a batch norm keeps its input, a convolution's result, and per channel mean and 1 / deviation
/// - a relu keeps its result, once, even if the next convolution, the addition or the max pool reads it, too
/// - the addition and the global average keep nothing
/// - the head keeps its input, the class scores, one log-sum-exp per sample, and the targets
///
/// No layers. Outside: "input" and "targets" (input), "conv outputs", "batch-norm mean", "batch-norm rstd", "relu
/// outputs", "pool output" (with the large stem), "fc input", "logits", "logsumexp". Input, conv outputs, relu outputs,
/// pool output and fc input are the literature's saved set: 21,075,968 elements for resnet50 at 224. If products have a
/// separate dtype, all their results have it, and "weight casts" are of the head and of all convolutions but the first,
/// which needs no gradient of its input. Throws ValueError as resnet_architecture and resnet_options do.
Theory resnet_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
