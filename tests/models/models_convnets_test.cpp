// VGG-16, DenseNet-121, MobileNet-V2 and U-Net: published counts, torchvision's names and file shapes, results of every
// size, and gradients of every parameter.

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/models/convnets/convnets.h>
#include <thimble/nn/files/tensor_io.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::models;

namespace {

std::string file_shape_of(const nn::Module& model, const std::string& name) {
  for (const auto& list : {model.parameters(), model.buffers()}) {
    for (const nn::NamedTensor& t : list) {
      if (t.name == name) return to_string(nn::file_shape(t.tensor.shape(), t.layout));
    }
  }
  return "not there";
}

void check_shapes(const nn::Module& model, const std::vector<std::pair<const char*, const char*>>& rows) {
  for (const auto& [name, shape] : rows) {
    INFO(name);
    CHECK(file_shape_of(model, name) == shape);
  }
}

// Every parameter gets a gradient that is not zero.
void check_gradients(nn::Layer& model, const Shape& images, const Shape& result) {
  const Tensor x = randn(images);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    const Tensor y = model(x);
    CHECK(y.shape() == result);
    loss = mean(square(y - 1.0));
  }
  tape.backward(loss);
  CHECK(std::isfinite(item(loss)));
  for (const nn::NamedTensor& p : model.parameters()) {
    INFO(p.name);
    REQUIRE(p.tensor.grad().defined());
    if (p.name.ends_with(".0.bias") || p.name.ends_with(".3.bias")) continue;  // a batch norm takes it away again
    CHECK(item(norm(p.tensor.grad())) > 0);
  }
}

}  // namespace

TEST_CASE("models convnets: counts are the published ones, names are torchvision's", "[models]") {
  const nn::TensorOptions on{dry(cpu)};
  Vgg16 vgg(1000, on);
  CHECK(vgg.parameter_count() == 138357544);
  check_shapes(vgg, {{"features.0.weight", "(64, 3, 3, 3)"},
                     {"features.28.weight", "(512, 512, 3, 3)"},
                     {"features.28.bias", "(512)"},
                     {"features.10.weight", "(256, 128, 3, 3)"},
                     {"classifier.0.weight", "(4096, 25088)"},
                     {"classifier.6.bias", "(1000)"}});
  DenseNet121 dense(1000, on);
  CHECK(dense.parameter_count() == 7978856);
  check_shapes(dense, {{"features.conv0.weight", "(64, 3, 7, 7)"},
                       {"features.denseblock1.denselayer1.norm1.weight", "(64)"},
                       {"features.denseblock3.denselayer24.conv1.weight", "(128, 992, 1, 1)"},
                       {"features.denseblock4.denselayer16.conv2.weight", "(32, 128, 3, 3)"},
                       {"features.transition3.conv.weight", "(512, 1024, 1, 1)"},
                       {"features.norm5.running_var", "(1024)"},
                       {"classifier.weight", "(1000, 1024)"}});
  MobileNetV2 mobile(1000, on);
  CHECK(mobile.parameter_count() == 3504872);
  check_shapes(mobile, {{"features.0.0.weight", "(32, 3, 3, 3)"},
                        {"features.1.conv.0.0.weight", "(32, 1, 3, 3)"},
                        {"features.1.conv.1.weight", "(16, 32, 1, 1)"},
                        {"features.1.conv.2.running_mean", "(16)"},
                        {"features.2.conv.0.0.weight", "(96, 16, 1, 1)"},
                        {"features.2.conv.1.0.weight", "(96, 1, 3, 3)"},
                        {"features.17.conv.2.weight", "(320, 960, 1, 1)"},
                        {"features.18.1.weight", "(1280)"},
                        {"classifier.1.weight", "(1000, 1280)"}});
  UNet unet(3, 2, on);
  CHECK(unet.parameter_count() == 17267458);
  check_shapes(unet, {{"inc.double_conv.0.weight", "(64, 3, 3, 3)"},
                      {"down4.maxpool_conv.1.double_conv.3.bias", "(512)"},
                      {"up1.conv.double_conv.0.weight", "(512, 1024, 3, 3)"},
                      {"up1.conv.double_conv.3.weight", "(256, 512, 3, 3)"},
                      {"up4.conv.double_conv.4.running_var", "(64)"},
                      {"outc.conv.weight", "(2, 64, 1, 1)"}});
  for (const std::int64_t image : {32, 224}) {
    const Tensor x = Tensor::empty({2, image, image, 3}, DType::f32, dry(cpu));
    for (nn::Layer* const model : std::initializer_list<nn::Layer*>{&vgg, &dense, &mobile}) {
      CHECK((*model)(x).shape() == Shape{2, 1000});
    }
    CHECK(unet(x).shape() == Shape{2, image, image, 2});
  }
}

TEST_CASE("models convnets: every parameter gets a gradient", "[models]") {
  {
    DenseNet121 model(5);
    check_gradients(model, {2, 64, 64, 3}, {2, 5});
  }
  {
    MobileNetV2 model(5, {}, 0);
    check_gradients(model, {2, 64, 64, 3}, {2, 5});
  }
  UNet model(2, 3);
  check_gradients(model, {1, 36, 32, 2}, {1, 36, 32, 3});
}
