// Training with a sharded sequence and whole layers on each rank: several ranks against one rank with all shards, bit
// for bit, and committed bytes against predictions.

#include <string>

#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/rank_steps.h"
#include "support/sanitizer.h"
#include "support/train_ranks.h"

using namespace thimble;
using testing::alone;

namespace {

struct Row {
  std::string model;
  int cp, dp, pp = 1, zero = 0;
  std::int64_t micro_batches = 1;  // per rank
  std::string precision = {}, optimizer = {};
  double dropout = 0.1;

  std::string text() const {
    return model + ", " + std::to_string(cp) + " parts, " + std::to_string(dp) + " shares, " + std::to_string(pp) +
           " stages, ZeRO " + std::to_string(zero) + ", " + std::to_string(micro_batches) + " micro-batches, " +
           precision + " " + optimizer;
  }
};

models::Setup setup_of(const Row& row) {
  models::Setup setup;
  setup.model = row.model;
  models::ModelOptions& sizes = setup.sizes;
  sizes.layers = 2, sizes.width = 48, sizes.heads = 12, sizes.sequence = 16;
  const bool is_llama = row.model == "tiny-llama" || row.model == "llama-3-8b";
  if (is_llama) sizes.key_heads = 4;
  if (!is_llama) sizes.dropout = row.dropout;
  if (row.model == "llama-3-8b") sizes.vocabulary = 96, sizes.hidden = 96;  // its head is not the table
  if (row.model == "bert-base") sizes.vocabulary = 97;
  setup.batch = 8;
  setup.optimizer.name = row.optimizer;
  setup.layout.ranks = row.cp * row.dp * row.pp;
  setup.layout.cp = row.cp, setup.layout.pp = row.pp, setup.layout.zero = row.zero;
  setup.micro_batches = row.micro_batches;
  setup.layout.bucket_bytes = 16 << 10;
  setup.optimizer.clip_norm = 0.5;
  if (!row.precision.empty()) set_precision(setup, row.precision);
  return setup;
}

}  // namespace

TEST_CASE("context parallel: several ranks have the bits of one", "[context_parallel]") {
  const Row row = GENERATE(testing::table_rows<Row>({{"char-gpt", 2, 1},
                                                     {"char-gpt", 4, 1, 1, 0, 2},
                                                     {"char-gpt", 2, 2, 1, 1},
                                                     {"char-gpt", 2, 2, 1, 3, 2, "bf16", "adamw8"},
                                                     {"char-gpt", 4, 2, 1, 2, 1, "O1"},
                                                     {"char-gpt", 2, 1, 1, 0, 1, "O2", "adafactor"},
                                                     {"char-gpt", 2, 1, 2, 0, 4},
                                                     {"tiny-llama", 4, 1},
                                                     {"tiny-llama", 2, 2, 2, 3, 2, "bf16"},
                                                     {"llama-3-8b", 2, 2, 1, 1, 1, "O1"},
                                                     {"bert-base", 2, 2, 1, 2},
                                                     {"bert-base", 4, 1, 1, 0, 2, "O1"}}));
  INFO(row.text());
  const models::Setup setup = setup_of(row);
  const testing::StepsResult one = testing::run_steps(alone(setup), nullptr);
  CHECK(one.losses.front() != one.losses.back());
  if (row.pp > 1) {
    testing::check_ranks_have(setup, one);
    return;
  }
  for (const testing::StepsResult& own : testing::run_ranks_steps(setup)) {
    CHECK(own.losses == one.losses);
    CHECK((own.tensors == one.tensors));
  }
}

TEST_CASE("context parallel: a sequence in parts is the whole one, within rounding", "[context_parallel]") {
  const std::string model = GENERATE("char-gpt", "tiny-llama", "llama-3-8b", "bert-base");
  const int cp = GENERATE(2, 4);
  models::Setup setup = setup_of({model, cp, 1});
  setup.layout.ranks = 1;
  if (setup.sizes.dropout > 0) setup.sizes.dropout = 0;  // heads draw dropout shard by shard
  setup.precision.dtype = DType::f64;
  models::Setup whole = setup;
  whole.layout.cp = 1;
  INFO(model << " in " << cp << " parts");
  const testing::StepsResult a = testing::run_steps(setup, nullptr), b = testing::run_steps(whole, nullptr);
  for (std::size_t i = 0; i < a.losses.size(); ++i) CHECK(std::abs(a.losses[i] - b.losses[i]) < 1e-10);
  for (const auto& [name, bytes] : a.tensors) {
    INFO(name);
    REQUIRE(b.tensors.count(name) == 1);
    CHECK(bytes.size() == b.tensors.at(name).size());
  }
}

TEST_CASE("context parallel: each rank commits what was predicted, with a budget too", "[context_parallel]") {
  const bool has_budget = GENERATE(false, true);
  const Row row = GENERATE(testing::table_rows<Row>({{"char-gpt", 2, 1},
                                                     {"char-gpt", 2, 2, 1, 3, 2},
                                                     {"char-gpt", 4, 1, 1, 0, 1, "bf16"},
                                                     {"char-gpt", 2, 1, 2, 0, 4},
                                                     {"tiny-llama", 2, 2, 1, 2},
                                                     {"llama-3-8b", 4, 1, 1, 0, 1, "O1"},
                                                     {"bert-base", 2, 2, 1, 1}}));
  INFO(row.text() << (has_budget ? ", budget" : ""));
  testing::check_predicted(setup_of(row), has_budget);
}

TEST_CASE("context parallel: a layer keeps its part of what a whole one does, and attention's result once more",
          "[context_parallel]") {
  const std::string name = GENERATE("char-gpt", "tiny-llama", "bert-base");
  const int parts = GENERATE(2, 4);
  const bool is_team = GENERATE(false, true);
  INFO(name << ", " << parts << " parts, " << (is_team ? "group" : "one rank"));
  const auto ranks = dist::make_dry(parts - 1, parts);
  constexpr std::int64_t b = 3;
  models::ModelOptions sizes = setup_of({name, parts, 1}).sizes;
  const auto kept = [&](std::int64_t layers, const dist::ShardGroup& group) {
    sizes.layers = layers, sizes.group = group;
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope scope(stack.top);
    RandomGenerator generator(1);
    const GeneratorScope random(generator);
    const auto model = models::make_model(name, sizes, {dry(cpu)});
    const models::Batch batch = model->empty_batch(b, dry(cpu));
    Tape tape;
    generator.start_pass();
    const Recording on_tape(tape);
    model->loss(batch);
    return static_cast<std::int64_t>(stack.ledger->bytes(memory::Category::activation));
  };
  const dist::ShardGroup group{parts, is_team ? ranks.get() : nullptr, true, true};
  const std::int64_t here = group.count(), layer = kept(3, {}) - kept(2, {});
  CHECK(kept(3, group) - kept(2, group) == (layer + 4 * sizes.sequence * b * sizes.width) / parts * here);
}

TEST_CASE("context parallel: what is not done is refused", "[context_parallel]") {
  const auto why = [](const std::function<void(models::Setup&)>& change, std::int64_t sample = 0) -> std::string {
    models::RunOptions options;
    options.sample = sample;
    options.setup = setup_of({"char-gpt", 2, 1});
    options.setup.layout.ranks = 1;
    options.data = "synthetic";
    change(options.setup);
    return testing::refusal_of(options);
  };
  CHECK(why([](auto&) {}).empty());
  CHECK(why([](auto&) {}, 3) == "`cp`: 2 with `sample`; expected `cp` 1, or `sample` 0");
  CHECK(why([](auto& s) { s.layout.tp = 2; }).find("`cp`: 2 not with `tp` 2: only sequences of whole layers") == 0);
  CHECK(why([](auto& s) { s.layout.ranks = 3; }).find("`cp`: 2 with `ranks` 3; expected a divisor of the ranks") == 0);
  CHECK(why([](auto& s) { s.layout.cp = 0; }).find("`cp`: 0 with `ranks` 1") == 0);
  CHECK(why([](auto& s) { s.lora.rank = 4; }).find("`cp`: 2 not with `lora_rank` 4") == 0);
  CHECK(why([](auto& s) {
          s.sizes.sequence = 17;
        }).find("`cp`: 2 shards: a sequence of 17 tokens; expected a divisor") == 0);
  CHECK(why([](auto& s) { s.layout.cp = 8; }).find("`cp`: 8 shards: 12 heads; expected a divisor") == 0);
  CHECK(why([](auto& s) { s.sizes.build = models::Build::textbook; }).find("`cp`: 2 shards: not in the textbook") == 0);
  CHECK(why([](auto& s) { s.sizes.head = models::Head::chunked; }) ==
        "`head`: chunked not with `cp` 2: its ranks have a shard of the tokens each; expected one of the two");
  CHECK(why([](auto& s) { set_precision(s, "fp8"); }).find("`cp`: 2 shards: not with products in FP8") == 0);
  CHECK(why([](auto& s) {
          s.model = "vit-b16";
          s.sizes = {};
        }).find("is not cut along the sequence") != std::string::npos);
  models::ModelOptions sizes = setup_of({"char-gpt", 2, 1}).sizes;
  sizes.group = {2, nullptr, true, true};
  const models::Theory theory = models::make_theory("char-gpt", sizes, DType::f32);
  CHECK(theory.state(0).parameter_elements == models::make_model("char-gpt", sizes)->parameter_count());
  CHECK_THROWS_WITH(theory.held_bytes(0, 1), Catch::Contains("tokens in shards, in attention heads, keep"));
}
