// Models in pipeline stages: several ranks against one rank with the whole model and all micro-batches, bit for bit,
// and predicted bytes on each rank.

#include <algorithm>
#include <functional>
#include <string>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/threads.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"
#include "support/pipeline_rows.h"
#include "support/rank_steps.h"
#include "support/sanitizer.h"
#include "support/train_ranks.h"

using namespace thimble;

using testing::alone;
using testing::setup_of;
using Row = testing::PipelineRow;

TEST_CASE("pipeline: several ranks have the bits of one with the whole model", "[pipeline_parallel]") {
  using models::Build;
  const Row row = GENERATE(testing::table_rows<Row>({
      {"char-gpt", 2},
      {"char-gpt", 4},
      {"char-gpt", 3, 1, 1, 0, 5},
      {"char-gpt", 2, 1, 1, 0, 1},
      {"char-gpt", 4, 1, 1, 0, 6, "gpipe"},
      {"char-gpt", 2, 1, 2, 0},
      {"char-gpt", 2, 1, 2, 1},
      {"char-gpt", 2, 1, 2, 2, 3},
      {"char-gpt", 2, 1, 2, 3},
      {"char-gpt", 4, 1, 2, 3, 4, "gpipe"},
      {"char-gpt", 2, 2},
      {"char-gpt", 2, 2, 2, 1},
      {"char-gpt", 2, 2, 2, 3},
      {"char-gpt", 4, 1, 1, 0, 4, "1f1b", "O1"},
      {"char-gpt", 2, 2, 1, 0, 4, "1f1b", "bf16"},
      {"char-gpt", 2, 1, 2, 1, 4, "1f1b", "O2"},
      {"char-gpt", 2, 1, 2, 1, 4, "1f1b", "fp8"},
      {"char-gpt", 2, 1, 2, 1, 4, "1f1b", "", "adamw8"},
      {"char-gpt", 2, 1, 2, 1, 4, "1f1b", "", "adafactor"},
      {"char-gpt", 2, 1, 1, 0, 4, "1f1b", "", "", Build::textbook},
      {"char-gpt", 2, 1, 1, 0, 4, "1f1b", "", "", Build::fused, 0},
      {"char-gpt", 2, 2, 1, 0, 4, "1f1b", "", "", Build::fused, 0.5, true},
      {"llama-3-8b", 2, 2, 2, 3, 2, "gpipe", "bf16", "", Build::fused, 0.5, true},
      {"bert-base", 2, 2, 1, 1, 4, "1f1b", "", "", Build::fused, 0.5, true},
      {"tiny-llama", 4},
      {"tiny-llama", 2, 2, 2, 2, 2},
      {"llama-3-8b", 2, 1, 2, 3},
      {"llama-3-8b", 4, 2, 1, 0, 4, "1f1b", "bf16"},
      {"bert-base", 4},
      {"bert-base", 2, 2, 1, 0, 4, "1f1b", "O1"},
      {"bert-base", 2, 1, 2, 3, 4, "1f1b", "bf16"},
      {"vit-b16", 2, 2},
      {"vit-b16", 4, 1, 2, 2, 4, "1f1b", "O1"},
      {"mlp", 4, 1, 1, 0, 4, "1f1b", "", "muon"},
      {"resnet18", 2, 1, 1, 0, 4, "1f1b", "", "apollo-mini"},
      {"resnet18", 4, 1, 2, 1},
      {"resnet18", 8, 1, 1, 0, 4, "1f1b", "O1"},
      {"resnet18", 3, 1, 2, 3, 3, "gpipe", "bf16"},
  }));
  INFO(row.text());
  const models::Setup setup = setup_of(row);
  const testing::StepsResult one = testing::run_steps(alone(setup), nullptr);
  CHECK(one.losses.front() != one.losses.back());
  testing::check_ranks_have(setup, one);
}

TEST_CASE("pipeline: a name of `full_state` that no stage has is refused on all", "[pipeline_parallel]") {
  models::Setup setup = setup_of({"char-gpt", 2, 1, 1, 0, 4, "1f1b", "", "adamw8"});
  for (setup.layout.rank = 0; setup.layout.rank < 2; ++setup.layout.rank) {
    setup.optimizer.full_state = {"h.0", "ln_f"};
    CHECK(models::TrainedParts(setup, dry(cpu)).optimizer->kept_full().size() > 0);
    setup.optimizer.full_state = {"h.0", "h.9"};
    CHECK_THROWS_WITH(models::TrainedParts(setup, dry(cpu)),
                      "adamw8: no parameter is named 'h.9' or begins with 'h.9.'");
  }
}

TEST_CASE("pipeline: each rank commits what was predicted, with a budget too", "[pipeline_parallel]") {
  const bool has_budget = GENERATE(false, true);
  const Row row =
      GENERATE(testing::table_rows<Row>({{"char-gpt", 4},
                                         {"char-gpt", 2, 2, 2, 1},
                                         {"char-gpt", 2, 1, 2, 3},
                                         {"char-gpt", 2, 2, 1, 0, 4, "1f1b", "", "", models::Build::fused, 0.5, true},
                                         {"char-gpt", 4, 1, 1, 0, 4, "gpipe"},
                                         {"tiny-llama", 2, 1, 2, 2, 4, "1f1b", "bf16"},
                                         {"bert-base", 4, 1, 1, 0, 6, "1f1b", "O1"},
                                         {"vit-b16", 2, 2, 1},
                                         {"resnet18", 4, 1, 1, 0, 4},
                                         {"resnet18", 2, 1, 2, 1, 2, "1f1b", "bf16"}}));
  INFO(row.text() << (has_budget ? ", budget" : ""));
  models::Setup setup = setup_of(row);
  if (row.model != "vit-b16" && row.model != "resnet18") setup.sizes.sequence = 64;
  const models::TrainReport report = testing::check_predicted(setup, has_budget);
  if (row.model == "resnet18") return;  // its stages hand over images of several sizes
  const std::int64_t tokens = row.model == "vit-b16" ? 5 : 64, parts = row.cuts_sequence ? row.tp : 1;
  for (const nn::RankFigures& rank : report.ranks) {
    // In each step a stage sends its result (B, T, C), the gradient of its input, or both.
    const std::int64_t stream = setup.batch / row.dp * tokens * 48 / parts * (row.precision.empty() ? 4 : 2);
    CHECK(static_cast<std::int64_t>(rank.sent_bytes) >= 3 * stream);
  }
}

namespace {

/// A stage that measures activations before each of its passes.
class WatchedStage final : public optim::Pipeline {
 public:
  WatchedStage(optim::Pipeline& stage, const memory::Ledger& ledger) : stage_(stage), ledger_(ledger) {}
  void begin_step() override { stage_.begin_step(); }
  void complete_gradients() override { stage_.complete_gradients(); }
  std::span<const optim::StagePass> passes() const noexcept override { return stage_.passes(); }
  void begin_pass(const optim::StagePass& pass) override {
    stage_.begin_pass(pass);
    const auto bytes = ledger_.bytes_by_category();
    most = std::max(most, bytes[static_cast<std::size_t>(memory::Category::activation)]);
    most_between = std::max(most_between, bytes[static_cast<std::size_t>(memory::Category::temporary)]);
  }
  void send_result(const Tensor& result) override { stage_.send_result(result); }
  Tensor receive_gradient() override { return stage_.receive_gradient(); }
  bool take_gradient(const std::shared_ptr<tape::Leaf>& leaf) override { return stage_.take_gradient(leaf); }
  void end_passes() override { stage_.end_passes(); }
  Tensor share_loss(const Tensor& loss) override { return stage_.share_loss(loss); }
  Tensor sum_squares(const Tensor& own) override { return stage_.sum_squares(own); }
  void share_parameters() override { stage_.share_parameters(); }
  void drop() noexcept override { stage_.drop(); }

  std::size_t most = 0;          // activations
  std::size_t most_between = 0;  // temporaries

 private:
  optim::Pipeline& stage_;
  const memory::Ledger& ledger_;
};

}  // namespace

// Stage r of p holds its layers' activations for min(p - r, m) micro-batches (1F1B) or for all m (GPipe); interleaved,
// a chunk's activations for 2 (p - r - 1) + (v - 1) p + 1, at most v m. The last stage has one micro-batch under way
// and starts its backward at once; the measurement comes before it.
TEST_CASE("pipeline: activations under way are the formulas'", "[pipeline_parallel]") {
  const auto [pipeline, v] = GENERATE(
      values<std::pair<std::string, int>>({{"1f1b", 1}, {"gpipe", 1}, {"interleaved", 2}, {"interleaved", 3}}));
  const int p = GENERATE(2, 4, 8), m = GENERATE(2, 8, 16);
  const int t = GENERATE(1, 4);
  if (v > 1 && m % p != 0) return;
  models::Setup setup;
  setup.model = "gpt-22b", setup.sizes.build = models::Build::textbook, setup.precision.dtype = DType::bf16;
  setup.layout.pipeline = pipeline, setup.layout.chunks = v, setup.layout.pp = p, setup.layout.tp = t;
  setup.layout.ranks = p * t, setup.micro_batches = setup.batch = m;
  const auto parts_of_one = dist::make_dry(0, t);
  models::ModelOptions sizes = setup.sizes;
  sizes.group = {t, t > 1 ? parts_of_one.get() : nullptr};
  const models::Theory theory = models::make_theory("gpt-22b", sizes, DType::bf16);
  std::size_t of_layer = 0;
  for (const models::Term& term : theory.layers.at(0).kept) of_layer += static_cast<std::size_t>(term.bytes(1));
  for (int r = 1; r + 1 < p; ++r) {  // stages with only layers
    INFO(pipeline << ", " << v << " chunks, stage " << r << " of " << p << ", " << m << " micro-batches, " << t
                  << " parts");
    setup.layout.rank = r * t;
    const memory::Stack stack = memory::make_resource(dry(cpu), nn::profile_options(dry(cpu)));
    const ResourceScope scope(stack.top);
    models::TrainedParts parts(setup, dry(cpu));
    WatchedStage watched(*parts.stage, *stack.ledger);
    parts.options.stage = &watched;
    const models::Batch batch = parts.model->empty_batch(m, dry(cpu));
    nn::training_step(
        *parts.optimizer, [&](std::int64_t i) { return parts.loss(models::micro_batch(batch, i, m)); }, parts.options);
    const auto layers = static_cast<std::size_t>(48 / (p * v));
    const int under_way = pipeline == "gpipe"  ? m
                          : pipeline == "1f1b" ? std::min(p - r, m)
                                               : std::min(2 * (p - r - 1) + (v - 1) * p + 1, v * m);
    CHECK(watched.most == static_cast<std::size_t>(under_way) * layers * of_layer);
    // Results and gradients for other stages stay open for `open` passes, including the current pass.
    const int open = dist::check_hand_over(v > 1                 ? dist::interleaved(p, m, v)
                                           : pipeline == "gpipe" ? dist::gpipe(p, m)
                                                                 : dist::one_forward_one_backward(p, m));
    const models::ModelOptions& own = parts.model->options();
    const auto of_result = static_cast<std::size_t>(own.sequence * own.width) * size_of(DType::bf16);
    CHECK(watched.most_between <= static_cast<std::size_t>(2 * open - 1) * of_result);
  }
}

TEST_CASE("pipeline: parts of a group are alike, but for the rank that writes files", "[pipeline_parallel]") {
  using Groups = std::vector<std::vector<int>>;
  CHECK(models::alike_ranks(setup_of({"bert-base", 2, 2}), cpu) == Groups{{0}, {1}, {2, 3}});
  CHECK(models::alike_ranks(setup_of({"bert-base", 2, 3}), cpu) == Groups{{0}, {1, 2}, {3, 4, 5}});
  CHECK(models::alike_ranks(setup_of({"bert-base", 2, 2, 2, 1}), cpu) ==
        Groups{{0}, {1}, {2, 3}, {4, 5}, {6, 7}});  // shards of the state differ by parameters
}

TEST_CASE("pipeline: what stages cannot do is refused", "[pipeline_parallel]") {
  const auto why = [](const std::function<void(models::RunOptions&)>& change) -> std::string {
    models::RunOptions options;
    options.setup = setup_of({"char-gpt", 2});
    options.data = "synthetic";
    change(options);
    return testing::refusal_of(options);
  };
  CHECK(why([](auto&) {}) == "");
  CHECK(why([](auto& o) { o.setup.layout.pp = 0; }).find("`pp`: 0 with `ranks` 2") == 0);
  CHECK(why([](auto& o) { o.setup.layout.ranks = 3, o.setup.batch = 12; }) ==
        "`pp`: 2 with `ranks` 3; expected as many stages as divide the ranks, or any number on one rank");
  CHECK(why([](auto& o) { o.setup.layout.ranks = 1; }) == "");
  CHECK(why([](auto& o) { o.setup.layout.pp = o.setup.layout.ranks = 5; }) ==
        "`pp`: 5 stages of a chain of 4 blocks; expected at most as many");
  CHECK(why([](auto& o) { o.setup.layout.pipeline = "zigzag"; }) ==
        "`pipeline`: 'zigzag' is not one of 1f1b, gpipe, interleaved");
  CHECK(why([](auto& o) { o.setup.lora.rank = 4; }).find("`pp`: 2 not with `lora_rank` 4") == 0);
  CHECK(why([](auto& o) {
          o.setup.offload.to = "/tmp", o.budget_bytes = 1 << 30;
        }).find("`pp`: 2 not with `offload` /tmp") == 0);
  CHECK(why([](auto& o) { o.setup.weights = "/tmp/file"; }).find("`pp`: 2 with `weights`") == 0);
  CHECK(why([](auto& o) { o.sample = 4; }).find("`pp`: 2 with `sample`") == 0);
  CHECK(why([](auto& o) { o.process_budget_bytes = std::size_t{1} << 40; }) ==
        "`process_budget_bytes`: what 2 ranks hold outside of their arenas is not known; expected "
        "`budget_bytes`, of each rank");
  CHECK(why([](auto& o) {
          o.costs.measures = true, o.budget_bytes = std::size_t{1} << 40;
        }).find("`measures`: not with `ranks` 2, which would") == 0);
  CHECK(why([](auto& o) { o.captures_steps = true; }).find("`captures_steps`: ") == 0);
  CHECK(why([](auto& o) {
          o.setup.model = "googlenet";
          o.setup.sizes = {};
        }) == "`pp`: googlenet is no chain of blocks; expected 1, got 2");
}

// tests/models/training/parts_files_test.cpp does this for shards without stages.
TEST_CASE("pipeline: files are those of one rank, and go on in any layout", "[pipeline_parallel]") {
  const auto [first, then] =
      GENERATE(testing::table_rows<std::pair<Row, Row>>({{{"char-gpt", 2}, {"char-gpt", 4, 1, 1, 0, 4, "gpipe"}},
                                                         {{"char-gpt", 2, 1, 2, 3, 2}, {"char-gpt", 2, 1, 1, 0, 4}},
                                                         {{"char-gpt", 2, 2, 2, 2, 2}, {"char-gpt", 4, 2, 1, 0, 4}},
                                                         {{"llama-3-8b", 4, 1, 2, 1, 2}, {"llama-3-8b", 1, 1, 4, 3, 1}},
                                                         {{"bert-base", 2, 1, 2, 3, 2}, {"bert-base", 4}},
                                                         {{"resnet18", 2, 1, 2, 1, 2}, {"resnet18", 4}}}));
  INFO(first.text() << "; then " << then.text());
  testing::check_files(first, then);
}
