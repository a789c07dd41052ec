// Training with every optimizer that looks at whole tensors: predicted bytes, budgets, ranks, resumed runs.

#include <string>
#include <vector>

#include <thimble/models/training/training.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/trained.h"

using namespace thimble;
using trained_test::Run;

namespace {

models::TrainOptions options_of(const std::string& optimizer, const std::string& model = "char-gpt") {
  models::TrainOptions options;
  options.setup.model = model;
  options.setup.optimizer = optimizer;
  options.setup.batch = 8;
  if (optimizer == "galore") options.setup.optimizer_rank = 8;
  if (model == "char-gpt") {
    options.setup.sizes.layers = 3, options.setup.sizes.heads = 2, options.setup.sizes.width = 64;
    options.setup.sizes.sequence = 64, options.setup.sizes.dropout = 0.1;
  } else {
    options.setup.sizes.image = 32, options.setup.sizes.width = 8;
  }
  options.data = "synthetic";
  options.steps = 12;
  options.eval_every = 6;
  options.eval_batches = 1;
  return options;
}

Run train_as_predicted(const models::TrainOptions& options) {
  Run run = trained_test::run(options);
  CHECK(run.report.differences() == "");
  CHECK(run.report.measured_peak_bytes == run.report.predicted_peak_bytes);
  return run;
}

const char* const names[] = {"muon", "apollo-mini", "galore", "adam-mini"};

}  // namespace

TEST_CASE("optimizers: of matrices train as predicted, in a budget and resumed", "[program]") {
  for (const std::string name : names) {
    INFO(name);
    const files_test::TemporaryFolder folder;
    const models::TrainOptions options = options_of(name);
    const Run plain = train_as_predicted(options);
    CHECK(plain.losses.back() < plain.losses.front());

    models::TrainOptions tight = options;
    tight.budget_bytes = plain.report.predicted_peak_bytes * 4 / 5;
    const Run planned = train_as_predicted(tight);
    CHECK(planned.losses == plain.losses);
    CHECK(planned.report.measured_peak_bytes <= tight.budget_bytes);

    models::TrainOptions fused = options;
    fused.setup.fuses_optimizer = true, fused.setup.clip_norm = 0;
    models::TrainOptions apart = options;
    apart.setup.clip_norm = 0;
    CHECK(train_as_predicted(fused).losses == train_as_predicted(apart).losses);

    models::TrainOptions first = options, rest = options;
    first.save = folder / "state", first.steps = 5;
    trained_test::run(first);
    rest.resume = first.save;
    const Run resumed = train_as_predicted(rest);
    REQUIRE(resumed.losses.size() == 7);
    CHECK(resumed.losses == std::vector<double>(plain.losses.begin() + 5, plain.losses.end()));
  }
}

TEST_CASE("optimizers: of matrices train images and narrow parameters as predicted", "[program][slow]") {
  for (const std::string name : names) {
    INFO(name);
    train_as_predicted(options_of(name, "resnet18"));
    models::TrainOptions narrow = options_of(name);
    models::set_precision(narrow.setup, "O2");
    train_as_predicted(narrow);
  }
}

TEST_CASE("optimizers: what matrices are left to AdamW", "[program]") {
  // By the state that a parameter has: two moments of its own shape are AdamW's.
  const auto elementwise = [](const char* model, const models::ModelOptions& sizes) {
    models::Setup setup;
    setup.model = model, setup.sizes = sizes, setup.optimizer = "muon";
    const memory::Stack stack = memory::make_resource(dry(cpu), nn::profile_options(dry(cpu)));
    const ResourceScope scope(stack.top);
    const auto net = models::make_model(model, sizes, {dry(cpu)});
    const auto optimizer = models::make_optimizer(setup, *net);
    std::vector<std::string> list;
    for (const optim::Named& s : optimizer->state()) {
      const std::string end = ".second_moment";
      if (s.tensor.rank() >= 2 && s.name.ends_with(end)) list.push_back(s.name.substr(0, s.name.size() - end.size()));
    }
    return list;
  };
  using Names = std::vector<std::string>;
  const models::ModelOptions text{.vocabulary = 64, .sequence = 16, .layers = 1, .heads = 2, .width = 16};
  CHECK(elementwise("char-gpt", text) == Names{"wte.weight", "wpe.weight"});
  CHECK(elementwise("tiny-llama", {}) == Names{"model.embed_tokens.weight"});
  CHECK(elementwise("mlp", {}) == Names{"fc3.weight"});
  CHECK(elementwise("resnet18", {.width = 8}) == Names{"fc.weight"});
  for (const std::string& name : elementwise("bert-base", text)) {
    CHECK((name.starts_with("bert.embeddings.") || name.starts_with("cls.")));
  }
  CHECK(elementwise("vit-b16", {.image = 32, .layers = 1, .heads = 2, .width = 16}).size() == 4);
}

TEST_CASE("optimizers: a rank belongs to galore", "[program]") {
  models::TrainOptions options = options_of("muon");
  options.setup.optimizer_rank = 4;
  CHECK(trained_test::refusal(options).find("`optimizer_rank` 4: muon has no rank; it belongs to galore") !=
        std::string::npos);
}
