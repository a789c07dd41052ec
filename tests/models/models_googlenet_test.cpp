// GoogLeNet: counts, names, the two builds bit for bit, training, and its memory against theory and between dry and
// real runs, as integers.

#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/models/googlenet/googlenet.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
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
