// Results after a fault: the last good checkpoint when training diverges or fails, the older checkpoints to keep, and
// warnings about changes.

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <csignal>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thimble/core/error.h>
#include <thimble/models/training/recipe.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/trained.h"

namespace reliability_test {

using namespace thimble;
using files_test::contains;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using files_test::write_text_file;
using models::RunOptions;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;
namespace fs = std::filesystem;

RunOptions tiny(const TemporaryFolder& folder) {
  RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 16;
  options.data = "synthetic", options.steps = 6, options.eval_batches = 1;
  options.save = folder / "x";
  return options;
}

std::int64_t steps_of(const std::string& path) {
  return nn::parse_checkpoint_info(SafetensorsReader(path).header(), path).step_count;
}

/// Data that end: the batch of the fourth step throws.
class Ending final : public models::Dataset {
 public:
  explicit Ending(std::unique_ptr<models::Dataset> data) : data_(std::move(data)) {}
  void fit(models::ModelOptions& sizes) const override { data_->fit(sizes); }
  void open(const models::ModelOptions& sizes, std::int64_t samples, std::uint64_t seed) override {
    data_->open(sizes, samples, seed);
  }
  models::Batch batch(std::int64_t step, memory::Device device, DType dtype) const override {
    if (step == 3 && !device.is_dry) throw FileError("data", 7, "cannot be read");
    return data_->batch(step, device, dtype);
  }
  std::int64_t validation_batches() const override { return data_->validation_batches(); }
  models::Batch validation_batch(std::int64_t index, memory::Device device, DType dtype) const override {
    return data_->validation_batch(index, device, dtype);
  }
  std::int64_t items_per_sample() const override { return data_->items_per_sample(); }
  std::string decode(const std::vector<std::int64_t>& tokens) const override { return data_->decode(tokens); }
  std::string symbols() const override { return data_->symbols(); }
  std::string digest() const override { return data_->digest(); }

 private:
  std::unique_ptr<models::Dataset> data_;
};

}  // namespace reliability_test

using namespace reliability_test;

TEST_CASE("reliability: training that diverges stops at once and keeps the last good checkpoint", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  options.setup.optimizer.name = "sgd", options.setup.optimizer.rate = 1e20, options.setup.optimizer.clip_norm = 0;
  options.steps = 50, options.save_every = 1, options.save_weights = folder / "w";
  options.schedule = "cosine", options.warmup = 20;  // the first steps are small
  const Run r = run(options);
  CHECK(r.report.end == nn::TrainEnd::diverged);
  CHECK_FALSE(r.report.is_finite());
  REQUIRE(r.report.steps < 50);
  CHECK(contains(r.report.end_text, "step " + std::to_string(r.report.steps) + ": "));
  CHECK(r.losses.size() <= static_cast<std::size_t>(r.report.steps));
  for (const double loss : r.losses) CHECK(std::isfinite(loss));
  CHECK_FALSE(fs::exists(folder / "w"));
  CHECK(folder.entries() == (fs::exists(options.save) ? 1 : 0));
  if (!fs::exists(options.save)) CHECK(contains(r.report.end_text, "there is no checkpoint"));
}

TEST_CASE("reliability: a checkpoint that the next step finds to be of no use is taken back", "[reliability]") {
  for (const std::int64_t keep : {1, 3}) {
    for (const bool is_link : {false, true}) {
      const TemporaryFolder folder;
      RunOptions options = tiny(folder);
      options.schedule = "constant", options.keep = keep, options.steps = 4;
      options.setup.optimizer.name = "sgd", options.setup.optimizer.rate = 0.01, options.setup.optimizer.clip_norm = 0;
      if (is_link) {
        fs::create_directory(folder / "real");
        write_text_file(folder / "real/x", "");
        fs::create_symlink("real/x", options.save);
      }
      run(options);
      const std::string good = read_text_file(options.save);
      // From there on a step is far too long: it leaves finite parameters, but their loss is not finite.
      RunOptions on = options;
      on.resume = options.save, on.steps = 20, on.save_every = 1, on.setup.optimizer.rate = 1e25;
      const Run r = run(on);
      INFO(r.report.end_text);
      CHECK(r.report.end == nn::TrainEnd::diverged);
      CHECK(r.report.steps == 6);
      CHECK(contains(r.report.end_text, "step 6: the loss is "));
      CHECK(contains(r.report.end_text, "'" + options.save + "' holds step 4"));
      CHECK(read_text_file(options.save) == good);
      CHECK(fs::is_symlink(options.save) == is_link);
      CHECK(folder.entries() == (is_link ? 2 : 1));
      options.resume = options.save, options.steps = 6;
      CHECK(run(options).report.is_finite());
    }
  }
}

TEST_CASE("reliability: a state that holds an infinity is not written over a good one", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  options.steps = 2;
  run(options);
  const std::string good = read_text_file(options.save);
  // The first loss is finite, its update is not.
  options.setup.optimizer.name = "sgd", options.setup.optimizer.rate = 1e39, options.setup.optimizer.clip_norm = 0,
  options.steps = 5;
  options.save_every = 1;
  const Run r = run(options);
  CHECK(r.report.end == nn::TrainEnd::diverged);
  CHECK(r.report.steps == 1);
  CHECK(contains(r.report.end_text, "holds a NaN or an infinity"));
  CHECK(contains(r.report.end_text, "there is no checkpoint"));  // from this run
  CHECK(read_text_file(options.save) == good);
  CHECK(folder.entries() == 1);
}

TEST_CASE("reliability: steps that the loss scaler skips are no divergence", "[reliability][precision]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  models::set_precision(options.setup, "O2");
  options.setup.precision.loss_scale = optim::GradScalerOptions{.scale = 0x1p24};
  options.steps = 12, options.save_every = 1, options.keep = 12;
  const Run r = run(options);
  CHECK(r.report.end == nn::TrainEnd::complete);
  REQUIRE(r.report.scaler.has_value());
  CHECK(r.report.scaler->skipped_steps > 0);
  CHECK(r.losses.size() == 12);
  // They count when the run goes on.
  RunOptions rest = options;
  rest.resume = folder / "x.step-7", rest.save = folder / "y";
  CHECK(steps_of(rest.resume) < 7);
  const Run again = run(rest);
  CHECK(again.report.first_step == 7);
  CHECK(again.losses == std::vector<double>(r.losses.begin() + 7, r.losses.end()));
  rest.steps = 7;
  CHECK(contains(refusal(rest), "has done 7 steps"));
}

TEST_CASE("reliability: the newest checkpoints are kept, each whole", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  options.save_every = 2, options.keep = 3, options.steps = 9;
  std::vector<std::string> at_save(10);
  run(options, [&](const nn::Progress& p) {  // called before its step's checkpoint
    const std::int64_t saved = (p.step - 1) / 2 * 2;
    if (saved == 0) return;
    CHECK(steps_of(options.save) == saved);
    at_save[static_cast<std::size_t>(saved)] = read_text_file(options.save);
    CHECK(folder.entries() <= 4);  // three, and a fallback until the next step has a loss
  });
  CHECK(folder.entries() == 3);
  for (const int step : {6, 8}) {
    CHECK(read_text_file(options.save + ".step-" + std::to_string(step)) == at_save[static_cast<std::size_t>(step)]);
  }
  // A resumed run keeps counting: earlier checkpoints are the oldest. Foreign names are left in place.
  write_text_file(options.save + ".step-x", "mine");
  options.resume = options.save, options.steps = 12;
  run(options);
  CHECK(steps_of(options.save) == 12);
  for (const int step : {9, 10}) CHECK(steps_of(options.save + ".step-" + std::to_string(step)) == step);
  CHECK(folder.entries() == 4);
  // Resumes from an older checkpoint and reaches an existing step again.
  options.resume = options.save + ".step-10", options.save_every = 1, options.keep = 2;
  run(options);
  CHECK(steps_of(options.save) == 12);
  CHECK(steps_of(options.save + ".step-11") == 11);
  CHECK(folder.entries() == 3);
}

TEST_CASE("reliability: what a wish asks for is done after the step", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  options.save_weights = folder / "w";
  const std::string whole = [&] {
    run(options);
    return read_text_file(options.save);
  }();
  fs::remove(options.save), fs::remove(options.save_weights);
  int asked = 0;
  std::vector<std::string> said;
  nn::TrainControl control;
  control.wish = [&] { return ++asked == 2 ? nn::Wish::save : asked == 4 ? nn::Wish::stop : nn::Wish::go_on; };
  control.say = [&](const std::string& text) {
    said.push_back(text);
    CHECK(steps_of(options.save) == 2);
  };
  const models::TrainReport report = models::Engine(options).run({}, {}, control);
  CHECK(said == std::vector<std::string>{"after step 2: '" + options.save + "' holds step 2"});
  CHECK(report.end == nn::TrainEnd::stopped);
  CHECK(report.end_text == "stopped after step 4 of 6; '" + options.save + "' holds step 4");
  CHECK_FALSE(report.evaluation.has_value());
  CHECK(report.is_finite());
  CHECK_FALSE(fs::exists(options.save_weights));
  options.resume = options.save;
  run(options);
  CHECK(read_text_file(options.save) == whole);
}

TEST_CASE("reliability: a step that fails leaves a checkpoint of the one before", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  run(options);
  const std::string whole = read_text_file(options.save);
  fs::remove(options.save);
  std::vector<std::string> said;
  nn::TrainControl control;
  control.say = [&](const std::string& text) { said.push_back(text); };
  models::Engine ending(options);
  ending.change_data([](auto data) { return std::make_unique<Ending>(std::move(data)); });
  CHECK_THROWS_WITH(ending.run({}, {}, control), "data: at byte 7: cannot be read");
  CHECK(said == std::vector<std::string>{"training has failed; '" + options.save + "' holds step 3"});
  options.resume = options.save;
  run(options);
  CHECK(read_text_file(options.save) == whole);
}

TEST_CASE("reliability: a checkpoint that cannot be written on the way is said, the last one is an error",
          "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  const fs::path inner = fs::path(folder / "inner"), away = fs::path(folder / "away");
  fs::create_directory(inner);
  options.save = (inner / "x").string(), options.save_every = 2, options.save_weights = folder / "w";
  std::vector<std::string> said;
  nn::TrainControl control;
  control.say = [&](const std::string& text) { said.push_back(text); };
  const auto train = [&](std::int64_t back_at) {
    models::Engine engine(options);
    engine.run(
        [&](const nn::Progress& p) {
          if (p.step == 3) fs::rename(inner, away);  // as a network folder may
          if (p.step == back_at) fs::rename(away, inner);
        },
        {}, control);
  };
  train(5);
  REQUIRE(said.size() == 1);
  CHECK(contains(said[0], "a checkpoint could not be written; training goes on: " + options.save));
  CHECK(steps_of(options.save) == 6);
  fs::remove(options.save), fs::remove(options.save_weights);
  CHECK_THROWS_AS(train(99), FileError);
  CHECK(fs::exists(options.save_weights));  // the second result is saved nonetheless
  CHECK(steps_of((away / "x").string()) == 2);
}

TEST_CASE("reliability: a folder for curves that goes away is said once, and training goes on", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  options.log = folder / "log";
  // Limits file sizes to the first records.
  std::vector<std::string> said;
  nn::TrainControl control;
  control.say = [&](const std::string& text) { said.push_back(text); };
  models::Engine engine(options);
  struct rlimit old {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const models::TrainReport report = engine.run(
      [&](const nn::Progress& p) {
        struct rlimit limit = old;
        if (p.step == 2) limit.rlim_cur = 100;
        if (p.step == 2 || p.step == 5) ::setrlimit(RLIMIT_FSIZE, &limit);  // leaves room for the final checkpoint
      },
      {}, control);
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  CHECK(report.end == nn::TrainEnd::complete);
  CHECK(contains(report.log_error, "cannot write events"));
  REQUIRE(said.size() == 1);
  CHECK(contains(said[0], "curves: " + options.log));
  CHECK(steps_of(options.save) == 6);
}

TEST_CASE("reliability: another recipe is said, another function is refused", "[reliability]") {
  const TemporaryFolder folder;
  RunOptions options = tiny(folder);
  options.schedule = "constant";
  write_text_file(folder / "a.txt", data::synthetic_text(5000, 3));
  options.data = folder / "a.txt", options.steps = 2;
  run(options);
  options.resume = options.save, options.save.clear(), options.steps = 4;
  CHECK(models::Engine(options).recipe_change().empty());

  struct Case {
    const char* change;
    void (*apply)(RunOptions&);
  };
  for (const Case& c :
       {Case{"`rate` 0.014", [](RunOptions& o) { o.setup.optimizer.rate = 0.5; }},
        Case{"`schedule` constant -> cosine", [](RunOptions& o) { o.schedule = "cosine"; }},
        Case{"`warmup` 0 -> 1", [](RunOptions& o) { o.warmup = 1; }},
        Case{"`clip_norm` 1 -> 0.5", [](RunOptions& o) { o.setup.optimizer.clip_norm = 0.5; }},
        Case{"`dropout` 0", [](RunOptions& o) { o.setup.sizes.dropout = 0.25; }},
        Case{"`weight_decay` 0.1 -> 0", [](RunOptions& o) { o.setup.optimizer.weight_decay = 0; }},
        Case{"`beta2` 0.99 -> 0.9", [](RunOptions& o) { o.setup.optimizer.beta2 = 0.9; }},
        Case{"`micro_batches` 1 -> 2", [](RunOptions& o) { o.setup.micro_batches = 2; }},
        Case{"`head` full -> chunked", [](RunOptions& o) { o.setup.sizes.head = models::Head::chunked; }},
        Case{"`batch` 2 -> 3", [](RunOptions& o) { o.setup.batch = 3; }}}) {
    RunOptions changed = options;
    c.apply(changed);
    const std::string change = models::Engine(changed).recipe_change();
    INFO(change);
    CHECK(contains(change, c.change));
    CHECK(run(changed).losses.size() == 2);
  }
  {  // the characters in another order
    RunOptions changed = options;
    std::string text = read_text_file(folder / "a.txt");
    std::swap(text[100], text[text.find_first_not_of(text[100], 100)]);
    write_text_file(folder / "b.txt", text);
    changed.data = folder / "b.txt";
    const std::string change = models::Engine(changed).recipe_change();
    INFO(change);
    CHECK(contains(change, "other data: a.txt, 5,000 tokens, crc32c "));
    CHECK(contains(change, " -> b.txt, 5,000 tokens, crc32c "));
    fs::copy_file(folder / "a.txt", folder / "c.txt");  // renaming does not change the data
    changed.data = folder / "c.txt";
    CHECK(models::Engine(changed).recipe_change().empty());
  }
  {  // a checkpoint says nothing about shards it lacks
    models::Setup& setup = options.setup;
    const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu)});
    const auto data = models::open_dataset(options.data, *model, setup.model, setup.seed);
    data->fit(setup.sizes);
    data->open(model->options(), setup.batch, setup.seed);
    RunOptions shards = options;
    shards.setup.layout.tp = 2;
    CHECK(models::recipe_change({}, options, *data, *model, "").empty());
    CHECK(models::recipe_change({}, shards, *data, *model, "") == "`tp` 1 -> 2");
  }
  RunOptions heads = options;
  heads.setup.sizes.heads = 4;
  CHECK(contains(refusal(heads), "was trained with `heads` 2; expected the same, got `heads` 4"));
  RunOptions window = options;
  window.setup.sizes.window = 4;
  CHECK(contains(refusal(window), "was trained with `window` 0; expected the same, got `window` 4"));
  // The optimizer's name in the file records the state's width, in both directions.
  RunOptions narrow = options;
  narrow.setup.optimizer.state = DType::bf16;
  CHECK(contains(refusal(narrow), "with `state` f32; expected the same, got a run with `state` bf16"));
  narrow.resume.clear(), narrow.save = folder / "narrow", narrow.steps = 2;
  run(narrow);
  options.resume = narrow.save;
  CHECK(contains(refusal(options), "with `state` bf16; expected the same, got a run with `state` f32"));
}

TEST_CASE("reliability: where a checkpoint cannot be is found before training", "[reliability]") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(nn::try_to_write("--save", folder / "x"));
  CHECK(folder.entries() == 0);
  CHECK_THROWS_AS(nn::try_to_write("--save", "/proc/x"), ValueError);
  CHECK_NOTHROW(nn::require_space("--save", "x", 1000, 1000));
  CHECK_NOTHROW(nn::require_space("--save", "x", 1000, -1));
  CHECK_THROWS_WITH(nn::require_space("--save", "a/x", 3 << 20, 1 << 20),
                    "--save: 'a/x': 3.00 MiB are needed, its folder has 1.00 MiB free");
  CHECK(nn::free_bytes_at(folder / "x") > 0);

  RunOptions options = tiny(folder);
  models::Engine engine(options);
  models::Training training(engine.options(), engine.data(), dry(cpu));
  const std::uint64_t predicted = nn::checkpoint_bytes(training.model(), training.optimizer());
  run(options);
  const std::uint64_t size = fs::file_size(options.save);
  CHECK(size <= predicted);
  CHECK(predicted < size + 20'000);
}
