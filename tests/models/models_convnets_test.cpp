// VGG-16, DenseNet-121, MobileNet-V2 and U-Net: published counts, torchvision's names and file shapes, results of every
// size, and gradients of every parameter.

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/models/convnets/convnets.h>
#include <thimble/models/googlenet/googlenet.h>
#include <thimble/nn/files/tensor_io.h>

#include "support/catch.h"
#include "support/model_runs.h"

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

// Checks that every parameter gets a nonzero gradient.
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
    if (p.name.ends_with(".0.bias") || p.name.ends_with(".3.bias")) continue;  // the next batch norm cancels this bias
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

// ---- GoogLeNet: counts, names, the two builds bit for bit, training, and its memory against theory and between dry
// and real runs, as integers.

using namespace thimble::models;
using namespace thimble::testing;

namespace {

ModelOptions tiny(Build build, std::int64_t image = 32, double dropout = 0) {
  ModelOptions options;
  options.image = image, options.width = 8, options.classes = 10;
  options.dropout = dropout;
  options.build = build;
  return options;
}

}  // namespace

TEST_CASE("models googlenet: the parameter count is the published one", "[models][googlenet][quick]") {
  const Googlenet model({}, {dry(cpu)});
  CHECK(model.parameter_count() == 6624904);
  CHECK(model.parameters().size() == 57 * 3 + 2);
  CHECK(model.buffers().size() == 57 * 3);
  CHECK(make_theory("googlenet").state(1).parameter_elements == 6624904);
  CHECK(inception_blocks.back().out() == 1024);
}

TEST_CASE("models googlenet: names and file shapes are torchvision's", "[models][googlenet][quick]") {
  const Googlenet model({}, {dry(cpu)});
  check_file_shapes(model, {{"conv1.conv.weight", "(64, 3, 7, 7)"},
                            {"conv1.bn.running_var", "(64)"},
                            {"conv2.conv.weight", "(64, 64, 1, 1)"},
                            {"conv3.conv.weight", "(192, 64, 3, 3)"},
                            {"inception3a.branch1.conv.weight", "(64, 192, 1, 1)"},
                            {"inception3a.branch2.0.conv.weight", "(96, 192, 1, 1)"},
                            {"inception3a.branch2.1.conv.weight", "(128, 96, 3, 3)"},
                            {"inception3a.branch3.1.conv.weight", "(32, 16, 3, 3)"},
                            {"inception3a.branch4.1.bn.bias", "(32)"},
                            {"inception4a.branch1.conv.weight", "(192, 480, 1, 1)"},
                            {"inception4d.branch2.1.conv.weight", "(288, 144, 3, 3)"},
                            {"inception5b.branch1.bn.num_batches_tracked", "()"},
                            {"fc.weight", "(1000, 1024)"},
                            {"fc.bias", "(1000)"}});
}

TEST_CASE("models googlenet: the fused and the textbook build have the same bits", "[models][googlenet][quick]") {
  const Threads alone;
  for (const std::int64_t image : {32, 80}) {
    for (const double dropout : {0.0, 0.2}) {
      CAPTURE(image, dropout);
      const auto a = make_seeded("googlenet", tiny(Build::fused, image, dropout));
      const auto b = make_seeded("googlenet", tiny(Build::textbook, image, dropout));
      const Batch batch = make_batch(*a, 2);
      const auto fused = run_pass(*a, batch), textbook = run_pass(*b, batch);
      REQUIRE(fused.size() == textbook.size());
      for (std::size_t i = 0; i < fused.size(); ++i) {
        INFO(fused[i].name);
        CHECK(fused[i].values == textbook[i].values);
      }
    }
  }
}

TEST_CASE("models googlenet: every parameter gets a gradient, and the loss falls", "[models][googlenet][quick]") {
  const Threads alone;
  const auto model = make_seeded("googlenet", tiny(Build::fused, 32, 0.2));
  const Batch batch = make_batch(*model, 4);
  for (const NamedValues& row : run_pass(*model, batch)) {
    if (row.name.ends_with("running_mean") || row.name.ends_with("num_batches_tracked")) continue;
    CAPTURE(row.name);
    double squares = 0;
    for (const double v : row.values) squares += v * v;
    CHECK(std::isfinite(squares));
    CHECK(squares > 0);
  }
  optim::Sgd sgd(model->trainable(), {.rate = 0.05, .momentum = 0.9});
  RandomGenerator generator(2);
  const GeneratorScope scope(generator);
  const auto losses = train_on(*model, sgd, batch, 20);
  CAPTURE(losses);
  CHECK(losses.back() < 0.7 * losses.front());
}

TEST_CASE("models googlenet: theory is the ledger, to the byte", "[models][googlenet][theory][quick]") {
  const struct {
    std::int64_t batch, image, width;
  } rows[] = {{2, 32, 8}, {3, 16, 16}, {1, 33, 8}, {2, 65, 8}, {1, 97, 24}, {4, 224, 64}, {2, 231, 64}};
  for (const auto& row : rows) {
    for_each_form(0.2, [&](Build build, double dropout, DType dtype) {
      ModelOptions options = tiny(build, row.image, dropout);
      options.width = row.width;
      CAPTURE(row.image, row.width, static_cast<int>(build), dropout, to_string(dtype));
      const Theory theory = make_theory("googlenet", options, dtype);
      CHECK(theory.layers.size() == inception_blocks.size());
      check_theory(theory, "googlenet", options, row.batch);
    });
  }
}

TEST_CASE("models googlenet: dry and real steps are the same events and the same peak", "[models][googlenet][quick]") {
  for (const Build build : {Build::fused, Build::textbook}) check_dry_run("googlenet", tiny(build, 32, 0.2), 2);
  check_dry_run("googlenet", tiny(Build::fused, 72), 1);
}

TEST_CASE("models googlenet: weights are saved and loaded byte for byte", "[models][googlenet][quick]") {
  const Threads alone;
  check_weights_round_trip("googlenet", tiny(Build::fused));
}

TEST_CASE("models googlenet: what does not fit is refused by name", "[models][googlenet][quick]") {
  CHECK_THROWS_AS(googlenet_options(options_with(&ModelOptions::image, 15)), ValueError);
  CHECK_THROWS_AS(googlenet_options(options_with(&ModelOptions::width, 12)), ValueError);
  CHECK_THROWS_AS(googlenet_options(options_with(&ModelOptions::layers, 22)), ValueError);
  CHECK_THROWS_AS(googlenet_options(options_with(&ModelOptions::heads, 2)), ValueError);
  CHECK_THROWS_AS(googlenet_options(options_with(&ModelOptions::dropout, 1.0)), ValueError);
  CHECK_THROWS_AS(make_theory("googlenet").state(-1), ValueError);
}
