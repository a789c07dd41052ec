// `--lora` and `--base` in whole runs: predicted bytes with and without a budget; bits of interrupted runs; adapters
// and weights in files; and conflicts.

#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/dist/threads.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/lora_theory.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/lora/adapter_files.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/trained.h"

using namespace thimble;
using trained_test::Run;
using trained_test::train_as_predicted;

namespace lora_run_test {

models::RunOptions options_of(const std::string& model, const std::string& base = "") {
  models::RunOptions options;
  options.setup.model = model;
  options.setup.batch = 4;
  options.setup.sizes.layers = 3, options.setup.sizes.heads = 4, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 32;
  if (model == "tiny-llama") options.setup.sizes.key_heads = 2;
  options.setup.lora.rank = 4;
  if (!base.empty()) models::set_base(options.setup, base);
  options.data = "synthetic", options.steps = 12, options.eval_every = 5, options.eval_batches = 2;
  return options;
}

/// A budget between the smallest plan and keeping everything.
std::size_t some_budget(const models::RunOptions& options) {
  models::Engine engine(options);
  nn::Planner planner(engine.runs(), cpu, nn::hardware("cpu"), models::planner_options(options.setup, cpu));
  CHECK(planner.smallest().peak_bytes < planner.keep_everything().peak_bytes);
  return planner.smallest().peak_bytes;
}

/// Saves the weights of a briefly trained model.
std::string weights_of(const models::RunOptions& like, const std::string& path) {
  models::RunOptions options = like;
  options.setup.lora.rank = 0, options.setup.lora.base.clear(), options.setup.precision.dtype = DType::f32;
  options.setup.seed = 9, options.steps = 5, options.save_weights = path;
  trained_test::run(options);
  return path;
}

}  // namespace lora_run_test

TEST_CASE("lora runs: predicted and measured are one number, and a budget changes no bit", "[lora][slow]") {
  using namespace lora_run_test;
  const files_test::TemporaryFolder folder;
  for (const char* const model : {"char-gpt", "tiny-llama"}) {
    const std::string weights = weights_of(
        [&] {
          models::RunOptions like = options_of(model);
          like.setup.sizes.sequence = 64;
          return like;
        }(),
        folder / model);
    std::vector<std::vector<double>> losses;
    for (const char* const base : {"f32", "bf16", "int8", "nf4"}) {
      INFO(model << " " << base);
      models::RunOptions options = options_of(model, base);
      options.setup.batch = 16, options.setup.sizes.sequence = 64, options.steps = 7;
      options.setup.weights = weights, options.save = folder / "run";
      const Run plain = train_as_predicted(options);
      CHECK(plain.report.trained_parameters < plain.report.parameters / 2);
      models::RunOptions tight = options;
      tight.budget_bytes = some_budget(options);
      const Run planned = train_as_predicted(tight);
      CHECK(planned.report.measured_peak_bytes <= tight.budget_bytes);
      CHECK(planned.losses == plain.losses);
      CHECK(planned.report.evaluation->loss == plain.report.evaluation->loss);
      REQUIRE(planned.report.placed.has_value());
      CHECK(planned.report.placed->deviations == 0);
      losses.push_back(plain.losses);
    }
    // A coarser base is another function, but close.
    CHECK(losses[0][0] == Approx(losses[1][0]).epsilon(0.02));
    CHECK(losses[0][0] == Approx(losses[2][0]).epsilon(0.03));
    CHECK(losses[0][0] == Approx(losses[3][0]).epsilon(0.1));
    CHECK(losses[2] != losses[1]);
    CHECK(losses[3] != losses[2]);
  }
}

TEST_CASE("lora runs: with other techniques", "[lora]") {
  using namespace lora_run_test;
  const models::RunOptions plain = options_of("tiny-llama", "nf4");
  const auto runs = [&](const std::function<void(models::RunOptions&)>& change) {
    models::RunOptions options = plain;
    change(options);
    return train_as_predicted(options).losses;
  };
  const auto expected = runs([](auto&) {});
  CHECK(runs([](auto& o) { o.setup.sizes.head = models::Head::chunked; }).size() == expected.size());
  CHECK(runs([](auto& o) { o.setup.micro_batches = 2; }).size() == expected.size());
  CHECK(runs([](auto& o) { o.setup.optimizer.clip_norm = 0; }) == runs([](auto& o) {
          o.setup.optimizer.clip_norm = 0;
          o.setup.fuses_optimizer = true;
        }));
  CHECK(runs([](auto& o) { o.setup.lora.dropout = 0.2; }) != expected);
  CHECK(runs([](auto& o) { o.setup.lora.targets = {"q_proj", "v_proj"}; }) != expected);
  CHECK(runs([](auto& o) { o.setup.precision.dtype = DType::f32; }) != expected);  // the base decodes to f32
  models::RunOptions image = plain;
  image.setup.model = "vit-b16";
  image.setup.sizes = {.image = 32, .channels = 3, .classes = 10, .layers = 2, .heads = 4, .width = 64};
  CHECK(train_as_predicted(image).losses.size() == 12);
  models::RunOptions masked = plain;
  masked.setup.model = "bert-base";
  masked.setup.sizes = {.vocabulary = 60, .sequence = 32, .layers = 2, .heads = 4, .width = 64};
  CHECK(train_as_predicted(masked).losses.size() == 12);
}

TEST_CASE("lora runs: a run goes on from its checkpoint, with the bits of one that never stopped", "[lora]") {
  using namespace lora_run_test;
  const files_test::TemporaryFolder folder;
  for (const char* const base : {"", "nf4"}) {
    INFO(base);
    models::RunOptions whole = options_of("char-gpt", base);
    whole.setup.weights = weights_of(whole, folder / "weights");
    whole.setup.lora.dropout = 0.1;
    whole.save = folder / "whole";
    models::RunOptions first = whole;
    whole.save_adapters = folder / "adapters";
    const Run expected = train_as_predicted(whole);
    first.save = folder / "first", first.save_every = 6, first.keep = 3;
    trained_test::run(first);
    models::RunOptions rest = whole;
    rest.resume = folder / "first.step-6";
    rest.save = folder / "rest";
    const Run run = train_as_predicted(rest);
    REQUIRE(run.losses.size() == 6);
    CHECK(std::equal(run.losses.begin(), run.losses.end(), expected.losses.begin() + 6));
    CHECK(files_test::read_text_file(rest.save) == files_test::read_text_file(whole.save));
    const SafetensorsReader file(whole.save);
    for (const SafetensorsEntry& entry : file.header().tensors) CHECK(entry.name.find("lora_") != std::string::npos);
    // The adapters are in PEFT's folder.
    const SafetensorsReader adapters(whole.save_adapters + "/adapter_model.safetensors");
    CHECK(adapters.header().find("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight") != nullptr);
    CHECK(adapters.header().tensors.size() == 3 * 4 * 2);
    // A resumed run refuses another base and other adapters.
    const auto refuses = [&](const std::function<void(models::RunOptions&)>& change, const std::string& text) {
      models::RunOptions other = rest;
      change(other);
      CHECK_THROWS_WITH(models::Engine(other).plan(), Catch::Contains(text));
    };
    refuses([](auto& o) { o.setup.lora.rank = 3; }, "was trained with `lora_rank` 4");
    refuses([](auto& o) { o.setup.lora.alpha = 9; }, "was trained without `lora_alpha`");
    models::RunOptions by_default = rest;
    by_default.setup.lora.alpha = 4;  // as the rank
    CHECK_NOTHROW(models::Engine(by_default).plan());
    refuses([](auto& o) { o.setup.lora.targets = {"c_fc"}; }, "was trained without `lora_targets`");
    refuses([](auto& o) { models::set_base(o.setup, "int8"); }, "`base`");
    refuses([](auto& o) { o.setup.weights.clear(); }, "`weights` with the sum");
    refuses(
        [](auto& o) {
          o.setup.lora.rank = 0, o.setup.lora.dropout = 0, o.setup.lora.base.clear(), o.save_adapters.clear();
        },
        "was trained with `lora_rank` 4");
  }
}

TEST_CASE("lora runs: weights are what training begins with, whole or adapted", "[lora]") {
  using namespace lora_run_test;
  const files_test::TemporaryFolder folder;
  models::RunOptions source = options_of("char-gpt");
  const std::string weights = weights_of(source, folder / "weights");
  models::RunOptions whole = source;
  whole.setup.lora.rank = 0;
  whole.setup.weights = weights;
  source.setup.weights = weights;
  const Run all = train_as_predicted(whole), adapted = train_as_predicted(source);
  CHECK(all.losses[0] == adapted.losses[0]);  // adapters start at zero
  CHECK(all.losses[1] != adapted.losses[1]);
  CHECK(all.report.trained_parameters == all.report.parameters);
  whole.setup.weights.clear();
  CHECK(train_as_predicted(whole).losses[0] != all.losses[0]);
  // A file of another model, then no file.
  models::RunOptions other = options_of("tiny-llama");
  other.setup.weights = weights;
  CHECK_THROWS_AS(models::Engine(other).plan(), ValueError);
  source.setup.weights = folder / "nowhere";
  CHECK_THROWS_AS(models::Engine(source).plan(), FileError);
}

TEST_CASE("lora runs: what does not go together is refused", "[lora]") {
  using namespace lora_run_test;
  const auto refuses = [](const std::function<void(models::RunOptions&)>& change, const std::string& text) {
    models::RunOptions options = options_of("char-gpt", "nf4");
    change(options);
    INFO(text);
    CHECK_THROWS_WITH(models::Engine(options).plan(), Catch::Contains(text));
  };
  refuses([](auto& o) { o.setup.lora.rank = 0; }, "`base`: needs `lora_rank`");
  refuses([](auto& o) { o.setup.lora.rank = -1; }, "`lora_rank`: expected at least 1, or 0 for no adapters, got -1");
  refuses([](auto& o) { o.setup.lora.dropout = 1; }, "`lora_dropout`: 1 is not in [0, 1)");
  refuses([](auto& o) { o.setup.precision.policy = "O2", o.setup.precision.dtype = DType::f16; },
          "`base`: nf4 not with `precision` O2");
  refuses([](auto& o) { o.setup.precision.dtype = DType::f8e4m3; }, "`dtype`: f8e4m3 contradicts `base` nf4");
  refuses([](auto& o) { o.setup.lora.targets = {"q_proj"}; }, "target 'q_proj' means no linear layer");
  refuses([](auto& o) { o.save_weights = "x"; }, "`save_weights`: the weights are frozen");
  refuses([](auto& o) { o.setup.lora.rank = 0, o.setup.lora.base.clear(), o.save_adapters = "x"; }, "`save_adapters`");
  refuses([](auto& o) { o.setup.layout.ranks = 2, o.setup.layout.zero = 3; }, "not with `zero` 3");
  models::Setup setup;
  CHECK_THROWS_WITH(models::set_base(setup, "nf5"), "`base`: 'nf5' is not one of f32, bf16, int8, nf4");
}

TEST_CASE("lora runs: ranks share a batch, with the bits of one that has it all", "[lora][dist]") {
  using namespace lora_run_test;
  const files_test::TemporaryFolder folder;
  for (const int zero : {0, 2}) {
    INFO("stage " << zero);
    models::RunOptions two = options_of("char-gpt", "nf4");
    two.setup.layout.ranks = 2, two.setup.layout.zero = zero;
    two.save = folder / "two";
    dist::run_ranks(2, [&](dist::Communicator& ranks) {
      models::RunOptions own = two;
      own.ranks = &ranks;
      own.setup.layout.rank = ranks.rank();
      const models::TrainReport report = models::Engine(own).run();
      if (!report.differences().empty()) throw ValueError(report.differences());
    });
    models::RunOptions one = options_of("char-gpt", "nf4");
    one.setup.micro_batches = 2;
    one.save = folder / "one";
    train_as_predicted(one);
    const SafetensorsReader there(two.save), here(one.save);
    REQUIRE(there.header().tensors.size() == here.header().tensors.size());
    for (const SafetensorsEntry& entry : here.header().tensors) {
      INFO(entry.name);
      CHECK(there.entry(entry.name).crc32c == entry.crc32c);
    }
  }
}

TEST_CASE("lora runs: a plan of a large model commits nothing, and adds up", "[lora]") {
  models::RunOptions options;
  options.setup.model = "llama-3-70b", options.setup.batch = 1, options.setup.sizes.sequence = 512;
  options.setup.sizes.layers = 5, options.setup.lora.rank = 16;
  models::set_base(options.setup, "nf4");
  const std::size_t before = process::peak_rss_bytes();
  const models::PlanReport report = models::make_plan(options);
  CHECK(process::peak_rss_bytes() - before < report.plan.peak_bytes / 4);
  const models::LoraTheory theory = models::lora_theory("llama-3-70b", {.sequence = 512, .layers = 5}, DType::bf16,
                                                        {{.rank = 16, .alpha = 16}}, WeightCode::nf4);
  const auto peak = static_cast<std::int64_t>(report.plan.peak_bytes);
  CHECK(report.parameters == theory.base_elements + theory.adapter_elements);
  CHECK(peak > theory.base_bytes + theory.adapter_bytes() + theory.optimizer_bytes(2));
  CHECK(peak < 2 * theory.base_elements);  // the bytes of only the base in bf16
}

TEST_CASE("lora runs: training begins with the adapters of a folder", "[lora]") {
  using namespace lora_run_test;
  const files_test::TemporaryFolder folder;
  for (const char* const model : {"char-gpt", "tiny-llama"}) {
    INFO(model);
    models::RunOptions first = options_of(model);
    first.setup.lora.alpha = 8, first.setup.lora.dropout = 0.1;
    first.setup.lora.targets = {std::string(model) == "char-gpt" ? "c_attn" : "q_proj"};
    first.save_adapters = folder / (std::string(model) + "-first");
    train_as_predicted(first);
    models::RunOptions next = options_of(model);
    next.setup.lora.rank = 0;
    models::set_adapters(next.setup, first.save_adapters);
    CHECK(next.setup.lora.rank == 4);
    CHECK(next.setup.lora.alpha == 8.0);
    CHECK(next.setup.lora.dropout == 0.1);
    CHECK(next.setup.lora.targets.size() == 3);
    next.steps = 1, next.setup.optimizer.rate = 0;
    next.save_adapters = folder / (std::string(model) + "-next");
    const Run same = train_as_predicted(next);
    const auto tensors = [](const std::string& at) {
      return files_test::read_text_file(at + "/adapter_model.safetensors");
    };
    CHECK(tensors(next.save_adapters) == tensors(first.save_adapters));  // at a rate of 0
    models::RunOptions drawn = first;
    drawn.steps = 1, drawn.setup.optimizer.rate = 0, drawn.save_adapters = folder / (std::string(model) + "-drawn");
    CHECK(train_as_predicted(drawn).losses != same.losses);
    // A coded base needs the predicted bytes, and a budget does not change its bits.
    next.setup.optimizer.rate = 1e-3, next.steps = 5, next.save_adapters.clear();
    models::set_base(next.setup, "nf4");
    next.setup.batch = 16, next.setup.sizes.sequence = 64;
    const Run plain = train_as_predicted(next);
    next.budget_bytes = some_budget(next);
    CHECK(train_as_predicted(next).losses == plain.losses);
  }
}

TEST_CASE("lora runs: a folder of adapters that does not fit", "[lora]") {
  using namespace lora_run_test;
  const files_test::TemporaryFolder folder;
  models::RunOptions first = options_of("tiny-llama");
  first.steps = 1, first.save_adapters = folder / "adapters";
  train_as_predicted(first);
  const auto message = [&](auto&& change) -> std::string {
    models::RunOptions next = options_of("tiny-llama");
    next.setup.lora.rank = 0;
    try {
      change(next);
      models::Engine(next).plan();
      return "nothing was thrown";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const auto begin_with = [&](models::RunOptions& o) { models::set_adapters(o.setup, first.save_adapters); };
  CHECK(message(begin_with) == "nothing was thrown");
  const auto contains = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(files_test::contains(text, part));
    return files_test::contains(text, part);
  };
  CHECK(contains(message([&](models::RunOptions& o) { o.setup.lora.rank = 2, begin_with(o); }),
                 "`adapters`: not with `lora_rank`"));
  CHECK(contains(message([&](models::RunOptions& o) { o.setup.lora.targets = {"q_proj"}, begin_with(o); }),
                 "`adapters`: not with `lora_targets`"));
  CHECK(contains(message([&](models::RunOptions& o) { begin_with(o), o.setup.lora.rank = 2; }), "r 4 and lora_alpha"));
  CHECK(contains(message([&](models::RunOptions& o) { begin_with(o), o.setup.sizes.layers = 2; }),
                 "target 'model.layers.2."));
  CHECK(contains(message([&](models::RunOptions& o) { begin_with(o), o.setup.sizes.width = 32; }),
                 "the module needs (4, 32)"));
  CHECK(contains(
      message([&](models::RunOptions& o) { begin_with(o), o.setup.model = "char-gpt", o.setup.sizes.key_heads = 0; }),
      "means no linear layer"));
  CHECK(contains(message([&](models::RunOptions& o) { models::set_adapters(o.setup, folder / "none"); }), "none"));
}
