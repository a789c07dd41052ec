// Models with sharded blocks. Several ranks with a shard each against one rank with all shards: losses, parameters and
// norms bit for bit, and predicted bytes on each rank. One rank with shards against a whole model, within rounding.

#include <cmath>
#include <map>
#include <string>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/threads.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/training.h>
#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"
#include "support/rank_steps.h"
#include "support/sanitizer.h"
#include "support/train_ranks.h"

using namespace thimble;
using testing::alone;

namespace {

struct Row {
  std::string model;
  int tp, dp, zero = 0;
  std::int64_t micro_batches = 1;  // per rank
  std::string precision = {}, optimizer = {};
  models::Build build = models::Build::fused;
  double clip = 0.5;
  bool cuts_sequence = false;

  std::string text() const {
    return model + " in " + std::to_string(tp) + " parts, " + (cuts_sequence ? "sequence as well, " : "") +
           std::to_string(dp) + " groups, stage " + std::to_string(zero) + ", " + std::to_string(micro_batches) +
           " micro-batches, " + precision + " " + optimizer + (build == models::Build::textbook ? ", textbook" : "");
  }
};

models::Setup setup_of(const Row& row) {
  models::Setup setup;
  setup.model = row.model;
  models::ModelOptions& sizes = setup.sizes;
  sizes.layers = 2, sizes.width = 48, sizes.heads = 12, sizes.build = row.build;
  if (row.model == "vit-b16") {
    sizes.image = 32;
  } else {
    sizes.sequence = 16;
  }
  if (row.model == "tiny-llama" || row.model == "llama-3-8b") {
    sizes.key_heads = 4;
  } else {
    sizes.dropout = 0.1;
  }
  if (row.model == "llama-3-8b") sizes.vocabulary = 96, sizes.hidden = 96;  // its head is not the table
  if (row.model == "bert-base") sizes.vocabulary = 97;
  setup.batch = 8;
  setup.optimizer.name = row.optimizer;
  setup.layout.ranks = row.tp * row.dp;
  setup.layout.tp = row.tp;
  setup.layout.sequence_parallel = row.cuts_sequence;
  setup.layout.zero = row.zero;
  setup.micro_batches = row.micro_batches;
  setup.layout.bucket_bytes = 16 << 10;
  setup.optimizer.clip_norm = row.clip;
  if (!row.precision.empty()) set_precision(setup, row.precision);
  return setup;
}

}  // namespace

TEST_CASE("tensor parallel: several ranks have the bits of one with all parts", "[tensor_parallel]") {
  using models::Build;
  const Row row =
      GENERATE(testing::table_rows<Row>({{"char-gpt", 2, 1},
                                         {"char-gpt", 4, 1},
                                         {"char-gpt", 2, 2, 0},
                                         {"char-gpt", 2, 2, 1, 2},
                                         {"char-gpt", 2, 2, 2},
                                         {"char-gpt", 2, 2, 3},
                                         {"char-gpt", 4, 2, 3, 2},
                                         {"char-gpt", 3, 1, 0, 2},
                                         {"char-gpt", 2, 1, 0, 1, "", "", Build::textbook},
                                         {"char-gpt", 4, 1, 0, 1, "O1"},
                                         {"char-gpt", 2, 2, 2, 1, "O2"},
                                         {"char-gpt", 4, 2, 1, 1, "bf16"},
                                         {"char-gpt", 2, 2, 1, 1, "", "adamw8"},
                                         {"char-gpt", 2, 1, 0, 1, "", "adafactor"},
                                         {"char-gpt", 2, 2, 2, 1, "", "adafactor"},
                                         {"char-gpt", 2, 2, 1, 1, "", "", Build::fused, 0},
                                         {"tiny-llama", 2, 1},
                                         {"tiny-llama", 4, 1, 0, 1, "bf16"},
                                         {"tiny-llama", 2, 2, 3, 1, "O1"},
                                         {"tiny-llama", 2, 1, 0, 1, "", "", Build::textbook},
                                         {"llama-3-8b", 4, 1},
                                         {"llama-3-8b", 2, 2, 3, 2, "bf16", "adamw8"},
                                         {"llama-3-8b", 2, 1, 0, 1, "", "adafactor"},
                                         {"bert-base", 2, 1},
                                         {"bert-base", 4, 1, 0, 1, "O1"},
                                         {"bert-base", 2, 2, 3, 2, "bf16"},
                                         {"bert-base", 2, 1, 0, 1, "", "", Build::textbook},
                                         {"vit-b16", 2, 1},
                                         {"vit-b16", 4, 2, 2, 1, "O1"},
                                         {"vit-b16", 2, 2, 3, 1, "bf16"},
                                         {"vit-b16", 2, 1, 0, 1, "", "", Build::textbook},
                                         {"char-gpt", 2, 1, 0, 1, "", "", Build::fused, 0.5, true},
                                         {"char-gpt", 4, 1, 0, 2, "O1", "", Build::fused, 0.5, true},
                                         {"char-gpt", 2, 2, 3, 2, "bf16", "adamw8", Build::fused, 0.5, true},
                                         {"char-gpt", 2, 2, 1, 1, "O2", "", Build::fused, 0, true},
                                         {"char-gpt", 4, 1, 0, 1, "", "adafactor", Build::textbook, 0.5, true},
                                         {"tiny-llama", 4, 1, 0, 1, "", "", Build::fused, 0.5, true},
                                         {"tiny-llama", 2, 2, 2, 2, "O1", "", Build::textbook, 0.5, true},
                                         {"llama-3-8b", 2, 2, 3, 1, "bf16", "", Build::fused, 0.5, true},
                                         {"bert-base", 2, 2, 1, 2, "", "", Build::fused, 0.5, true},
                                         {"bert-base", 4, 1, 0, 1, "O1", "", Build::textbook, 0.5, true},
                                         {"bert-base", 2, 1, 0, 1, "bf16", "adamw8", Build::fused, 0.5, true}}));
  INFO(row.text());
  const models::Setup setup = setup_of(row);
  const testing::StepsResult one = testing::run_steps(alone(setup), nullptr);
  CHECK(one.losses.front() != one.losses.back());
  const std::map<std::string, int> owners = testing::check_ranks_have(setup, one);
  for (const auto& [name, count] : owners) {  // one rank of each group has a shard, all have the rest
    INFO(name);
    CHECK((count == row.dp || count == setup.layout.ranks));
  }
}

TEST_CASE("tensor parallel: a model in parts is the whole model, within rounding", "[tensor_parallel]") {
  const std::string model = GENERATE("char-gpt", "tiny-llama", "llama-3-8b", "bert-base", "vit-b16");
  const int tp = GENERATE(2, 4);
  models::Setup setup = setup_of({model, tp, 1});
  setup.layout.ranks = 1;
  if (setup.sizes.dropout > 0) setup.sizes.dropout = 0;  // shards draw dropout separately
  setup.precision.dtype = DType::f64;
  models::Setup whole = setup;
  whole.layout.tp = 1;
  INFO(model << " in " << tp << " parts");
  const testing::StepsResult a = testing::run_steps(setup, nullptr), b = testing::run_steps(whole, nullptr);
  for (std::size_t i = 0; i < a.losses.size(); ++i) CHECK(std::abs(a.losses[i] - b.losses[i]) < 1e-10);
  std::size_t elements = 0, of_whole = 0;
  for (const auto& p : a.tensors) elements += p.second.size();
  for (const auto& p : b.tensors) of_whole += p.second.size();
  CHECK(elements == of_whole);
}

TEST_CASE("tensor parallel: the sequence in parts changes sums over tokens alone", "[tensor_parallel]") {
  using models::Build;
  const Row row = GENERATE(testing::table_rows<Row>({{"char-gpt", 4, 1, 0, 2},
                                                     {"char-gpt", 2, 1, 0, 1, "O1", "", Build::textbook},
                                                     {"tiny-llama", 4, 1, 0, 1, "bf16"}}));
  INFO(row.text());
  models::Setup setup = alone(setup_of(row));
  const testing::StepsResult whole = testing::run_steps(setup, nullptr);
  setup.layout.sequence_parallel = true;
  const testing::StepsResult cut = testing::run_steps(setup, nullptr);
  CHECK(cut.losses[0] == whole.losses[0]);
  CHECK(cut.losses.back() == Approx(whole.losses.back()).epsilon(row.precision == "bf16" ? 1e-2 : 1e-3));
}

TEST_CASE("tensor parallel: each rank commits what was predicted, with a budget too", "[tensor_parallel]") {
  const bool has_budget = GENERATE(false, true);
  const Row row =
      GENERATE(testing::table_rows<Row>({{"char-gpt", 2, 1},
                                         {"char-gpt", 2, 2, 1, 2},
                                         {"char-gpt", 4, 1, 0, 1, "bf16"},
                                         {"char-gpt", 4, 2, 1},
                                         {"char-gpt", 2, 2, 3},
                                         {"tiny-llama", 2, 2, 2},
                                         {"llama-3-8b", 4, 1},
                                         {"bert-base", 4, 1, 0, 1, "O1"},
                                         {"vit-b16", 2, 2, 1},
                                         {"char-gpt", 4, 1, 0, 2, "bf16", "", models::Build::fused, 0.5, true},
                                         {"char-gpt", 2, 2, 3, 1, "", "", models::Build::textbook, 0.5, true},
                                         {"tiny-llama", 2, 2, 1, 1, "", "", models::Build::fused, 0.5, true}}));
  INFO(row.text() << (has_budget ? ", budget" : ""));
  models::Setup setup = setup_of(row);
  if (row.model != "vit-b16") setup.sizes.sequence = 64;
  const models::TrainReport report = testing::check_predicted(setup, has_budget);
  const std::int64_t tokens = row.model == "vit-b16" ? 5 : 64;
  for (const nn::RankFigures& rank : report.ranks) {
    // Each block folds the residual stream's width twice forward and twice backward; a rank of t sends 2 (t - 1) / t of
    // it each time.
    const std::int64_t stream = setup.batch / row.dp * tokens * 48 * (row.precision.empty() ? 4 : 2);
    CHECK(static_cast<std::int64_t>(rank.sent_bytes) >= 3 * 2 * 4 * stream * 2 * (row.tp - 1) / row.tp);
  }
}

TEST_CASE("tensor parallel: logits of a vocabulary in parts are never side by side", "[tensor_parallel]") {
  const std::string name = GENERATE("char-gpt", "tiny-llama", "bert-base");
  models::ModelOptions sizes = setup_of({name, 2, 1}).sizes;
  sizes.group.shards = 2;
  const auto model = models::make_model(name, sizes);
  CHECK_THROWS_WITH(model->forward(zeros({1, 4}, DType::i64)),
                    Catch::Contains("scores of a vocabulary in 2 shards, which are never side by side"));
  sizes.vocabulary = 1;
  CHECK_THROWS_WITH(models::make_model(name, sizes), Catch::Contains("1 tokens; expected at most as many shards"));
  sizes.vocabulary = 96;
  sizes.head = models::Head::chunked;
  CHECK_THROWS_WITH(models::make_model(name, sizes), Catch::Contains("not with a chunked head"));
}

TEST_CASE("tensor parallel: a cache is for whole blocks", "[tensor_parallel]") {
  const std::string name = GENERATE("char-gpt", "tiny-llama");
  models::ModelOptions sizes = setup_of({name, 2, 1}).sizes;
  sizes.group.shards = 2;
  const auto model = models::make_model(name, sizes);
  auto& decoder = dynamic_cast<models::Decoder&>(*model);
  nn::KvCacheSizes cached = decoder.cache_sizes();
  cached.batch = 1, cached.context = 4;
  nn::KvCache cache(cached, cpu);
  CHECK_THROWS_WITH(decoder.extend(zeros({1, 1}, DType::i64), cache),
                    Catch::Contains("a cache with sharded blocks; expected whole blocks"));
  CHECK(cache.length() == 0);
}

TEST_CASE("tensor parallel: what is not done in parts is refused", "[tensor_parallel]") {
  const auto why = [](const std::function<void(models::RunOptions&)>& change) -> std::string {
    models::RunOptions options;
    options.setup = setup_of({"char-gpt", 2, 1});
    options.setup.layout.ranks = 1;
    options.data = "synthetic";
    change(options);
    return testing::refusal_of(options);
  };
  CHECK(why([](auto&) {}) == "");
  CHECK(why([](auto& o) { o.setup.layout.tp = 5; }) == "`tp`: 5 shards: 12 heads; expected a divisor");
  CHECK(why([](auto& o) { o.setup.layout.ranks = 3; }) ==
        "`tp`: 2 with `ranks` 3; expected a divisor of the ranks, or any number of shards on one rank");
  CHECK(why([](auto& o) {
          o.setup.layout.ranks = 4, o.setup.batch = 9;
        }).find("`ranks`: 4 in groups of `tp` 2 do not divide") == 0);
  CHECK(why([](auto& o) { o.setup.layout.tp = 0; }).find("`tp`: 0") == 0);
  CHECK(why([](auto& o) { o.setup.lora.rank = 4; }).find("`tp`: 2 not with `lora_rank` 4") == 0);
  CHECK(why([](auto& o) { o.sample = 4; }).find("`tp`: 2 with `sample`") == 0);
  CHECK(why([](auto& o) { o.setup.layout.tp = 1, o.setup.layout.sequence_parallel = true; }) ==
        "`sequence_parallel`: needs `tp` 2 or more");
  CHECK(why([](auto& o) {
          o.setup.layout.sequence_parallel = true, o.setup.sizes.sequence = 17;
        }).find("`tp`: 2 shards: a sequence of 17 tokens; expected a divisor") == 0);
  CHECK(why([&](auto& o) {
          o.setup = setup_of({"vit-b16", 2, 1});
          o.setup.layout.ranks = 1, o.setup.layout.sequence_parallel = true;
        }).find("is not cut along the sequence; expected GPT, Llama or BERT") != std::string::npos);
  CHECK(why([](auto& o) { o.setup.sizes.head = models::Head::chunked; }) ==
        "`head`: chunked not with `tp` 2: its ranks have a shard of the vocabulary each; expected one of the two");
  CHECK(why([](auto& o) { o.setup.sizes.feed_forward = models::FeedForward::tiled; }) ==
        "`feed_forward`: tiled not with `tp` 2: the shards of its layers are whole products; expected one of the two");
  CHECK(why([](auto& o) { set_precision(o.setup, "fp8"); }).find("`tp`: 2 shards: not with products in FP8") == 0);
  CHECK(why([](auto& o) {
          o.setup.model = "resnet18";
          o.setup.sizes = {};
        }) == "`tp`: resnet18 has only whole layers; expected 1, got 2");
}
