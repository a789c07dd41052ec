// Files of a trainer with a user's model: checkpoints, resuming, curves, and their state after a failed run.

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>
#include <thimble/optim/sgd.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/offload_data.h"
#include "support/tensor_bytes.h"

using namespace thimble;
using namespace own_program;
using files_test::TemporaryFolder;
using Own = nn::Trainer<Net, Batch>;

namespace {

struct Ended {
  std::vector<double> losses;
  std::vector<testing::Bytes> state;
  nn::RunReport report;
};

Ended run(Own& trainer, const nn::TrainControl& control = {}) {
  Ended ended;
  ended.report = trainer.run([&](const nn::Progress& p) { ended.losses.push_back(p.loss); }, control);
  for (const auto& list : {trainer.model().parameters(), trainer.model().buffers()}) {
    for (const nn::NamedTensor& t : list) ended.state.push_back(testing::bytes_of(t.tensor));
  }
  for (const optim::Named& s : trainer.optimizer().state()) ended.state.push_back(testing::bytes_of(s.tensor));
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  return ended;
}

nn::TrainerOptions trainer_files_options(std::int64_t steps) {
  return {.seed = 5, .steps = steps, .evaluate_every = 2};
}

/// The net of own_program.h with 3 blocks of width 32, on batches of 64 samples.
Program small_program() {
  Sizes sizes;
  sizes.width = 32, sizes.depth = 3;
  sizes.samples = [](std::int64_t) { return std::int64_t{64}; };
  return program(sizes);
}

}  // namespace

TEST_CASE("trainer: a run that goes on from a checkpoint has the bits of one that never stopped", "[trainer]") {
  const testing::Threads alone;
  const TemporaryFolder folder;
  for (const bool has_budget : {false, true}) {
    INFO("with a budget: " << has_budget);
    nn::TrainerOptions options = trainer_files_options(6);
    options.budget_bytes = has_budget ? Own(program(), options).plan().peak_bytes * 3 / 4 : 0;
    Own whole(program(), options);
    const Ended expected = run(whole);
    REQUIRE(expected.losses.size() == 6);
    options.save = folder / "x";
    options.steps = 4;
    Own first(program(), options);
    const Ended begun = run(first);
    options.steps = 6;
    options.resume = options.save;
    Own second(program(), options);
    const Ended rest = run(second);
    CHECK(rest.losses == std::vector<double>(expected.losses.begin() + 4, expected.losses.end()));
    CHECK(begun.losses == std::vector<double>(expected.losses.begin(), expected.losses.begin() + 4));
    CHECK((rest.state == expected.state));
    CHECK(rest.report.evaluation->loss == expected.report.evaluation->loss);
    CHECK(rest.report.steps == 6);
    CHECK(second.placed().deviations == 0);
  }
}

TEST_CASE("trainer: two nets with an optimizer each go on from one file", "[trainer]") {
  const TemporaryFolder folder;
  Sizes sizes;
  sizes.width = 24, sizes.depth = 2;
  sizes.samples = [](std::int64_t step) { return 37 + step % 3; };
  const nn::TrainedProgram<Rivals, Batch> own = rivals(sizes);
  using Two = nn::Trainer<Rivals, Batch>;
  const auto train = [&](Two& trainer) {
    std::vector<std::vector<double>> losses;
    trainer.run([&](const nn::Progress& p) { losses.push_back(p.losses); });
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    return losses;
  };
  nn::TrainerOptions options = trainer_files_options(7);
  options.evaluate_every = 0;
  options.example_steps = {0, 1, 2};
  Two whole(own, options);
  const std::vector<std::vector<double>> expected = train(whole);
  options.save = folder / "x";
  options.steps = 3;
  Two first(own, options);
  train(first);
  options.steps = 7;
  options.resume = options.save;
  Two second(own, options);
  CHECK(train(second) == std::vector<std::vector<double>>(expected.begin() + 3, expected.end()));
  const SafetensorsReader file(options.save);
  CHECK(file.header().find("model.2.weight") != nullptr);
  CHECK(file.header().find("optimizer.1.shift.weight.momentum") != nullptr);

  // Another number of optimizers, then another rate of the second one.
  nn::TrainedProgram<Rivals, Batch> other = own;
  other.parts.pop_back();
  CHECK_THROWS_WITH(Two(other, options), Catch::Contains("2 optimizers in the file, training has 1"));
  other = own;
  other.parts[1].optimizer = [make = own.parts[1].optimizer](Rivals& nets) {
    auto optimizer = make(nets);
    optimizer->set_rate(0.03);
    return optimizer;
  };
  options.steps = 8;
  CHECK_THROWS_WITH(Two(other, options), Catch::Contains("the rate of optimizer 1 is 0.02 in the file, 0.03 here"));

  // Each of three optimizers keeps its own rate.
  const auto sgd = [](nn::Module& net, double rate) {
    return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{.rate = rate});
  };
  other = own;
  other.parts[1].optimizer = [&](Rivals& nets) { return sgd(*nets.generator, 0.02); };
  other.parts.push_back({"shift", [&](Rivals& nets) { return sgd(*nets.shift, 0.03); }, own.parts[1].loss});
  options.resume.clear(), options.steps = 2;
  Two third(other, options);
  third.run();
  options.resume = options.save, options.steps = 3;
  CHECK_NOTHROW(Two(other, options));
  other.parts[2].optimizer = [&](Rivals& nets) { return sgd(*nets.shift, 0.04); };
  CHECK_THROWS_WITH(Two(other, options), Catch::Contains("the rate of optimizer 2 is 0.03 in the file, 0.04 here"));

  // The optimizers begin with counts: corrections of moments go on from each one's own, and steps count from the start.
  other = own;
  other.parts[0].optimizer = [make = own.parts[0].optimizer](Rivals& nets) {
    auto optimizer = make(nets);
    optimizer->set_step_count(5);
    return optimizer;
  };
  other.parts[1].optimizer = [](Rivals& nets) {
    auto optimizer = std::make_unique<optim::Adam>(nets.generator->trainable(), optim::AdamOptions{});
    optimizer->set_step_count(1);
    return optimizer;
  };
  options.save.clear(), options.resume.clear(), options.steps = 4;
  Two counted(other, options);
  const std::vector<std::vector<double>> all = train(counted);
  options.save = folder / "y", options.steps = 2;
  Two begun(other, options);
  train(begun);
  const nn::CheckpointInfo info = nn::parse_checkpoint_info(SafetensorsReader(options.save).header(), options.save);
  CHECK((info.step_count == 7 && info.others.at(0).step_count == 3 && nn::steps_done(info) == 2));
  options.resume = options.save, options.steps = 4;
  Two resumed(other, options);
  CHECK(train(resumed) == std::vector<std::vector<double>>(all.begin() + 2, all.end()));
  CHECK(resumed.optimizer(1).step_count() == 5);
}

TEST_CASE("trainer: checkpoints on the way, as many as are to be kept", "[trainer]") {
  const TemporaryFolder folder;
  nn::TrainerOptions options = trainer_files_options(5);
  options.save = folder / "x";
  options.save_every = 1;
  options.keep = 3;
  options.log = folder / "curves";
  Own trainer(small_program(), options);
  const Ended all = run(trainer);
  CHECK(all.report.end == nn::TrainEnd::complete);
  CHECK(all.report.log_error.empty());
  namespace fs = std::filesystem;
  CHECK(fs::exists(options.save));
  CHECK(fs::exists(options.save + ".step-4"));
  CHECK(fs::exists(options.save + ".step-3"));
  CHECK(folder.entries() == 4);  // with the folder of curves
  CHECK_FALSE(fs::is_empty(options.log));
  // The older checkpoints are states of this run.
  options.log.clear();
  options.resume = options.save + ".step-3";
  options.save.clear();
  options.save_every = 0, options.keep = 1;
  Own again(small_program(), options);
  const Ended rest = run(again);
  CHECK(rest.losses == std::vector<double>(all.losses.begin() + 3, all.losses.end()));
  CHECK(rest.report.loss_first == all.losses[3]);
}

TEST_CASE("trainer: a loss that is no number ends the run, and the checkpoint before it stays", "[trainer]") {
  const TemporaryFolder folder;
  Program own = small_program();
  const auto loss = own.loss;
  std::int64_t real_steps = 0;
  own.loss = [&](Net& net, const Batch& batch) {
    if (batch.x.device().is_dry) return loss(net, batch);
    ++real_steps;
    return mul(loss(net, batch), real_steps >= 4 ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  };
  own.evaluate = nullptr;
  nn::TrainerOptions options{.seed = 5, .steps = 8};
  options.save = folder / "x";
  options.save_every = 2;
  Own trainer(own, options);
  const nn::RunReport report = trainer.run();
  CHECK(report.end == nn::TrainEnd::diverged);
  CHECK_FALSE(report.is_finite());
  CHECK(report.steps == 4);
  CHECK(report.end_text.find("step 4: the loss is") == 0);
  CHECK(report.end_text.find("holds step 2") != std::string::npos);
  options.resume = options.save;
  options.steps = 3;
  CHECK_NOTHROW(Own(own, options));
}

TEST_CASE("trainer: steps by hand are no file's, and a failure after them is saved", "[trainer]") {
  const TemporaryFolder folder;
  Program own = small_program();
  own.evaluate = nullptr;
  nn::TrainerOptions options{.seed = 5, .steps = 2};
  options.save = folder / "x";
  Own first(own, options);
  first.run();
  options.resume = options.save;
  options.steps = 8;
  // After step 3 by hand, a step that throws or whose loss is NaN; the resumed file holds two steps.
  for (const bool throws : {false, true}) {
    INFO("the step throws: " << throws);
    Program bad = own;
    const auto loss = own.loss;
    std::int64_t real_steps = 0;
    bad.loss = [&](Net& net, const Batch& batch) {
      const bool is_bad = !batch.x.device().is_dry && ++real_steps >= 2;
      if (is_bad && throws) throw ValueError("no such batch");
      return mul(loss(net, batch), is_bad ? std::numeric_limits<double>::quiet_NaN() : 1.0);
    };
    options.save = folder / "y";
    Own trainer(bad, options);
    CHECK(trainer.step().step == 3);
    std::vector<std::string> said;
    const nn::TrainControl control{.say = [&](const std::string& text) { said.push_back(text); }};
    if (throws) {
      CHECK_THROWS_AS(trainer.run(nullptr, control), ValueError);
      REQUIRE(said.size() == 1);
      CHECK(said[0] == "training has failed; '" + options.save + "' holds step 3");
      options.resume = options.save;
      options.save.clear();
      Own rest(own, options);
      CHECK(rest.step().step == 4);
    } else {
      const nn::RunReport report = trainer.run(nullptr, control);
      CHECK(report.end == nn::TrainEnd::diverged);
      CHECK(report.end_text.ends_with("'" + options.resume + "' holds step 2"));
      CHECK_FALSE(std::filesystem::exists(options.save));
    }
  }
}

TEST_CASE("trainer: names that no file can have are refused before a step", "[trainer]") {
  const TemporaryFolder folder;
  for (const std::string name : {"\xff", "in", "__metadata__"}) {
    struct Named : nn::Module {
      explicit Named(const std::string& of) : in(add_parameter("in", zeros({1}))), other(add_buffer(of, zeros({1}))) {}
      nn::Parameter in;
      nn::Buffer other;
    };
    const nn::TrainedProgram<Named, Tensor> own{
        .model = [name](memory::Device) { return std::make_unique<Named>(name); },
        .optimizer = [](Named& net) { return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{}); },
        .loss = [](Named& net, const Tensor& x) { return mean(square(net.in + x)); },
        .batch = [](std::int64_t, memory::Device device) { return zeros({1}, DType::f32, device); }};
    CHECK_THROWS_AS((nn::Trainer<Named, Tensor>(own, {.save = folder / "x"})), ValueError);
  }
}

TEST_CASE("trainer: a wish to stop is kept after the step, with a checkpoint", "[trainer]") {
  const TemporaryFolder folder;
  nn::TrainerOptions options = trainer_files_options(9);
  options.save = folder / "x";
  Own trainer(small_program(), options);
  int asked = 0;
  const Ended ended = run(trainer, {.wish = [&] { return ++asked == 2 ? nn::Wish::stop : nn::Wish::go_on; }});
  CHECK(ended.losses.size() == 2);
  CHECK(ended.report.end == nn::TrainEnd::stopped);
  options.resume = options.save;
  options.save.clear();
  Own rest(small_program(), options);
  Own whole(small_program(), trainer_files_options(9));
  CHECK(run(rest).losses.front() == run(whole).losses[2]);
}

TEST_CASE("trainer: files that cannot be, and checkpoints of another run, are refused before a step", "[trainer]") {
  const TemporaryFolder folder;
  nn::TrainerOptions options = trainer_files_options(2);
  options.save = folder / "x";
  Own trainer(small_program(), options);
  run(trainer);
  const auto refusal = [](const nn::TrainerOptions& o, const Program& own) -> std::string {
    try {
      Own refused(own, o);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "taken";
  };
  const auto with = [&](const std::function<void(nn::TrainerOptions&)>& change) {
    nn::TrainerOptions other = trainer_files_options(4);
    other.resume = options.save;
    change(other);
    return refusal(other, small_program());
  };
  CHECK(with([](auto&) {}) == "taken");
  files_test::write_text_file(folder / "notes", "mine");
  CHECK(with([&](auto& o) { o.resume = "", o.log = folder / "notes"; }).find("' is a file") != std::string::npos);
  for (const bool overwrites : {false, true}) {
    CHECK((with([&](auto& o) { o.save = folder / "notes", o.overwrites = overwrites; }) == "taken") == overwrites);
  }
  std::filesystem::remove(folder / "notes");
  CHECK(with([](auto& o) { o.seed = 6; }).find("was trained with seed 5") != std::string::npos);
  CHECK(with([](auto& o) { o.steps = 2; }).find("has done 2 steps; steps = 2 must be more") != std::string::npos);
  CHECK(with([](auto& o) { o.keep = 0; }).find("keep = 0") != std::string::npos);
  CHECK(with([](auto& o) { o.save_every = 1; }).find("save_every without save") != std::string::npos);
  CHECK(with([](auto& o) { o.save = "/proc/x"; }).find("trainer: save: /proc/x: cannot create") == 0);
  CHECK(with([&](auto& o) {
          o.save = folder / "no/x";
        }).find("no/x': expected a folder '" + folder / "no" + "', got none; make it first") != std::string::npos);
  CHECK(with([](auto& o) { o.loss_scale = optim::GradScalerOptions{}; }).find("was not scaled") != std::string::npos);
  const std::string one_name = "trainer: log: expected a folder, got '" + folder / "y" + "', which is the file of save";
  CHECK(with([&](auto& o) { o.save = o.log = folder / "y"; }).find(one_name) == 0);
  CHECK(with([&](auto& o) { o.save = o.best = folder / "y"; }).find("trainer: best: expected one output") == 0);
  CHECK(with([&](auto& o) {
          o.save = folder / "y", o.best = folder / "y.step-4", o.keep = 2;
        }).find("trainer: best: expected another name") == 0);
  nn::TrainerOptions other = trainer_files_options(4);
  other.resume = options.save;
  CHECK_THROWS_AS(Own(program(), other), ShapeError);  // another width
  other.resume = folder / "none";
  CHECK_THROWS_AS(Own(small_program(), other), FileError);
  other.resume.clear();
  CHECK(folder.entries() == 1);
}

TEST_CASE("trainer: parameters that are away between uses, in a budget, saved and gone on from", "[trainer][store]") {
  const std::string disk = offload_test::disk_folder();
  if (disk.empty()) return;
  const testing::Threads alone;
  const TemporaryFolder folder;
  Program away = program();
  away.model = [disk](memory::Device device) {
    const auto store = std::make_shared<memory::TierStore>(memory::make_tier(device, {.folder = disk}));
    const ParameterStoreScope scope(store);
    return std::make_unique<Net>(Sizes().width, Sizes().depth, device);
  };
  nn::TrainerOptions options = trainer_files_options(6);
  Own plain(program(), options);
  const Ended expected = run(plain);
  options.save = folder / "x";
  options.steps = 4;
  options.budget_bytes = Own(away, options).plan().peak_bytes;
  Own first(away, options);
  std::vector<double> losses;
  const auto note = [&](const nn::Progress& p) { losses.push_back(p.loss); };
  first.run(note);
  CHECK(first.peak_bytes() == first.plan().peak_bytes);
  CHECK(first.placed().deviations == 0);
  options.resume = options.save, options.steps = 6;
  Own second(away, options);
  second.run(note);
  CHECK(second.peak_bytes() == second.plan().peak_bytes);
  CHECK(losses == expected.losses);
  std::size_t i = 0;
  for (const nn::NamedTensor& p : second.model().parameters()) {
    CHECK(testing::bytes_of(p.tensor) == expected.state[i++]);
  }
  CHECK(second.certify(2).holds());
}

TEST_CASE("trainer: room on the disk is for the checkpoint that stays and the one that is written", "[trainer]") {
  const TemporaryFolder folder;
  struct Row {
    std::int64_t keep, steps, every;
    std::uint64_t copies;  // with the one that is written while the others stay
  };
  for (const Row& row :
       {Row{1, 10, 1, 2}, {3, 10, 1, 4}, {3, 10, 10, 2}, {3, 9, 10, 1}, {3, 19, 10, 2}, {3, 10, 0, 1}}) {
    INFO(row.keep << " of " << row.steps << " steps, saved every " << row.every);
    const nn::KeepOptions options{.path = folder / "x", .keep = row.keep};
    const std::uint64_t tenth = nn::free_bytes_at(options.path) / 10 / row.copies;
    CHECK_THROWS_AS(nn::check_keeping("save", options, row.steps, row.every, 12 * tenth), Error);
    nn::check_keeping("save", options, row.steps, row.every, 7 * tenth);
  }
}

TEST_CASE("trainer: a step without a loss says nothing of the checkpoint before it, skipped or not", "[trainer]") {
  struct Scripted final : nn::LoopedRun {
    void train_step(std::int64_t step, nn::Progress& progress) override {
      progress.loss = step < 2 ? 1 : std::numeric_limits<double>::infinity();
      ++steps;
    }
    std::optional<nn::Evaluation> evaluate() override { return std::nullopt; }
    void write_checkpoint(const std::string& path) override { files_test::write_text_file(path, "x"); }
    std::int64_t steps_done() override { return steps; }
    std::int64_t skipped_steps() override { return steps >= 3 ? 1 : 0; }  // a scaler skips the third
    std::int64_t steps = 0;
  } run;
  const TemporaryFolder folder;
  const nn::TrainerOptions options{.steps = 6, .save = folder / "x", .save_every = 2};
  const memory::Stack stack = memory::make_resource(cpu);
  nn::RunReport report;
  const nn::TrainControl control;
  nn::run_loop(run, options, {}, stack, report, control, nullptr);
  CHECK(report.end == nn::TrainEnd::diverged);
  CHECK(report.end_text.ends_with("there is no checkpoint"));
  CHECK_FALSE(std::filesystem::exists(options.save));
}

TEST_CASE("trainer: the latest checkpoint stays, of several of one time that of the latest step", "[trainer]") {
  for (const bool is_10_older : {false, true}) {  // as of a run that has begun again from an earlier step
    const TemporaryFolder folder;
    const std::string path = folder / "x";
    for (const char* const step : {"3", "4", "10"}) files_test::write_text_file(path + ".step-" + step, step);
    const auto time = std::filesystem::last_write_time(path + ".step-3");
    std::filesystem::last_write_time(path + ".step-4", time);
    std::filesystem::last_write_time(path + ".step-10", time - std::chrono::seconds(is_10_older ? 9 : 0));
    nn::CheckpointKeeper keeper({.path = path, .keep = 2});
    keeper.save(11, [&](const std::string& to) { files_test::write_text_file(to, "11"); });
    CHECK(folder.entries() == 4);
    keeper.confirm();
    CHECK(folder.entries() == 2);
    CHECK(std::filesystem::exists(path + (is_10_older ? ".step-4" : ".step-10")));
  }
}

TEST_CASE("trainer: a checkpoint that is taken back leaves the one before it, and its step", "[trainer]") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  nn::Linear net(2, 2);
  optim::Sgd sgd(net.trainable(), {});
  nn::CheckpointKeeper keeper({.path = path});
  const auto save = [&](std::int64_t step) {
    sgd.set_step_count(step);
    keeper.save(step, [&](const std::string& to) { nn::save_checkpoint(to, net, sgd, current_generator()); });
  };
  save(2);
  keeper.confirm();
  save(4);
  CHECK(keeper.saved_step() == 4);
  keeper.take_back();
  CHECK(keeper.saved_step() == 2);
  CHECK(keeper.text() == "'" + path + "' holds step 2");
  CHECK(nn::steps_done(nn::parse_checkpoint_info(SafetensorsReader(path).header(), path)) == 2);

  // In a run that starts again, step 2 replaces the other run's step 2, whose file would get the same name.
  nn::CheckpointKeeper again({.path = path, .keep = 3});
  const auto write = [&](const std::string& to) { nn::save_checkpoint(to, net, sgd, current_generator()); };
  for (const std::int64_t step : {2, 5}) {
    sgd.set_step_count(step);
    again.save(step, write);
    again.confirm();
    CHECK(std::filesystem::exists(path + ".step-2") == (step == 5));
    CHECK(folder.entries() == (step == 5 ? 2 : 1));
  }
}
