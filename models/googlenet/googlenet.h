#pragma once
// GoogLeNet, Inception v1 (Szegedy et al. 2014, arXiv:1409.4842, table 1), with a batch norm after every convolution
// and without the auxiliary heads. Parameters have torchvision's names and layouts: `conv1.conv.weight`,
// `conv1.bn.weight`, `inception3a.branch1.conv.weight`, `inception3a.branch2.0.conv.weight`, ..., `fc.weight`. As in
// torchvision, the paper's 5x5 kernels are 3x3, and pools round sizes up.

#include <array>
#include <string_view>
#include <vector>

#include <thimble/models/theory.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// Channels of one inception block: the results of its four branches, and the reductions of the second and third before
/// their 3x3 convolution. `pool_before` is the size of a max pool of stride 2 before the block, or 0.
struct InceptionSizes {
  std::string_view name;
  std::int64_t pool_before;
  std::int64_t branch1, reduce2, branch2, reduce3, branch3, branch4;

  constexpr std::int64_t out() const noexcept { return branch1 + branch2 + branch3 + branch4; }
};

/// The nine blocks for a width (channels of the first convolution) of 64; other widths scale them.
inline constexpr std::array<InceptionSizes, 9> inception_blocks = {{
    {"inception3a", 3, 64, 96, 128, 16, 32, 32},
    {"inception3b", 0, 128, 128, 192, 32, 96, 64},
    {"inception4a", 3, 192, 96, 208, 16, 48, 64},
    {"inception4b", 0, 160, 112, 224, 24, 64, 64},
    {"inception4c", 0, 128, 128, 256, 24, 64, 64},
    {"inception4d", 0, 112, 144, 288, 32, 64, 64},
    {"inception4e", 0, 256, 160, 320, 32, 128, 128},
    {"inception5a", 2, 256, 160, 320, 32, 128, 128},
    {"inception5b", 0, 384, 192, 384, 48, 128, 128},
}};

/// A block of the table, scaled to a model of `width`.
constexpr InceptionSizes scaled(InceptionSizes sizes, std::int64_t width) noexcept {
  for (std::int64_t* c :
       {&sizes.branch1, &sizes.reduce2, &sizes.branch2, &sizes.reduce3, &sizes.branch3, &sizes.branch4}) {
    *c = *c * width / 64;
  }
  return sizes;
}

/// Convolution, batch norm, relu; "same" padding.
class ConvNormRelu final : public nn::Layer {
 public:
  ConvNormRelu(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, Build build,
               const nn::TensorOptions& on);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Build build_;
  nn::Conv2d& conv_;
  nn::BatchNorm2d& norm_;
};

/// Four branches, concatenated along the channels: 1x1; 1x1, 3x3; 1x1, 3x3; 3x3 max pool, 1x1.
class InceptionBlock final : public nn::Layer {
 public:
  InceptionBlock(std::int64_t in, const InceptionSizes& sizes, Build build, const nn::TensorOptions& on);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  ConvNormRelu& branch1_;
  nn::Sequential &branch2_, &branch3_;
  ConvNormRelu& branch4_;
};

/// The complete options. Defaults: image 224, channels 3, classes 1000, width 64, dropout 0.2. Images of at most 64
/// pixels (10 classes by default) enter through a 3x3 convolution of stride 1 and skip the first pool. Throws
/// ValueError for an image below 16, a width that is no multiple of 8, dropout of 1 or more, an option of another
/// family.
ModelOptions googlenet_options(ModelOptions options = {});

/// Images (N, H, W, C) -> class scores (N, K).
///
/// textbook: convolution, batch norm and relu are separate operators; max pools keep their input; dropout keeps a mask.
/// fused: batch norm includes the relu; max pools keep one byte per output, except inside blocks, where parallel
/// convolutions keep the input anyway. Both give equal bits.
class Googlenet final : public Model {
 public:
  /// Throws ValueError as googlenet_options does.
  explicit Googlenet(const ModelOptions& options = {}, const nn::TensorOptions& on = {});

  Tensor forward(const Tensor& images) override;
  Batch empty_batch(std::int64_t samples, memory::Device device) const override;
  bool is_text() const noexcept override { return false; }

 private:
  Tensor pool(const Tensor& x, std::int64_t size) const;

  DType dtype_;
  ConvNormRelu &conv1_, &conv2_, &conv3_;
  std::vector<InceptionBlock*> blocks_;  // in the order of inception_blocks
  nn::Dropout* dropout_ = nullptr;
  nn::Linear* fc_ = nullptr;
};

/// Its memory in closed form (models/theory.h), from the table of its blocks, in both builds. A block over an image of
/// m pixels has I input channels, C channels over its six convolutions, R of them in the two reductions, and O output
/// channels. Per sample, with e bytes per element, it keeps
///   textbook   e m (C + C + I + O): convolution outputs, relu outputs, the pool's result, the joined branches
///   fused      e m (C + R + I + O): only the relu outputs that a convolution reads
///
/// and, whatever the batch, mean and 1 / deviation of C channels. The previous layer owns its input. The fused build
/// keeps no O before a pool (instead one byte per result of the pool), and neither build keeps the last O, because only
/// its mean is read. The terms of a block: "conv outputs", "relu outputs", "pool output", "block output" if it is kept,
/// "batch-norm mean", "batch-norm rstd".
///
/// Outside: "images" and "targets" (input), the stem's "conv outputs", "relu outputs", "batch-norm mean", "batch-norm
/// rstd", "pool outputs" and, fused, "pool taps" of all pools outside blocks, "fc input", "logits", "logsumexp";
/// textbook, with dropout: "dropout mask". If products cast their operands, "weight casts" are of the head and of all
/// convolutions but the first. Throws ValueError as googlenet_options does.
Theory googlenet_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
