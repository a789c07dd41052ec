#pragma once
// Convolutional networks of the literature as plain layers, for programs with nn::Trainer; they are not in the list of
// named models. Images are (N, H, W, C). Parameters have torchvision's names and file layouts, so that its weights load
// unchanged; U-Net follows milesial/Pytorch-UNet, which MONeT measured.

#include <vector>

#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// VGG-16 without batch norms (Simonyan & Zisserman 2014, arXiv:1409.1556, table 1, column D) -> (N, classes).
/// 138,357,544 parameters. For images of other sizes than 224, features are averaged to 7 x 7 before the classifier.
class Vgg16 final : public nn::Layer {
 public:
  explicit Vgg16(std::int64_t classes = 1000, const nn::TensorOptions& on = {}, double dropout = 0.5);

 protected:
  Tensor forward(const Tensor& images) override;

 private:
  std::vector<nn::Conv2d*> convolutions_;
  nn::Linear &fc1_, &fc2_, &fc3_;
  nn::Dropout& dropout_;
};

/// DenseNet-121 (Huang et al. 2017, arXiv:1608.06993, table 1): growth 32, blocks of 6, 12, 24 and 16 layers ->
/// (N, classes). 7,978,856 parameters. Each layer reads the concatenation of its block's input and earlier layers.
class DenseNet121 final : public nn::Layer {
 public:
  explicit DenseNet121(std::int64_t classes = 1000, const nn::TensorOptions& on = {});

 protected:
  Tensor forward(const Tensor& images) override;

 private:
  struct DenseLayer {
    nn::BatchNorm2d& norm1;
    nn::Conv2d& conv1;
    nn::BatchNorm2d& norm2;
    nn::Conv2d& conv2;
  };
  struct Transition {
    nn::BatchNorm2d& norm;
    nn::Conv2d& conv;
  };
  nn::Conv2d& conv0_;
  nn::BatchNorm2d& norm0_;
  std::vector<std::vector<DenseLayer>> blocks_;
  std::vector<Transition> transitions_;
  nn::BatchNorm2d* norm5_;
  nn::Linear* classifier_;
};

/// MobileNet-V2 at width 1 (Sandler et al. 2018, arXiv:1801.04381, table 2) -> (N, classes). 3,504,872 parameters.
class MobileNetV2 final : public nn::Layer {
 public:
  explicit MobileNetV2(std::int64_t classes = 1000, const nn::TensorOptions& on = {}, double dropout = 0.2);

 protected:
  Tensor forward(const Tensor& images) override;

 private:
  struct ConvNorm {
    nn::Conv2d& conv;
    nn::BatchNorm2d& norm;
  };
  struct Block {
    std::vector<ConvNorm> with_relu6;  // expansion, if there is one, and depthwise
    ConvNorm project;
    bool is_residual;
  };
  ConvNorm conv_norm(const std::string& conv, const std::string& norm, std::int64_t in, std::int64_t out,
                     std::int64_t kernel, std::int64_t stride, std::int64_t groups, const nn::TensorOptions& on);

  std::vector<ConvNorm> first_, last_;  // one each
  std::vector<Block> blocks_;
  nn::Dropout* dropout_;
  nn::Linear* classifier_;
};

/// U-Net (Ronneberger et al. 2015, arXiv:1505.04597, figure 1) with padding, batch norms, and upsampling by adaptive
/// average pooling, as MONeT measured it (Shah et al. 2021, arXiv:2010.14501): images (N, H, W, channels) -> (N, H, W,
/// classes). With 3 channels and 2 classes it has 17,267,458 parameters.
class UNet final : public nn::Layer {
 public:
  explicit UNet(std::int64_t channels = 3, std::int64_t classes = 2, const nn::TensorOptions& on = {});

 protected:
  Tensor forward(const Tensor& images) override;

 private:
  struct DoubleConv {
    nn::Conv2d& conv1;
    nn::BatchNorm2d& norm1;
    nn::Conv2d& conv2;
    nn::BatchNorm2d& norm2;
    Tensor operator()(Tensor x) const;
  };
  DoubleConv double_conv(const std::string& name, std::int64_t in, std::int64_t middle, std::int64_t out,
                         const nn::TensorOptions& on);

  std::vector<DoubleConv> down_, up_;
  nn::Conv2d* out_;
};

}  // namespace thimble::models
