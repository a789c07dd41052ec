#include <thimble/models/convnets/convnets.h>

#include <array>
#include <string>
#include <utility>

#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/autograd/functions/view.h>

namespace thimble::models {
namespace {

// Code below writes `x = f(x)` in steps, which frees each tensor after its last read; f(g(x)) would hold all three.
constexpr PoolWindow halves{.kernel = {2, 2}, .stride = {2, 2}};

}  // namespace

Vgg16::Vgg16(std::int64_t classes, const nn::TensorOptions& on, double dropout)
    : fc1_(child<nn::Linear>("classifier.0", 512 * 49, 4096, on)),
      fc2_(child<nn::Linear>("classifier.3", 4096, 4096, on)),
      fc3_(child<nn::Linear>("classifier.6", 4096, classes, on)),
      dropout_(child<nn::Dropout>("dropout", dropout)) {
  // Channels of convolutions, each followed by a relu; 0 is a 2x2 max pool. torchvision's numbers count all three.
  constexpr std::array<int, 18> plan{64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0};
  std::int64_t channels = 3, number = 0;
  for (const int out : plan) {
    convolutions_.push_back(nullptr);
    if (out == 0) {
      ++number;
      continue;
    }
    convolutions_.back() = &child<nn::Conv2d>("features." + std::to_string(number), channels, out, 3,
                                              Conv2dOptions{.padding = 1}, true, on);
    channels = out;
    number += 2;
  }
}

Tensor Vgg16::forward(const Tensor& images) {
  Tensor x = images;
  for (nn::Conv2d* const conv : convolutions_) {
    if (!conv) {
      x = max_pool2d(x, halves, MaxPoolKeeps::taps);
      continue;
    }
    x = (*conv)(x);
    x = relu(x);
  }
  if (x.size(1) != 7 || x.size(2) != 7) x = adaptive_avg_pool2d(x, 7, 7);
  x = flatten(permute(x, {0, 3, 1, 2}), 1);  // (N, 512 7 7), channels first
  x = dropout_(relu(fc1_(x)));
  return fc3_(dropout_(relu(fc2_(x))));
}

DenseNet121::DenseNet121(std::int64_t classes, const nn::TensorOptions& on)
    : conv0_(child<nn::Conv2d>("features.conv0", 3, 64, 7, Conv2dOptions{.stride = 2, .padding = 3}, false, on)),
      norm0_(child<nn::BatchNorm2d>("features.norm0", 64, on)) {
  constexpr std::array<int, 4> layers{6, 12, 24, 16};
  constexpr std::int64_t growth = 32, bottleneck = 4 * growth;
  std::int64_t channels = 64;
  for (std::size_t b = 0; b < layers.size(); ++b) {
    const std::string number = std::to_string(b + 1);
    std::vector<DenseLayer>& block = blocks_.emplace_back();
    for (int i = 1; i <= layers[b]; ++i, channels += growth) {
      const std::string name = "features.denseblock" + number + ".denselayer" + std::to_string(i);
      block.push_back(
          {child<nn::BatchNorm2d>(name + ".norm1", channels, on),
           child<nn::Conv2d>(name + ".conv1", channels, bottleneck, 1, Conv2dOptions{}, false, on),
           child<nn::BatchNorm2d>(name + ".norm2", bottleneck, on),
           child<nn::Conv2d>(name + ".conv2", bottleneck, growth, 3, Conv2dOptions{.padding = 1}, false, on)});
    }
    if (b + 1 == layers.size()) break;
    const std::string name = "features.transition" + number;
    transitions_.push_back({child<nn::BatchNorm2d>(name + ".norm", channels, on),
                            child<nn::Conv2d>(name + ".conv", channels, channels / 2, 1, Conv2dOptions{}, false, on)});
    channels /= 2;
  }
  norm5_ = &child<nn::BatchNorm2d>("features.norm5", channels, on);
  classifier_ = &child<nn::Linear>("classifier", channels, classes, on);
}

Tensor DenseNet121::forward(const Tensor& images) {
  Tensor x = norm0_.with_relu(conv0_(images));
  x = max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, MaxPoolKeeps::taps);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    std::vector<Tensor> features{x};
    for (const DenseLayer& layer : blocks_[b]) {
      Tensor y = features.size() == 1 ? features[0] : concat(features, 3);
      y = layer.norm1.with_relu(y);
      y = layer.conv1(y);
      y = layer.norm2.with_relu(y);
      features.push_back(layer.conv2(y));
    }
    x = concat(features, 3);
    features.clear();
    if (b == transitions_.size()) break;
    const Transition& transition = transitions_[b];
    x = transition.norm.with_relu(x);
    x = transition.conv(x);
    x = avg_pool2d(x, halves);
  }
  return (*classifier_)(global_avg_pool(norm5_->with_relu(x)));
}

MobileNetV2::ConvNorm MobileNetV2::conv_norm(const std::string& conv, const std::string& norm, std::int64_t in,
                                             std::int64_t out, std::int64_t kernel, std::int64_t stride,
                                             std::int64_t groups, const nn::TensorOptions& on) {
  const Conv2dOptions options{.stride = stride, .padding = kernel / 2, .groups = groups};
  nn::Conv2d& made = child<nn::Conv2d>("features." + conv, in, out, kernel, options, false, on);
  return {made, child<nn::BatchNorm2d>("features." + norm, out, on)};
}

MobileNetV2::MobileNetV2(std::int64_t classes, const nn::TensorOptions& on, double dropout) {
  first_.push_back(conv_norm("0.0", "0.1", 3, 32, 3, 2, 1, on));
  struct Stage {
    std::int64_t expansion, channels, blocks, stride;
  };
  constexpr std::array<Stage, 7> stages{
      {{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}}};
  std::int64_t channels = 32;
  for (const Stage& stage : stages) {
    for (std::int64_t i = 0; i < stage.blocks; ++i) {
      const std::string name = std::to_string(blocks_.size() + 1) + ".conv.";
      const std::int64_t inner = channels * stage.expansion, stride = i == 0 ? stage.stride : 1;
      std::vector<ConvNorm> with_relu6;
      const auto layer = [&](std::size_t at) { return name + std::to_string(at); };
      if (stage.expansion > 1) {
        with_relu6.push_back(conv_norm(layer(0) + ".0", layer(0) + ".1", channels, inner, 1, 1, 1, on));
      }
      const std::size_t at = with_relu6.size();
      with_relu6.push_back(conv_norm(layer(at) + ".0", layer(at) + ".1", inner, inner, 3, stride, inner, on));
      const ConvNorm project = conv_norm(layer(at + 1), layer(at + 2), inner, stage.channels, 1, 1, 1, on);
      blocks_.push_back({with_relu6, project, stride == 1 && channels == stage.channels});
      channels = stage.channels;
    }
  }
  last_.push_back(conv_norm("18.0", "18.1", channels, 1280, 1, 1, 1, on));
  dropout_ = &child<nn::Dropout>("classifier.0", dropout);
  classifier_ = &child<nn::Linear>("classifier.1", 1280, classes, on);
}

Tensor MobileNetV2::forward(const Tensor& images) {
  const auto run = [](const ConvNorm& layer, Tensor x) {
    x = layer.conv(x);
    return layer.norm.with_relu6(x);
  };
  Tensor x = run(first_[0], images);
  for (const Block& block : blocks_) {
    Tensor y = x;
    if (!block.is_residual) x = Tensor();
    for (const ConvNorm& layer : block.with_relu6) y = run(layer, std::move(y));
    y = block.project.conv(y);
    y = block.project.norm(y);
    x = block.is_residual ? x + y : std::move(y);
  }
  return (*classifier_)((*dropout_)(global_avg_pool(run(last_[0], std::move(x)))));
}

Tensor UNet::DoubleConv::operator()(Tensor x) const {
  x = conv1(x);
  x = norm1.with_relu(x);
  x = conv2(x);
  return norm2.with_relu(x);
}

UNet::DoubleConv UNet::double_conv(const std::string& name, std::int64_t in, std::int64_t middle, std::int64_t out,
                                   const nn::TensorOptions& on) {
  const std::string inside = name + ".double_conv.";
  const Conv2dOptions same{.padding = 1};
  return {
      child<nn::Conv2d>(inside + "0", in, middle, 3, same, true, on), child<nn::BatchNorm2d>(inside + "1", middle, on),
      child<nn::Conv2d>(inside + "3", middle, out, 3, same, true, on), child<nn::BatchNorm2d>(inside + "4", out, on)};
}

UNet::UNet(std::int64_t channels, std::int64_t classes, const nn::TensorOptions& on) {
  constexpr std::array<std::int64_t, 5> widths{64, 128, 256, 512, 512};
  down_.push_back(double_conv("inc", channels, widths[0], widths[0], on));
  for (std::size_t i = 1; i < widths.size(); ++i) {
    down_.push_back(
        double_conv("down" + std::to_string(i) + ".maxpool_conv.1", widths[i - 1], widths[i], widths[i], on));
  }
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const std::int64_t skip = widths[widths.size() - 1 - i], out = i < 4 ? skip / 2 : skip;
    up_.push_back(double_conv("up" + std::to_string(i) + ".conv", 2 * skip, skip, out, on));
  }
  out_ = &child<nn::Conv2d>("outc.conv", widths[0], classes, 1, Conv2dOptions{}, true, on);
}

Tensor UNet::forward(const Tensor& images) {
  std::vector<Tensor> skips;
  Tensor x = down_[0](images);
  for (std::size_t i = 1; i < down_.size(); ++i) {
    skips.push_back(x);
    x = down_[i](max_pool2d(x, halves, MaxPoolKeeps::taps));
  }
  for (const DoubleConv& up : up_) {
    x = adaptive_avg_pool2d(x, skips.back().size(1), skips.back().size(2));
    x = concat({skips.back(), x}, 3);
    skips.pop_back();
    x = up(std::move(x));
  }
  return (*out_)(x);
}

}  // namespace thimble::models
