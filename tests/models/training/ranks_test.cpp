// Named models on several ranks, each row against one rank with all micro-batches: equal files (parameters, state,
// statistics, counters and scaler), equal losses, and predicted bytes on each rank.

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/dist/threads.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/safetensors.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/sanitizer.h"
#include "support/train_ranks.h"

using namespace thimble;
using files_test::TemporaryFolder;
using thimble::testing::train;

namespace {

struct Row {
  std::string model;
  int ranks, zero;
  std::int64_t micro_batches = 1;  // per rank
  std::string precision = {}, optimizer = {};
  std::size_t bucket_bytes = 32 << 10;  // several buckets
  bool has_budget = false;
  int read_ahead = 1;
  std::int64_t save_every = 0;

  std::string text() const {
    return model + " on " + std::to_string(ranks) + " ranks, stage " + std::to_string(zero) + ", " +
           std::to_string(micro_batches) + " micro-batches, " + precision + " " + optimizer +
           (has_budget ? ", budget" : "") + ", " + std::to_string(read_ahead) + " units read ahead, saved every " +
           std::to_string(save_every) + " steps";
  }
};

models::RunOptions options_of(const Row& row) {
  models::RunOptions options;
  options.setup.model = row.model;
  models::ModelOptions& sizes = options.setup.sizes;
  if (row.model == "char-gpt" || row.model == "bert-base") {
    sizes.layers = 2, sizes.width = 32, sizes.heads = 2, sizes.sequence = 16, sizes.dropout = 0.1;
    if (row.model == "bert-base") sizes.vocabulary = 96;
  } else if (row.model != "mlp") {
    sizes.image = 16, sizes.width = 8;
  }
  options.setup.batch = 12, options.setup.optimizer.name = row.optimizer;
  options.setup.layout.ranks = row.ranks, options.setup.layout.zero = row.zero;
  options.setup.micro_batches = row.micro_batches, options.setup.layout.bucket_bytes = row.bucket_bytes;
  options.setup.offload.read_ahead = row.read_ahead;
  if (!row.precision.empty()) set_precision(options.setup, row.precision);
  options.data = "synthetic", options.steps = 5, options.eval_batches = 2;
  return options;
}

/// The same training on one rank.
models::RunOptions alone(models::RunOptions options) {
  options.setup.micro_batches *= options.setup.layout.ranks;
  options.setup.layout.ranks = 1, options.setup.layout.zero = 0, options.setup.offload.read_ahead = 1;
  options.budget_bytes = 0;
  return options;
}

void check_row(const Row& row, const TemporaryFolder& folder) {
  INFO(row.text());
  models::RunOptions options = options_of(row);
  if (row.has_budget) options.budget_bytes = testing::least_budget(options);
  options.save = folder / "ranks", options.save_every = row.save_every;
  const models::TrainReport report = train(options);
  models::RunOptions one = alone(options);
  one.save = folder / "one";
  const models::TrainReport expected = train(one);
  CHECK((files_test::read_text_file(options.save) == files_test::read_text_file(one.save)));
  CHECK(report.loss_first == expected.loss_first);
  CHECK(report.loss_last == expected.loss_last);
  CHECK(report.loss_first != report.loss_last);
  REQUIRE(report.evaluation);
  CHECK(report.evaluation->loss == expected.evaluation->loss);
  CHECK(report.evaluation->accuracy == expected.evaluation->accuracy);
  CHECK(report.differences() == "");
  REQUIRE(report.ranks.size() == static_cast<std::size_t>(row.ranks == 1 ? 0 : row.ranks));
  for (const nn::RankFigures& rank : report.ranks) {
    CHECK(rank.predicted_peak_bytes == rank.measured_peak_bytes);
    CHECK(rank.measured_peak_bytes > 0);
    if (row.has_budget) CHECK(rank.measured_peak_bytes <= options.budget_bytes);
    CHECK(rank.sent_bytes > 0);
  }
}

}  // namespace

TEST_CASE("ranks: a named model's run on several has the file, the losses and the bytes told of one", "[ranks]") {
  const TemporaryFolder folder;
  const Row row = GENERATE(testing::table_rows<Row>({{"char-gpt", 2, 0},
                                                     {"char-gpt", 4, 1},
                                                     {"char-gpt", 3, 2, 2},
                                                     {"char-gpt", 4, 3},
                                                     {"char-gpt", 2, 3, 1, "", "", 32 << 10, false, 0},
                                                     {"char-gpt", 2, 3, 2, "bf16", "", 32 << 10, true, 0},
                                                     {"char-gpt", 3, 3, 1, "", "", 32 << 10, false, 2},
                                                     {"char-gpt", 2, 3, 2, "O2"},
                                                     {"char-gpt", 2, 2, 1, "bf16", "adamw8"},
                                                     {"char-gpt", 2, 1, 1, "fp8"},
                                                     {"char-gpt", 2, 2, 1, "", "adafactor"},
                                                     {"char-gpt", 2, 2, 1, "", "muon"},
                                                     {"char-gpt", 2, 1, 1, "", "galore"},
                                                     {"char-gpt", 2, 2, 1, "", "apollo-mini"},
                                                     {"resnet18", 2, 2, 1, "", "adam-mini"},
                                                     {"char-gpt", 2, 2, 3, "", "", 0, true},
                                                     {"char-gpt", 3, 3, 1, "", "", 32 << 10, true},
                                                     {"bert-base", 2, 3, 2, "", "", 32 << 10, true},
                                                     {"resnet18", 4, 3, 1, "", "", 32 << 10, true},
                                                     {"bert-base", 3, 0},
                                                     {"bert-base", 2, 3, 1, "bf16"},
                                                     {"bert-base", 4, 2, 3, "", "adamw8"},
                                                     {"resnet18", 2, 1},
                                                     {"resnet18", 2, 3, 1, "O1"},
                                                     {"resnet18", 3, 2, 1, "", "momentum8"},
                                                     {"mlp", 2, 1, 1, "", "adamw", 32 << 10, false, 1, 2},
                                                     {"mlp", 3, 3, 1, "", "adamw", 32 << 10, false, 1, 1}}));
  check_row(row, folder);
}

TEST_CASE("ranks: a checkpoint is read by other numbers of ranks and in other stages", "[ranks]") {
  const TemporaryFolder folder;
  const std::string optimizer = GENERATE("adamw", "adamw8", "adafactor");
  const Row row{"char-gpt", 4, optimizer == "adafactor" ? 1 : 3, 1, "", optimizer};
  models::RunOptions options = options_of(row);
  options.setup.sizes.width = 96;     // parameters span several grains, split over ranks
  options.setup.sizes.sequence = 87;  // 8,352 numbers of positions, which end within 256 that share a scale
  options.setup.batch = 8;
  options.setup.micro_batches = 2;  // 8 in total
  options.steps = 3;
  options.save = folder / "half";
  train(options);
  const std::string half = files_test::read_text_file(options.save);
  options.steps = 6;
  options.save = folder / "whole";
  train(alone(options));
  const std::string whole = files_test::read_text_file(options.save);
  CHECK((half != whole));
  options.resume = folder / "half";
  for (const auto& [ranks, zero] : std::vector<std::pair<int, int>>{{1, 0}, {2, 2}, {8, 1}, {4, 0}}) {
    INFO(optimizer << ": " << ranks << " ranks, stage " << zero);
    options.setup.layout.ranks = ranks, options.setup.layout.zero = zero;
    options.setup.micro_batches = 8 / ranks, options.save = folder / ("rest" + std::to_string(ranks));
    const models::TrainReport report = train(options);
    CHECK(report.first_step == 3);
    CHECK(report.differences() == "");
    CHECK((files_test::read_text_file(options.save) == whole));
  }
}

TEST_CASE("ranks: weights and a text are those of one", "[ranks]") {
  const TemporaryFolder folder;
  models::RunOptions options = options_of({"char-gpt", 3, 3});
  options.sample = 20;
  options.save_weights = folder / "ranks";
  const models::TrainReport report = train(options);
  models::RunOptions one = alone(options);
  one.save_weights = folder / "one";
  const models::TrainReport expected = train(one);
  CHECK((files_test::read_text_file(folder / "ranks") == files_test::read_text_file(folder / "one")));
  CHECK(report.sample.size() == 20);
  CHECK(report.sample == expected.sample);
  CHECK(report.differences() == "");
}

TEST_CASE("ranks: a checkpoint that cannot be written is said, and training goes on on all", "[ranks]") {
  const TemporaryFolder folder;
  models::RunOptions options = options_of({"char-gpt", 3, 2});
  options.steps = 4;
  options.save_every = 2;
  std::filesystem::create_directory(folder / "gone");
  options.save = folder / "gone/file";
  std::vector<std::vector<std::string>> said(3);  // by rank
  std::string failure;
  try {
    dist::run_ranks(3, [&](dist::Communicator& ranks) {
      models::RunOptions own = options;
      own.ranks = &ranks;
      own.setup.layout.rank = ranks.rank();
      models::Engine engine(own);
      ranks.barrier();
      if (ranks.rank() == 0) std::filesystem::remove_all(folder / "gone");
      ranks.barrier();
      nn::TrainControl control;
      control.say = [&](const std::string& text) { said[static_cast<std::size_t>(ranks.rank())].push_back(text); };
      engine.run({}, {}, control);
    });
  } catch (const Error& error) {
    failure = error.what();
  }
  REQUIRE(said[0].size() == 1);
  CHECK(said[0][0].find("a checkpoint could not be written; training goes on: ") == 0);
  CHECK(said[0][0].find("gone/file") != std::string::npos);
  CHECK(said[1] == said[0]);
  CHECK(said[2] == said[0]);
  CHECK(failure.find("gone/file") != std::string::npos);  // from the last save, after all steps
  CHECK(failure.find("rank ") == 0);
}

TEST_CASE("ranks: a state that holds an infinity ends training on all, and is not written", "[ranks]") {
  const TemporaryFolder folder;
  models::RunOptions options = options_of({"char-gpt", 3, 1});
  options.setup.optimizer.name = "sgd", options.setup.optimizer.rate = 1e39, options.setup.optimizer.clip_norm = 0;
  options.save = folder / "file", options.save_every = 1;
  dist::run_ranks(3, [&](dist::Communicator& ranks) {
    models::RunOptions own = options;
    own.ranks = &ranks;
    own.setup.layout.rank = ranks.rank();
    const models::TrainReport report = models::Engine(own).run();
    const bool is_told = report.end == nn::TrainEnd::diverged && report.steps == 1 &&
                         files_test::contains(report.end_text, "holds a NaN or an infinity");
    if (!is_told) throw ValueError("ended otherwise: " + report.end_text);
  });
  CHECK_FALSE(std::filesystem::exists(options.save));
}

TEST_CASE("ranks: who asks one rank to stop stops all after the same step", "[ranks]") {
  const TemporaryFolder folder;
  models::RunOptions options = options_of({"char-gpt", 3, 2});
  options.save = folder / "stopped";
  const auto reports = testing::by_rank(3, [&](dist::Communicator& ranks) {
    models::RunOptions own = options;
    own.ranks = &ranks;
    own.setup.layout.rank = ranks.rank();
    nn::TrainControl control;
    if (ranks.rank() == 1) {
      control.wish = [steps = 0]() mutable { return ++steps == 2 ? nn::Wish::stop : nn::Wish::go_on; };
    }
    return models::Engine(own).run({}, {}, control);
  });
  for (const models::TrainReport& report : reports) {
    CHECK(report.end == nn::TrainEnd::stopped);
    CHECK(report.steps == 2);
  }
  const models::TrainReport rest = [&] {
    models::RunOptions goes_on = options;
    goes_on.resume = options.save;
    goes_on.save = folder / "rest";
    return train(goes_on);
  }();
  CHECK(rest.first_step == 2);
  models::RunOptions one = alone(options);
  one.save = folder / "one";
  train(one);
  CHECK((files_test::read_text_file(folder / "rest") == files_test::read_text_file(folder / "one")));
}

TEST_CASE("ranks: what cannot be is refused before a rank begins", "[ranks]") {
  const auto refusal = [](const models::RunOptions& options) -> std::string {
    try {
      models::Engine(options).plan();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  models::RunOptions options = options_of({"char-gpt", 5, 0});
  CHECK(refusal(options) == "`ranks`: 5 do not divide `batch` 12; expected a multiple of 5");
  options = options_of({"char-gpt", 4, 0, 2});
  CHECK(refusal(options) ==
        "`ranks`: 4 with `micro_batches` 2 each do not divide `batch` 12; expected a multiple of 8");
  options = options_of({"char-gpt", 2, 4});
  CHECK(refusal(options) == "`zero`: stage 4; expected 0 to 3");
  options = options_of({"char-gpt", 2, 0});
  options.setup.layout.rank = 2;
  CHECK(refusal(options) == "`ranks`: 2, of which this is rank 2; expected at least 1, and ranks from 0 to one less");
  options.setup.layout.rank = 0, options.setup.fuses_optimizer = true, options.setup.optimizer.clip_norm = 0;
  CHECK(refusal(options).find("`fuses_optimizer`: not with `ranks` 2") == 0);
  options.setup.fuses_optimizer = false, options.setup.micro_batches = models::auto_micro_batches;
  options.budget_bytes = 1 << 20;
  CHECK(refusal(options).find("`micro_batches`: auto not with `ranks` 2") == 0);
  options.setup.micro_batches = 1;
  options.process_budget_bytes = 1 << 30;
  CHECK(refusal(options).find("`process_budget_bytes`: what 2 ranks hold") == 0);
  options.process_budget_bytes = 0;
  options.costs.measures = true;
  CHECK(refusal(options).find("`measures`: not with `ranks` 2") == 0);
  options = options_of({"char-gpt", 2, 3, 1, "", "adafactor"});
  CHECK(refusal(options) == "`zero`: stage 3 shards parameters, and adafactor needs whole ones; expected 0 to 2");
  // A real run needs a communicator for these ranks.
  options = options_of({"char-gpt", 2, 0});
  models::Engine engine(options);
  CHECK_THROWS_AS(engine.run(), ValueError);
}
