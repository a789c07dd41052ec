// Runs of models with sharded blocks, with files: interrupted in one layout and resumed in another, started from
// another layout's weights, and predicted bytes on each rank.

#include <map>
#include <string>

#include <thimble/core/error.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/weights.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/part_layouts.h"
#include "support/train_ranks.h"

using namespace thimble;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using testing::Layout;
using testing::on_ranks;
using testing::options_of;
using testing::setup_of;

namespace {

void check_bytes(const models::TrainReport& report, const Layout& layout) {
  CHECK(report.differences() == "");
  if (layout.ranks == 1) CHECK(report.predicted_peak_bytes == report.measured_peak_bytes);
  REQUIRE(report.ranks.size() == static_cast<std::size_t>(layout.ranks == 1 ? 0 : layout.ranks));
  for (const nn::RankFigures& rank : report.ranks) CHECK(rank.predicted_peak_bytes == rank.measured_peak_bytes);
}

}  // namespace

TEST_CASE("parts in runs: a run that stops in one layout goes on in another with the bits of one that never stopped",
          "[parts_runs]") {
  const TemporaryFolder folder;
  const std::string model = GENERATE("char-gpt", "tiny-llama");
  const Layout before = GENERATE(Layout{2, 1}, Layout{2, 2}, Layout{2, 4, 3});
  models::RunOptions options = options_of(model, {2, 1});
  options.steps = 4;
  options.save = folder / "whole";
  check_bytes(testing::train(options), {2, 1});
  options.setup = setup_of(model, before);
  options.steps = 2;
  options.save = folder / "half";
  check_bytes(testing::train(options), before);
  options.steps = 4;
  options.resume = folder / "half";
  for (const Layout& after : {Layout{2, 1}, Layout{2, 2}, Layout{2, 4, 1}, Layout{2, 4, 2}, Layout{2, 8, 3}}) {
    INFO(model << ": " << before.text() << ", then " << after.text());
    options.setup = setup_of(model, after);
    options.save = folder / "rest";
    const models::TrainReport report = testing::train(options);
    CHECK(report.first_step == 2);
    check_bytes(report, after);
    CHECK((read_text_file(folder / "rest") == read_text_file(folder / "whole")));
  }
}

TEST_CASE("parts in runs: each rank commits what was predicted, saving between steps too", "[parts_runs]") {
  const TemporaryFolder folder;
  const bool has_budget = GENERATE(false, true);
  const Layout layout = GENERATE(Layout{2, 1}, Layout{4, 1}, Layout{2, 2}, Layout{4, 4}, Layout{2, 4, 1},
                                 Layout{2, 4, 2}, Layout{2, 4, 3});
  const std::string model = GENERATE("char-gpt", "tiny-llama");
  INFO(model << ", " << layout.text() << (has_budget ? ", budget" : ""));
  models::RunOptions options = options_of(model, layout);
  options.steps = 2;
  options.save = folder / "first";
  check_bytes(testing::train(options), layout);
  options.resume = options.save;
  options.steps = 5;
  options.save_every = 1;
  options.save = folder / "second";
  options.save_weights = folder / "weights";
  if (has_budget) options.budget_bytes = testing::least_budget(options);
  const models::TrainReport report = testing::train(options);
  check_bytes(report, layout);
  if (has_budget) CHECK(report.measured_peak_bytes <= options.budget_bytes);
  // The last checkpoint, and the parameters without state.
  const SafetensorsReader file(options.save), weights(options.save_weights);
  for (const SafetensorsEntry& entry : weights.header().tensors) {
    CHECK(file.entry("model." + entry.name).crc32c == entry.crc32c);
  }
}

TEST_CASE("parts in runs: weights of any layout begin a run of any other", "[parts_runs]") {
  const TemporaryFolder folder;
  const std::string model = GENERATE("char-gpt", "tiny-llama", "vit-b16");
  const Layout from = GENERATE(Layout{1, 1}, Layout{2, 1}, Layout{2, 4, 3});
  models::RunOptions options = options_of(model, from);
  options.steps = 2;
  options.save_weights = folder / "weights";
  check_bytes(testing::train(options), from);
  models::ModelOptions sizes = options.setup.sizes;
  if (model != "vit-b16") {  // the data's vocabulary
    const SafetensorsReader file(folder / "weights");
    sizes.vocabulary = file.entry(model == "char-gpt" ? "wte.weight" : "model.embed_tokens.weight").shape[0];
  }
  const auto whole = models::make_model(model, sizes);
  CHECK(nn::load_weights(*whole, folder / "weights").metadata.at("model") == model);
  std::map<int, double> losses;  // of one rank, by shards
  for (const Layout& to : {Layout{2, 1}, Layout{4, 1}, Layout{2, 2}, Layout{4, 4}, Layout{2, 4, 3}, Layout{1, 2, 3}}) {
    INFO(model << ": " << from.text() << ", then " << to.text());
    models::Setup setup = setup_of(model, to);
    setup.weights = folder / "weights";
    setup.sizes.vocabulary = sizes.vocabulary;
    on_ranks(setup, [&](models::TrainedParts& parts, const models::Setup&) {
      if (parts.parallel) {
        nn::save_weights(folder / "again", *parts.model, *parts.parallel);
      } else {
        nn::save_weights(*parts.model, folder / "again");
      }
    });
    const SafetensorsReader first(folder / "weights"), again(folder / "again");
    CHECK(first.header().tensors == again.header().tensors);  // including checksums
    models::RunOptions more = options_of(model, to);
    more.setup.weights = folder / "weights";
    more.steps = 1;
    const models::TrainReport report = testing::train(more);
    check_bytes(report, to);
    const auto [at, is_new] = losses.try_emplace(to.tp, report.loss_first);
    CHECK(at->second == report.loss_first);
  }
}

TEST_CASE("parts in runs: another number of parts is said, and allowed", "[parts_runs]") {
  const TemporaryFolder folder;
  models::RunOptions options = options_of("char-gpt", {2, 1});
  options.steps = 2;
  options.save = folder / "two";
  testing::train(options);
  for (const int tp : {1, 2, 4}) {
    models::RunOptions more = options_of("char-gpt", {tp, 1});
    more.steps = 3;
    more.resume = options.save;
    models::Engine engine(more);
    CHECK(engine.recipe_change() == (tp == 2 ? "" : "`tp` 2 -> " + std::to_string(tp)));
  }
  options = options_of("char-gpt", {1, 1});
  options.steps = 2;
  options.save = folder / "one";
  testing::train(options);
  options.setup.layout.tp = 4;
  options.steps = 3;
  options.resume = folder / "one";
  CHECK(models::Engine(options).recipe_change() == "`tp` 1 -> 4");
  options.setup.layout.sequence_parallel = true;
  CHECK(models::Engine(options).recipe_change() == "`tp` 1 -> 4, `sequence_parallel` off -> on");
  // One rank with all stages sums a tied table as several stages do.
  options.setup.layout.tp = 1, options.setup.layout.sequence_parallel = false;
  options.setup.layout.pp = 2;
  CHECK(models::Engine(options).recipe_change() == "`pp` 1 -> 2");
}
