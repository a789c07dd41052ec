// Interleaved pipelines, with several chunks per stage: ranks against one rank with the whole model and all
// micro-batches, bit for bit, and predicted bytes on each rank; files and refusals.
// tests/models/training/pipeline_parallel_test.cpp compares the kept activations with the formula.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/pieces.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/pipeline_rows.h"
#include "support/rank_steps.h"
#include "support/sanitizer.h"
#include "support/train_ranks.h"

using namespace thimble;
using testing::alone;
using testing::PipelineRow;
using testing::setup_of;

namespace {

/// A row in `chunks` chunks for a model of `layers` layers.
PipelineRow in_chunks(PipelineRow row, int chunks = 2, std::int64_t layers = 4) {
  row.pipeline = "interleaved";
  row.chunks = chunks;
  row.layers = layers;
  return row;
}

PipelineRow trained_by(PipelineRow row, const std::string& precision, const std::string& optimizer = {}) {
  row.precision = precision;
  row.optimizer = optimizer;
  return row;
}

PipelineRow clipped(PipelineRow row, double norm) {
  row.clip = norm;
  return row;
}

PipelineRow with_cut_sequence(PipelineRow row) {
  row.cuts_sequence = true;
  return row;
}

}  // namespace

TEST_CASE("interleaved: several ranks have the bits of one with the whole model", "[interleaved]") {
  const PipelineRow row = GENERATE(testing::table_rows<PipelineRow>({
      in_chunks({"char-gpt", 2}),
      in_chunks({"char-gpt", 2, 1, 1, 0, 2}),
      in_chunks({"char-gpt", 4, 1, 1, 0, 4}, 2, 8),
      in_chunks({"char-gpt", 4, 1, 1, 0, 8}, 2, 9),
      in_chunks({"char-gpt", 2, 1, 1, 0, 6}, 3, 7),
      in_chunks({"char-gpt", 3, 1, 1, 0, 6}, 2, 6),
      in_chunks({"char-gpt", 2, 2}),
      in_chunks({"char-gpt", 2, 1, 2, 0}),
      in_chunks({"char-gpt", 2, 1, 2, 1}),
      in_chunks({"char-gpt", 2, 1, 2, 2}),
      in_chunks({"char-gpt", 2, 1, 2, 3}),
      in_chunks({"char-gpt", 4, 1, 2, 3}, 2, 8),
      in_chunks({"char-gpt", 2, 2, 2, 1}),
      with_cut_sequence(in_chunks({"char-gpt", 2, 2, 2, 3})),
      trained_by(in_chunks({"char-gpt", 4}, 2, 8), "O1"),
      trained_by(in_chunks({"char-gpt", 2, 2}), "bf16"),
      trained_by(in_chunks({"char-gpt", 2, 1, 2, 1}), "O2"),
      trained_by(in_chunks({"char-gpt", 2, 1, 2, 1}), "fp8"),
      trained_by(in_chunks({"char-gpt", 2, 1, 2, 1}), "", "adamw8"),
      trained_by(in_chunks({"char-gpt", 2, 1, 2, 2}), "", "adafactor"),
      clipped(in_chunks({"char-gpt", 2}), 0),
      in_chunks({"tiny-llama", 4}, 2, 8),
      in_chunks({"tiny-llama", 2, 2, 2, 2, 2}),
      trained_by(in_chunks({"llama-3-8b", 2, 1, 2, 3}), "bf16"),
      in_chunks({"bert-base", 4}, 2, 8),
      trained_by(in_chunks({"bert-base", 2, 1, 2, 3}), "bf16"),
      in_chunks({"vit-b16", 2, 2}),
      trained_by(in_chunks({"mlp", 2}), "", "muon"),
      in_chunks({"resnet18", 2}),
      trained_by(in_chunks({"resnet18", 2}, 4), "", "galore"),
      trained_by(in_chunks({"resnet18", 4, 1, 2, 1}), "bf16"),
  }));
  INFO(row.text());
  const models::Setup setup = setup_of(row);
  const testing::StepsResult one = testing::run_steps(alone(setup), nullptr);
  CHECK(one.losses.front() != one.losses.back());
  testing::check_ranks_have(setup, one);
}

TEST_CASE("interleaved: each rank commits what was predicted, with a budget too", "[interleaved]") {
  const bool has_budget = GENERATE(false, true);
  const PipelineRow row = GENERATE(testing::table_rows<PipelineRow>(
      {in_chunks({"char-gpt", 2}), in_chunks({"char-gpt", 4}, 2, 8), in_chunks({"char-gpt", 2, 2, 2, 1}),
       in_chunks({"char-gpt", 2, 1, 2, 3}, 2, 6), trained_by(in_chunks({"tiny-llama", 2, 1, 2, 2}), "bf16"),
       trained_by(in_chunks({"bert-base", 2, 1, 1, 0, 6}), "O1"), in_chunks({"vit-b16", 2, 2}),
       in_chunks({"resnet18", 2, 1, 2, 1}, 3)}));
  INFO(row.text() << (has_budget ? ", budget" : ""));
  models::Setup setup = setup_of(row);
  if (row.model != "vit-b16" && row.model != "resnet18") setup.sizes.sequence = 64;
  testing::check_predicted(setup, has_budget);
}

TEST_CASE("interleaved: a budget has its blocks run again, each chunk by its own part of the plan", "[interleaved]") {
  models::RunOptions options;
  options.setup = setup_of(in_chunks({"char-gpt", 2, 1, 1, 0, 2}));
  options.setup.sizes.sequence = 256;
  options.data = "synthetic";
  for (int rank = 0; rank < 2; ++rank) {
    options.setup.layout.rank = rank;
    options.budget_bytes = 0;
    const std::size_t free = models::Engine(options).plan().peak_bytes;
    options.budget_bytes = 1;
    std::size_t least = 0;
    try {
      models::Engine(options).plan();
    } catch (const nn::BudgetError& error) {
      least = error.minimum_bytes();
    }
    INFO("rank " << rank << ": " << free << " bytes without a budget, " << least << " at least");
    CHECK(least < free * 3 / 4);
    options.budget_bytes = least;
    models::Engine engine(options);
    REQUIRE(engine.plan().tape);
    const TapePlan& tape = *engine.plan().tape;
    REQUIRE(tape.ends.size() == 2);
    CHECK(tape.ends.back() == tape.fates.size());
    const auto parts = split(tape, 2);
    for (const auto& part : parts) CHECK_FALSE(part->segments.empty());
    CHECK(parts[0]->fates.size() == tape.ends[0]);
    CHECK_THROWS_WITH(split(tape, 3), "plan: it is for 2 recordings in a row, and followed by 3");
  }
}

TEST_CASE("interleaved: a stage's pieces are listed as one model, and run by themselves", "[interleaved]") {
  models::Setup setup = setup_of(in_chunks({"char-gpt", 2}));
  setup.layout.rank = 1;
  models::TrainedParts parts(setup, dry(cpu));
  std::vector<std::string> names;
  for (const nn::NamedTensor& p : parts.model->parameters()) names.push_back(p.name);
  const auto begins_with = [&](const std::string& start) {
    return std::find_if(names.begin(), names.end(), [&](const std::string& n) { return n.starts_with(start); }) -
           names.begin();
  };
  const auto count = static_cast<std::ptrdiff_t>(names.size());
  CHECK(begins_with("h.0.") == count);  // on rank 0
  CHECK(begins_with("h.1.") == 0);
  CHECK(begins_with("h.2.") == count);
  CHECK(begins_with("h.1.") < begins_with("wte."));
  CHECK(begins_with("wte.") < begins_with("h.3."));
  CHECK(begins_with("h.3.") < begins_with("ln_f."));
  CHECK(begins_with("ln_f.") < count);
  CHECK(parts.pieces.size() == 2);
  const models::Batch batch = parts.model->empty_batch(1, dry(cpu));
  CHECK_THROWS_AS(parts.model->loss(batch), PlanError);
  CHECK_THROWS_WITH(parts.model->forward(batch.input), Catch::Contains("a stage in 2 chunks"));
}

TEST_CASE("interleaved: what cannot be is refused", "[interleaved]") {
  const auto why = [](const std::function<void(models::RunOptions&)>& change) -> std::string {
    models::RunOptions options;
    options.setup = setup_of(in_chunks({"char-gpt", 2}));
    options.data = "synthetic";
    change(options);
    return testing::refusal_of(options);
  };
  CHECK(why([](auto&) {}) == "");
  CHECK(why([](auto& o) { o.setup.layout.pipeline = "1f1b"; }) ==
        "`chunks`: 2 with `pipeline` 1f1b; expected 1, or `pipeline` interleaved");
  CHECK(why([](auto& o) { o.setup.layout.chunks = 1; }) ==
        "`chunks`: 1 with `pipeline` interleaved; expected at least 2");
  CHECK(why([](auto& o) { o.setup.layout.chunks = 0; }) ==
        "`chunks`: 0 with `pipeline` interleaved; expected at least 2");
  CHECK(why([](auto& o) { o.setup.micro_batches = 3, o.setup.batch = 6; }) ==
        "`micro_batches`: 3 with `pipeline` interleaved and `pp` 2; expected a multiple of the stages");
  CHECK(why([](auto& o) { o.setup.layout.chunks = 3; }) ==
        "`pp`: 6 stages of a chain of 4 blocks; expected at most as many");
  CHECK(why([](auto& o) { o.setup.layout.pp = 1; }) == "`pipeline`: needs `pp` 2 or more");
  CHECK(why([](auto& o) { o.setup.layout.ranks = 1; }) == "");
  CHECK(why([](auto& o) { o.setup.layout.ranks = 1, o.setup.layout.chunks = 3; }) ==
        "`pp`: 6 stages of a chain of 4 blocks; expected at most as many");
}

TEST_CASE("interleaved: files are those of one rank, and go on in any layout", "[interleaved]") {
  const auto [first, then] = GENERATE(testing::table_rows<std::pair<PipelineRow, PipelineRow>>(
      {{in_chunks({"char-gpt", 2}), {"char-gpt", 4, 1, 1, 0, 4, "gpipe"}},
       {{"char-gpt", 2, 1, 2, 1, 2}, in_chunks({"char-gpt", 2, 1, 1, 0, 4})},
       {in_chunks({"vit-b16", 2, 2, 2, 3, 2}), in_chunks({"vit-b16", 2, 2, 1, 0, 4})},
       {in_chunks({"llama-3-8b", 2, 1, 2, 3, 2}), {"llama-3-8b", 1, 1, 4, 2, 1}},
       {in_chunks({"bert-base", 2, 1, 2, 2, 2}), {"bert-base", 4}},
       {in_chunks({"resnet18", 2, 1, 2, 1, 2}, 4), in_chunks({"resnet18", 4})}}));
  INFO(first.text() << "; then " << then.text());
  testing::check_files(first, then);
}
