// With no flag but the data every family of models trains on the data that are there: the loss falls below a stated one
// at both seeds. 200 steps of the perceptron, as many of the others as a test has time for.

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/trained.h"

namespace {

using namespace thimble;

struct Case {
  const char* model;
  const char* data;
  std::int64_t width, layers, steps;
  double loss;  ///< of the validation; chance is 2.30 for digits, 4.17 for characters
};

}  // namespace

TEST_CASE("default rates: every family trains with them", "[program][slow]") {
  const char* const folder = std::getenv("THIMBLE_DATA");
  if (folder == nullptr || !std::filesystem::exists(std::string(folder) + "/mnist")) {
    WARN("SKIPPED: THIMBLE_DATA names no folder with mnist and tinyshakespeare");
    return;
  }
  for (const Case& c :
       {Case{"mlp", "mnist", 0, 0, 200, 0.35}, Case{"resnet18", "mnist", 8, 0, 40, 2.1},
        Case{"sharedconv", "mnist", 8, 0, 40, 2.2}, Case{"char-gpt", "tinyshakespeare/input.txt", 64, 2, 60, 3.5},
        Case{"bert-base", "tinyshakespeare/input.txt", 64, 2, 60, 3.6}}) {
    for (const std::uint64_t seed : {1, 2}) {
      models::TrainOptions options;
      options.setup.model = c.model;
      options.setup.seed = seed;
      options.setup.sizes.width = c.width, options.setup.sizes.layers = c.layers;
      if (c.layers > 0) options.setup.sizes.heads = 4, options.setup.sizes.sequence = 32;
      options.data = std::string(folder) + "/" + c.data;
      options.steps = c.steps, options.schedule = "cosine", options.warmup = c.steps / 10;  // as the program has them
      const models::TrainReport report = trained_test::run(options).report;
      INFO(c.model << " with seed " << seed << ": " << report.loss_last << ", validation " << report.evaluation->loss);
      CHECK(report.end == nn::TrainEnd::complete);
      CHECK((std::isfinite(report.loss_last) && report.evaluation->loss < c.loss));
    }
  }
}

TEST_CASE("default rates: of every optimizer", "[program]") {
  const auto numbers = [](const char* model, const char* optimizer) {
    models::Setup setup;
    setup.model = model, setup.optimizer = optimizer;
    return models::optimizer_numbers(setup);
  };
  const auto rate = [&](const char* model, const char* optimizer) { return numbers(model, optimizer).rate; };
  for (const char* const name : {"adam", "adam8"}) {
    CHECK((numbers("mlp", name).beta2 == 0.999 && numbers("mlp", name).weight_decay == 0));
  }
  for (const char* const name : {"adamw", "adamw8", "adam-mini", "muon", "galore", "apollo-mini"}) {
    INFO(name);
    const models::OptimizerNumbers is = numbers("mlp", name);
    CHECK((is.beta2 == 0.99 && is.weight_decay == 0.1 && is.rate == 1e-3));
  }
  for (const char* const name : {"sgd", "momentum", "momentum8", "adafactor"}) {
    CHECK((!numbers("mlp", name).beta2 && numbers("mlp", name).weight_decay == 0));
  }
  CHECK(rate("mlp", "momentum") == 0.01);
  CHECK(rate("mlp", "momentum8") == 0.01);
  CHECK(rate("mlp", "sgd") == 0.1);
  CHECK(rate("vit-b16", "momentum") == 0.01);
  CHECK(rate("sharedconv", "momentum") == 0.03);
  CHECK(rate("resnet50", "") == 0.1);
  CHECK(rate("googlenet", "") == 0.1);
  CHECK(rate("mlp", "adamw") == 1e-3);
  CHECK(rate("mlp", "adafactor") == 0.03);
  for (const auto& [width, expected] : {std::pair{128, 3e-3}, {512, 1.0606602e-3}, {768, 7.8254e-4}}) {
    models::Setup setup;
    setup.model = "char-gpt", setup.optimizer = "adamw", setup.sizes.width = width, setup.sizes.heads = 4;
    const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu)});
    CHECK(models::optimizer_numbers(setup).rate == Approx(expected).epsilon(1e-4));
  }
}
