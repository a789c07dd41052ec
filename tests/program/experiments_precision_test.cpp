// The experiments on precision: their quick forms hold, and so does their theory.

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <thimble/bench/experiments/precision.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/optim/adam.h>

#include "process_rows.h"
#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;

namespace {

report::Experiment equal_experiment(const std::string& name) {
  report::Experiment experiment = quick(name);
  for (const report::Row& row : experiment.rows) {
    INFO(experiment.name << ", row " << &row - experiment.rows.data());
    CHECK(report::match(row) != report::Match::different);
    CHECK(report::unnamed_bytes(row).value_or(0) == 0);
  }
  return experiment;
}

/// A run that keeps the processor busy for this many milliseconds per step, and may skip steps.
class Busy final : public nn::TrainingRun {
 public:
  Busy(double ms, std::int64_t good_steps) : ms_(ms), good_steps_(good_steps) { options_.scaler = &scaler_; }
  void step() override {
    const bool is_skipped = good_steps_-- <= 0;
    scaler_.record({.is_skipped = is_skipped});
    for (const double start = process::processor_ms(); process::processor_ms() - start < (is_skipped ? 0 : ms_);) {
    }
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return 0; }

 private:
  double ms_;
  std::int64_t good_steps_;
  optim::GradScaler scaler_;
  nn::StepOptions options_;
};

nn::MakeRun busy(double ms, std::int64_t good_steps) {
  return [=](memory::Device) { return std::make_unique<Busy>(ms, good_steps); };
}

}  // namespace

TEST_CASE("experiments: a name stands for an experiment and for those that begin with it", "[experiments]") {
  const auto names = [](const std::vector<std::string>& given) {
    std::vector<std::string> chosen;
    for (const bench::ExperimentTable* const e : bench::select_experiments(given)) chosen.push_back(e->name);
    return chosen;
  };
  using Names = std::vector<std::string>;
  CHECK(names({"checkpoint"}) == Names{"checkpoint-depth", "checkpoint-sequence", "checkpoint-batch"});
  CHECK(names({"precision"}) == Names{"precision", "precision-bytes", "precision-state", "precision-encoder",
                                      "precision-int8", "precision-int8-bytes"});
  CHECK(names({"precision-int8", "training"}) == Names{"training", "precision-int8", "precision-int8-bytes"});
  CHECK(names({}).size() == bench::all_experiments().size());
  CHECK(names({"sharing", "all"}).size() == bench::all_experiments().size());
  CHECK_THROWS_AS(names({"check"}), ValueError);
  CHECK_THROWS_AS(names({"precision-"}), ValueError);
}

TEST_CASE("experiments: what was measured otherwise than predicted, or has bytes without a name, does not hold",
          "[experiments]") {
  report::Experiment experiment;
  CHECK_FALSE(report::holds(report::tally(experiment)));  // nothing was shown
  experiment.rows.resize(2);
  experiment.rows[0].predicted_bytes = experiment.rows[1].predicted_bytes = 100;
  CHECK(report::holds(report::tally(experiment)));
  experiment.rows[0].measured_bytes = 100;
  experiment.rows[1].theory_bytes = 90;
  experiment.rows[1].remainder = {{"statistics", 10}};
  CHECK(report::holds(report::tally(experiment)));
  experiment.rows[0].measured_bytes = 101;
  CHECK_FALSE(report::holds(report::tally(experiment)));
  experiment.rows[0].measured_bytes = 100;
  experiment.rows[1].theory_bytes = 91;
  CHECK_FALSE(report::holds(report::tally(experiment)));
}

TEST_CASE("experiments: every compared figure counts, and so does the process", "[experiments]") {
  report::Experiment experiment;
  experiment.rows.resize(1);
  report::Row& row = experiment.rows[0];
  row.predicted_bytes = row.measured_bytes = 100;
  row.compared = {{"height", 90, 90}, {"resident", 100, 100}};
  CHECK(report::match(row) == report::Match::equal);
  CHECK(report::tally(experiment).ran == 1);
  row.compared[1].measured = 104;
  CHECK(report::match(row) == report::Match::different);
  CHECK_FALSE(report::holds(report::tally(experiment)));
  row.measured_bytes.reset();  // other figures are compared even without measured bytes
  CHECK(report::match(row) == report::Match::different);
  row.compared.clear();
  CHECK(report::match(row) == report::Match::unknown);
  CHECK(report::holds(report::tally(experiment)));
  CHECK(report::tally(experiment).ran == 0);
  row.process_peak_bytes = 120;
  row.process_promise_bytes = 120;
  CHECK(report::holds(report::tally(experiment)));
  CHECK(report::tally(experiment).within == 1);
  row.process_peak_bytes = 121;
  CHECK_FALSE(report::holds(report::tally(experiment)));
  row.process_peak_bytes.reset();
  row.lacks = "a disk";
  CHECK(report::tally(experiment).lacking == 1);
  report::Report report;
  report.experiments = {experiment};
  CHECK(report::holds(report::tally(report)));
  report.experiments.emplace_back();  // an experiment without rows
  CHECK_FALSE(report::holds(report::tally(report)));
}

TEST_CASE("experiments: steps are timed side by side, skipped ones left out", "[experiments]") {
  const std::vector<double> ms = bench::step_processor_ms(cpu, {busy(4, 100), busy(1, 4)}, 4);
  REQUIRE(ms.size() == 2);
  CHECK(ms[0] >= 4);
  CHECK(ms[1] >= 1);  // a skipped step takes less
  CHECK(ms[0] > ms[1]);
  CHECK_THROWS_AS(bench::step_processor_ms(cpu, {busy(1, 100)}, 0), ValueError);
  CHECK_THROWS_WITH(bench::step_processor_ms(cpu, {busy(1, 100), busy(1, 2)}, 2),
                    Catch::StartsWith("step_processor_ms: run 1 skipped each of its 2 steps"));
}

TEST_CASE("theory: 8-bit and bf16 state against the optimizer", "[theory]") {
  models::ModelOptions sizes;
  sizes.layers = 2, sizes.heads = 2, sizes.width = 40, sizes.sequence = 24, sizes.vocabulary = 103;
  const auto model = models::make_model("char-gpt", sizes, {dry(cpu)});
  const models::Theory theory = models::make_theory("char-gpt", sizes);
  std::vector<std::int64_t> sorted, of_model;
  for (const models::ParameterTheory& p : theory.parameters) {
    sorted.insert(sorted.end(), static_cast<std::size_t>(p.count), p.shape.elements());
  }
  for (const optim::Named& parameter : model->trainable()) of_model.push_back(parameter.tensor.elements());
  std::sort(sorted.begin(), sorted.end()), std::sort(of_model.begin(), of_model.end());
  CHECK(sorted == of_model);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32}) {
    for (const std::int64_t smallest : {1, 4096, 1 << 20}) {
      const optim::MomentFormat format{.dtype = dtype, .smallest = smallest};
      const optim::Adam adam(model->trainable(), {.moments = format});
      CHECK(theory.state(2, format).optimizer == static_cast<std::int64_t>(adam.state_bytes()));
    }
  }
  CHECK_THROWS_AS(theory.state(-1), ValueError);
  CHECK_THROWS_AS(theory.state(2, {.dtype = DType::f16}), ValueError);
}

TEST_CASE("theory: BERT's state under a policy against the ledger", "[theory][precision]") {
  models::ModelOptions sizes;
  sizes.layers = 2, sizes.heads = 2, sizes.width = 16, sizes.sequence = 8, sizes.vocabulary = 19;
  for (const char* name : {"O0", "O1", "O2", "bf16", "bf16-kahan", "fp8", "fp8-block"}) {
    INFO(name);
    models::Setup setup;
    setup.model = "bert-base", setup.sizes = sizes, setup.batch = 2;
    models::set_precision(setup, name);
    const bench::StepBytes bytes = bench::step_bytes(dry(cpu), models::zero_batch_run(setup));
    const models::ModelState state = models::make_theory("bert-base", sizes, nn::precision(name)).state(2);
    CHECK(state.total() == bytes.state());
    CHECK(state.parameter_elements == bytes.parameters);
  }
}

TEST_CASE("experiments: every policy trains in the bytes that were predicted", "[experiments][precision]") {
  const report::Experiment experiment = equal_experiment("precision");
  REQUIRE(experiment.rows.size() == nn::precisions().size() + 5);
  REQUIRE(experiment.bars.size() == 1);
  CHECK(experiment.bars[0].bars.size() == experiment.rows.size());
  for (std::size_t i = 0; i < experiment.rows.size(); ++i) {
    const report::Row& row = experiment.rows[i];
    INFO(bench::setting(row, "precision")
         << ", " << bench::setting(row, "optimizer") << ", " << bench::setting(row, "saved"));
    if (i < nn::precisions().size()) CHECK(bench::setting(row, "precision") == nn::precisions()[i].name);
    CHECK(report::match(row) == report::Match::equal);
    const nn::Precision precision = bench::precision_cases()[i].precision();
    if (precision.parameters != DType::f32) CHECK(bench::number(row, "saving") > 0);
    CHECK(std::fabs(bench::number(row, "validation_change")) < 0.05);
    CHECK(bench::number(row, "ms_per_step") > 0);
    CHECK(report::find_number(row, "skipped").has_value() == precision.scales_loss);
  }
}

TEST_CASE("experiments: every policy's bytes are those of theory, by category", "[experiments][precision]") {
  const report::Experiment experiment = equal_experiment("precision-bytes");
  REQUIRE(experiment.rows.size() == (nn::precisions().size() + 5) * memory::category_count);
  const report::Tally tally = report::tally(experiment);
  CHECK(tally.equal == tally.rows);
  // Five categories per case, but four where tensors are packed.
  CHECK(tally.with_theory == (nn::precisions().size() + 5) * 5 - 1);
  CHECK(tally.named == tally.with_theory);
  for (const report::Row& row : experiment.rows) {
    CHECK(bench::number(row, "at_peak") == bench::number(row, "at_peak_measured"));
    CHECK(bench::number(row, "at_peak") <= static_cast<double>(*row.predicted_bytes));
  }
  const auto bytes = [&](const char* policy, const char* optimizer, const char* saved, const char* category) {
    for (const report::Row& row : experiment.rows) {
      if (bench::setting(row, "precision") == policy && bench::setting(row, "optimizer") == optimizer &&
          bench::setting(row, "saved") == saved && bench::setting(row, "category") == category) {
        return *row.measured_bytes;
      }
    }
    return std::int64_t{-1};
  };
  const std::int64_t exact = bytes("O0", "adamw", "kept", "activation");
  CHECK(bytes("O3", "adamw", "kept", "activation") < exact * 6 / 10);
  CHECK(bytes("O0", "adamw", "i8", "activation") < exact);
  CHECK(bytes("O0", "adamw8", "kept", "activation") == exact);
  CHECK(bytes("O0", "adamw8", "kept", "optimizer") < bytes("O0", "adamw", "kept", "optimizer") / 3);
  CHECK(bytes("bf16", "adamw8", "kept", "parameter") == bytes("bf16", "adamw", "kept", "parameter"));
  CHECK(bytes("bf16", "adamw", "kept", "optimizer") - bytes("bf16", "adamw8", "kept", "optimizer") ==
        bytes("O0", "adamw", "kept", "optimizer") - bytes("O0", "adamw8", "kept", "optimizer"));
}

TEST_CASE("experiments: what a parameter costs under every policy", "[experiments][precision]") {
  const report::Experiment experiment = equal_experiment("precision-state");
  REQUIRE(experiment.rows.size() == 2 * (nn::precisions().size() + 4));
  const report::Tally tally = report::tally(experiment);
  CHECK(tally.named == experiment.rows.size());
  CHECK(tally.equal == experiment.rows.size() / 2);
  for (const report::Row& row : experiment.rows) {
    const std::string policy = bench::setting(row, "precision");
    if (bench::setting(row, "optimizer") != "adamw") continue;
    for (const auto& [name, bytes] : {std::pair{"O0", 16}, {"O2", 16}, {"O3", 12}, {"bf16-kahan", 14}}) {
      if (policy == name) CHECK(bench::number(row, "per_parameter") == bytes);
    }
  }
  CHECK(experiment.verdict.find("master copies cost 4.00 (33 % more than O3)") != std::string::npos);
}

TEST_CASE("experiments: where an encoder saves 40 %", "[experiments][precision]") {
  using Sizes = std::vector<bench::EncoderSaving>;
  CHECK(bench::saving_verdict("O2", 0.4, Sizes{{"a", 0.5, 0.1}, {"b", 0.9, 0.45}, {"c", 0.8, 0.41}, {"d", 0.7, 0.3}}) ==
        "O2 saves 40 % at 2 of 4 sizes (b, c), where activations and temporaries are at least 80 % of the peak in f32; "
        "with 70 % of them (d) it saves 30.0 %");
  CHECK(bench::saving_verdict("O1", 0.4, Sizes{{"a", 0.5, 0.1}}) ==
        "O1 saves 40 % at 0 of 1 sizes; with 50 % of them (a) it saves 10.0 %");
  const report::Experiment experiment = equal_experiment("precision-encoder");
  REQUIRE(experiment.rows.size() == 5 * 6);
  const report::Tally tally = report::tally(experiment);
  CHECK(tally.equal == 5 * 2);
  for (const report::Row& row : experiment.rows) {
    const std::string policy = bench::setting(row, "precision");
    INFO(bench::setting(row, "model") << ", " << policy);
    CHECK(report::find_number(row, "saving_theory").has_value());
    if (bench::setting(row, "model") != "bert-base") {
      CHECK(std::fabs(report::find_number(row, "validation_change").value_or(0)) < 0.05);
    } else if (policy == "O1" || policy == "O2") {
      // Temporaries, which the formula omits, are halved, too.
      CHECK(std::fabs(bench::number(row, "saving") - bench::number(row, "saving_theory")) < 0.05);
    } else if (policy == "fp8") {
      CHECK(std::fabs(bench::number(row, "saving") - bench::number(row, "saving_theory")) < 0.05);
    }
  }
}

TEST_CASE("experiments: a net in 8 bits keeps its accuracy", "[experiments][quant]") {
  const report::Experiment experiment = equal_experiment("precision-int8");
  REQUIRE(experiment.rows.size() == 5);
  for (const report::Row& row : experiment.rows) {
    INFO(bench::setting(row, "codes"));
    CHECK(report::match(row) == report::Match::equal);
    CHECK(bench::number(row, "accuracy") > 0.5);  // of ten classes
    if (bench::setting(row, "codes") == "f32") continue;
    CHECK(bench::number(row, "accuracy_ratio") > 0.95);
    CHECK(bench::number(row, "file_ratio") > 3.5);
    CHECK(bench::number(row, "file_ratio") < 4);
    CHECK(bench::number(row, "live") < bench::number(experiment.rows.front(), "live") / 3);
  }
}

TEST_CASE("theory: a ResNet's parameters in 8 bits against the ledger", "[theory][quant]") {
  for (const char* name : {"resnet18", "resnet50", "resnet101"}) {
    for (const auto& [width, image, classes] :
         {std::tuple{64, 224, 1000}, std::tuple{8, 32, 10}, std::tuple{6, 64, 5}, std::tuple{20, 32, 67}}) {
      INFO(name << ", width " << width << ", image " << image);
      models::Setup setup;
      setup.model = name, setup.batch = 1;
      setup.sizes.width = width, setup.sizes.image = image, setup.sizes.classes = classes;
      const bench::StepBytes bytes = bench::step_bytes(dry(cpu), models::int8_inference_run(setup));
      CHECK(models::make_theory(name, setup.sizes).int8_bytes() ==
            bytes.most[static_cast<std::size_t>(memory::Category::parameter)]);
    }
  }
}

TEST_CASE("experiments: inference in 8 bits, category by category", "[experiments][quant]") {
  const report::Experiment experiment = equal_experiment("precision-int8-bytes");
  REQUIRE(experiment.rows.size() == 2 * 2 * memory::category_count);
  const report::Tally tally = report::tally(experiment);
  CHECK(tally.equal == experiment.rows.size());
  CHECK(tally.with_theory == 2 * 2 * 3);
  CHECK(tally.named == tally.with_theory);
}
