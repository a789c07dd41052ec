// User models on several ranks: bits and file match one rank with all micro-batches, and every rank needs its predicted
// bytes.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/dist/threads.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/optim/matrix/muon.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using namespace own_program;
using files_test::TemporaryFolder;

namespace {

constexpr std::int64_t trainer_ranks_samples = 48;

Batch cut_batch(const Batch& batch, std::int64_t index, std::int64_t count) {
  const std::int64_t n = batch.x.size(0), begin = n * index / count, end = n * (index + 1) / count;
  return {slice(batch.x, 0, begin, end), slice(batch.y, 0, begin, end)};
}

Program ranks_program(bool is_elementwise = true) {
  Sizes sizes;
  sizes.width = 40, sizes.depth = 3;
  sizes.samples = [](std::int64_t step) { return step % 2 == 0 ? trainer_ranks_samples : trainer_ranks_samples + 5; };
  Program own = program(sizes);
  own.micro_batch = cut_batch;
  own.optimizer = [is_elementwise](Net& net) -> std::unique_ptr<optim::Optimizer> {
    std::unique_ptr<optim::Optimizer> made;  // with names that some ranks have no shard of
    if (is_elementwise) {
      const optim::MomentFormat moments{.dtype = DType::bf16, .smallest = 16, .full = {"head", "block1.up"}};
      made = std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 1e-3, .moments = moments});
    } else {
      const optim::MatrixOptions matrix{.rate = 1e-3, .elementwise = {"head", "block0.up.weight"}};
      made = std::make_unique<optim::Muon>(net.trainable(), optim::MuonOptions{.matrix = matrix});
    }
    const auto is_bias = [](const optim::Named& p) { return p.name.ends_with("bias"); };
    made->set_groups({{.has = is_bias, .rate_factor = 0.5, .weight_decay = 0.3}});
    return made;
  };
  return own;
}

struct RanksResult {
  std::vector<double> losses;  // of rank 0
  std::string file;            // of rank 0
};

/// Rank 0's losses and checkpoint, after checking that all ranks saw equal losses and needed the predicted bytes.
RanksResult train_on_ranks(const Program& own, nn::TrainerOptions options, int ranks) {
  const TemporaryFolder folder;
  options.save = folder / "checkpoint";
  struct OfRank {
    std::vector<double> losses;
    nn::TrainerPlan plan;
    std::size_t peak_bytes = 0, deviations = 0;
  };
  std::vector<OfRank> all_ranks(static_cast<std::size_t>(ranks));
  dist::run_ranks(ranks, [&](dist::Communicator& all) {
    nn::TrainerOptions mine = options;
    mine.ranks.ranks = &all;
    nn::Trainer<Net, Batch> trainer(own, mine);
    OfRank& result = all_ranks[static_cast<std::size_t>(all.rank())];
    trainer.run([&](const nn::Progress& p) {
      result.losses.push_back(p.loss);
      if (p.evaluation) result.losses.push_back(p.evaluation->loss);
    });
    result.plan = trainer.plan();
    result.peak_bytes = trainer.peak_bytes();
    result.deviations = trainer.placed().deviations;
  });
  for (std::size_t r = 0; r < all_ranks.size(); ++r) {
    INFO("rank " << r);
    const OfRank& of_rank = all_ranks[r];
    CHECK(of_rank.losses == all_ranks[0].losses);
    CHECK(of_rank.peak_bytes == of_rank.plan.peak_bytes);
    if (options.is_strict) CHECK(of_rank.deviations == 0);
    if (options.budget_bytes > 0) CHECK(of_rank.peak_bytes <= options.budget_bytes);
    if (ranks == 1) continue;
    REQUIRE(of_rank.plan.rank_peak_bytes.size() == all_ranks.size());
    for (std::size_t other = 0; other < all_ranks.size(); ++other) {
      CHECK(of_rank.plan.rank_peak_bytes[other] == all_ranks[other].peak_bytes);
    }
  }
  return {all_ranks[0].losses, files_test::read_text_file(options.save)};
}

}  // namespace

TEST_CASE("trainer: ranks have the bits and the file of one", "[trainer][ranks]") {
  struct Row {
    int ranks, zero;
    std::int64_t micro_batches;
    bool is_elementwise, clips, scales, has_budget;
  };
  const Row rows[] = {
      {2, 0, 1, true, false, false, false}, {3, 1, 1, true, true, false, true}, {2, 2, 2, true, false, true, true},
      {4, 3, 1, true, true, false, true},   {2, 3, 3, true, true, true, false}, {3, 2, 1, false, false, false, true},
  };
  for (const Row& row : rows) {
    const Program own = ranks_program(row.is_elementwise);
    nn::TrainerOptions options{.seed = 3, .steps = 5, .evaluate_every = 2, .example_steps = {0, 1}};
    if (row.clips) options.step.clip_norm = 0.3;
    if (row.scales)
      options.loss_scale = optim::GradScalerOptions{.scale = 3e38, .interval = 2, .most = 3e38};  // skips some steps
    nn::TrainerOptions of_one = options;
    of_one.step.micro_batches = row.ranks * row.micro_batches;
    const RanksResult one = train_on_ranks(own, of_one, 1);
    options.step.micro_batches = row.micro_batches;
    options.ranks.zero = row.zero;
    options.ranks.bucket_bytes = 20'000;
    if (row.has_budget) {
      std::size_t most = 0;
      dist::run_ranks(row.ranks, [&](dist::Communicator& all) {
        nn::TrainerOptions mine = options;
        mine.ranks.ranks = &all;
        const nn::TrainerPlan plan = nn::Trainer<Net, Batch>(own, mine).plan();
        if (all.rank() == 0) most = *std::max_element(plan.rank_peak_bytes.begin(), plan.rank_peak_bytes.end());
      });
      options.budget_bytes = most;
      options.is_strict = !row.scales;  // a step that the scaler skips needs less than its plan
    }
    const RanksResult all = train_on_ranks(own, options, row.ranks);
    INFO(row.ranks << " ranks, stage " << row.zero << ", " << row.micro_batches << " micro-batches");
    REQUIRE(one.losses.size() == 5 + 3);
    CHECK(all.losses == one.losses);
    CHECK(all.file.size() > 10'000);
    CHECK((all.file == one.file));
  }
}

TEST_CASE("trainer: a run goes on with another number of ranks", "[trainer][ranks]") {
  const TemporaryFolder folder;
  const Program own = ranks_program();
  const std::string begun = folder / "begun";
  const auto train = [&](int ranks, std::int64_t steps, const std::string& resume, const std::string& save) {
    std::vector<double> losses;
    dist::run_ranks(ranks, [&](dist::Communicator& all) {
      nn::TrainerOptions options{.seed = 3, .steps = steps, .example_steps = {0, 1}};
      options.step.micro_batches = 6 / ranks;
      options.ranks = {.ranks = &all, .zero = ranks - 1};
      options.save = save;
      options.resume = resume;
      nn::Trainer<Net, Batch> trainer(own, options);
      std::vector<double> mine;
      trainer.run([&](const nn::Progress& p) { mine.push_back(p.loss); });
      if (all.rank() == 0) losses = mine;
    });
    return losses;
  };
  const std::vector<double> whole = train(1, 5, "", "");
  train(3, 2, "", begun);
  for (const int ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    CHECK(train(ranks, 5, begun, "") == std::vector<double>(whole.begin() + 2, whole.end()));
  }
}

namespace {

constexpr std::int64_t shards_words = 37, shards_heads = 4, shards_head = 12, shards_width = shards_heads * shards_head;

enum class Misplaced : std::uint8_t { nothing, norm, outer, sum, activation };  ///< within run_sharded

/// A small transformer whose embedding, attention and feed-forward layers can be sharded.
class Words : public nn::Module {
 public:
  explicit Words(double dropout, Misplaced misplaced = Misplaced::nothing)
      : ids_(child<nn::Embedding>("ids", shards_words, shards_width)),
        norm_(child<nn::LayerNorm>("norm", shards_width)),
        qkv_(child<nn::Linear>("qkv", shards_width, 3 * shards_width)),
        out_(child<nn::Linear>("out", shards_width, shards_width)),
        up_(child<nn::Linear>("up", shards_width, 4 * shards_width)),
        drop_(child<nn::Dropout>("drop", dropout)),
        down_(child<nn::Linear>(
            "down", 4 * shards_width, shards_width, nn::TensorOptions(),
            nn::LinearOptions{.activation = misplaced == Misplaced::activation ? kernels::Activation::relu
                                                                               : kernels::Activation::none})),
        head_(child<nn::Linear>("head", shards_width, shards_words)),
        misplaced_(misplaced) {}
  /// (B, T) -> (B T, words)
  Tensor operator()(const Tensor& ids) {
    const Tensor x = ids_(ids);
    const Tensor h = add(x, nn::run_sharded(norm_(x), out_, [&](const Tensor& y) {
                           const Tensor qkv = qkv_(y);
                           return out_(attention(qkv, qkv.size(2) / (3 * shards_head)));
                         }));
    const Tensor z = add(h, nn::run_sharded(h, down_, [&](const Tensor& y) {
                           const Tensor& read = misplaced_ == Misplaced::outer ? h : y;
                           const Tensor up = up_(misplaced_ == Misplaced::norm ? norm_(read) : read);
                           const Tensor down = reshape(down_(drop_(gelu(up))), y.shape());
                           return misplaced_ == Misplaced::sum ? add(down, y) : down;
                         }));
    return reshape(head_(z), {ids.elements(), shards_words});
  }

 private:
  nn::Embedding& ids_;
  nn::LayerNorm& norm_;
  nn::Linear &qkv_, &out_, &up_;
  nn::Dropout& drop_;
  nn::Linear &down_, &head_;
  Misplaced misplaced_;
};

const std::vector<nn::ShardedChild> words_sharded = {
    {"ids", nn::Sharding::vocabulary}, {"qkv", nn::Sharding::column, 3}, {"out", nn::Sharding::row},
    {"up", nn::Sharding::column},      {"drop", nn::Sharding::element},  {"down", nn::Sharding::row}};

nn::TrainedProgram<Words, Tensor> words_program(double dropout = 0.2, Misplaced misplaced = Misplaced::nothing) {
  const auto loss = [](Words& net, const Tensor& ids) {
    const std::int64_t last = ids.size(1) - 1;
    const Tensor next = slice(ids, 1, 1, last + 1);
    return cross_entropy(net(slice(ids, 1, 0, last)), reshape(contiguous(next), {next.elements()}));
  };
  const auto batch = [](std::int64_t step, memory::Device device) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 48 * 96; ++i) ids.push_back((i * i * 7 + step * 5 + i / 96) % shards_words);
    return from_host(ids, {48, 96}, device);
  };
  return {
      .model = [=](memory::Device) { return std::make_unique<Words>(dropout, misplaced); },
      .optimizer =
          [](Words& net) { return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 3e-3}); },
      .loss = loss,
      .batch = batch,
      .evaluate = [=](Words& net,
                      memory::Device device) { return nn::read_value(loss(net, slice(batch(77, device), 0, 0, 5))); },
      .micro_batch = [](const Tensor& ids, std::int64_t i,
                        std::int64_t n) { return slice(ids, 0, ids.size(0) * i / n, ids.size(0) * (i + 1) / n); }};
}

RanksResult train_words(nn::TrainerOptions options, int ranks, std::size_t* most = nullptr, double dropout = 0.2) {
  const TemporaryFolder folder;
  if (options.save.empty()) options.save = folder / "checkpoint";
  RanksResult result;
  dist::run_ranks(ranks, [&](dist::Communicator& all) {
    nn::TrainerOptions mine = options;
    if (ranks > 1) mine.ranks.ranks = &all;
    nn::Trainer<Words, Tensor> trainer(words_program(dropout), mine);
    std::vector<double> losses;
    trainer.run([&](const nn::Progress& p) {
      losses.push_back(p.loss);
      if (p.evaluation) losses.push_back(p.evaluation->loss);
    });
    if (trainer.peak_bytes() != trainer.plan().peak_bytes) throw Error("another peak than predicted");
    if (options.is_strict && trainer.placed().deviations > 0) throw Error("a step left its plan");
    const std::vector<std::size_t> peaks = trainer.plan().rank_peak_bytes;
    if (all.rank() != 0) return;
    result.losses = losses;
    if (most != nullptr) *most = ranks == 1 ? trainer.peak_bytes() : *std::max_element(peaks.begin(), peaks.end());
  });
  result.file = files_test::read_text_file(options.save);
  return result;
}

}  // namespace

TEST_CASE("trainer: tensor-parallel ranks have the bits and the file of one rank with all shards", "[trainer][ranks]") {
  struct Row {
    int ranks, degree, zero;
    std::int64_t micro_batches;
    bool clips, scales;
    std::size_t percent;  // budget, in percent of the largest rank's bytes; 0 skips the runs with a budget
  };
  const Row rows[] = {{2, 2, 0, 1, false, false, 0},
                      {4, 2, 1, 1, true, false, 90},
                      {4, 2, 3, 3, true, true, 0},
                      {4, 4, 0, 2, false, false, 100},
                      {6, 2, 2, 1, false, true, 0}};
  for (const Row& row : rows) {
    INFO(row.ranks << " ranks, degree " << row.degree << ", stage " << row.zero);
    nn::TrainerOptions options{.seed = 3, .steps = 5, .evaluate_every = 2};
    options.ranks.tensor_parallel = row.degree;
    options.ranks.sharded = words_sharded;
    if (row.clips) options.step.clip_norm = 0.3;
    if (row.scales) options.loss_scale = optim::GradScalerOptions{.scale = 3e38, .interval = 2, .most = 3e38};
    nn::TrainerOptions of_one = options;
    of_one.step.micro_batches = row.ranks / row.degree * row.micro_batches;
    const RanksResult one = train_words(of_one, 1);
    options.step.micro_batches = row.micro_batches;
    options.ranks.zero = row.zero;
    options.ranks.bucket_bytes = 3'000;
    std::size_t most = 0;
    const RanksResult all = train_words(options, row.ranks, &most);
    REQUIRE(one.losses.size() == 5 + 3);
    CHECK(all.losses == one.losses);
    CHECK(all.file.size() > 10'000);
    CHECK((all.file == one.file));
    if (row.percent == 0) continue;
    options.budget_bytes = most * row.percent / 100;
    options.is_strict = true;
    const RanksResult planned = train_words(options, row.ranks);
    CHECK(planned.losses == one.losses);
    CHECK((planned.file == one.file));
  }
}

TEST_CASE("trainer: shards of a model begin with its values, and go on from its file", "[trainer][ranks]") {
  const TemporaryFolder folder;
  nn::TrainerOptions options{.seed = 3, .steps = 4};
  const auto losses_of = [&](const nn::TrainerOptions& of, int ranks) {
    return train_words(of, ranks, nullptr, 0).losses;
  };
  const auto check_alike = [](const std::vector<double>& some, const std::vector<double>& others) {
    REQUIRE(some.size() == others.size());
    // The order of sums differs.
    for (std::size_t i = 0; i < some.size(); ++i) CHECK(some[i] == Approx(others[i]).epsilon(2e-5));
  };
  options.save = folder / "whole";
  const std::vector<double> whole = losses_of(options, 1);
  nn::TrainerOptions in_shards = options;
  in_shards.save.clear();
  in_shards.ranks = {.tensor_parallel = 2, .sharded = words_sharded};
  check_alike(losses_of(in_shards, 2), whole);
  options.resume = in_shards.resume = options.save;
  options.save.clear();
  options.steps = in_shards.steps = 7;
  check_alike(losses_of(in_shards, 2), losses_of(options, 1));
}

TEST_CASE("trainer: ranks choose a number of micro-batches for their budget", "[trainer][ranks]") {
  nn::TrainerOptions options{.seed = 3, .steps = 3};
  std::size_t most = 0;
  train_words(options, 2, &most);
  options.step.micro_batches = nn::auto_micro_batches;
  options.budget_bytes = most / 3;
  std::int64_t chosen = 0;
  std::vector<double> losses;
  dist::run_ranks(2, [&](dist::Communicator& all) {
    nn::TrainerOptions mine = options;
    mine.ranks.ranks = &all;
    nn::Trainer<Words, Tensor> trainer(words_program(), mine);
    std::vector<double> own;
    trainer.run([&](const nn::Progress& p) { own.push_back(p.loss); });
    if (trainer.peak_bytes() != trainer.plan().peak_bytes) throw Error("another peak than predicted");
    if (all.rank() == 0) losses = own, chosen = trainer.plan().micro_batches;
  });
  CHECK(chosen > 1);
  options.step.micro_batches = 2 * chosen;
  options.budget_bytes = 0;
  std::vector<double> one = train_words(options, 1).losses;
  one.pop_back();  // drops the evaluation
  CHECK(losses == one);
}

TEST_CASE("trainer: layers made without options are of its device and precision", "[trainer][ranks]") {
  for (const char* const policy : {"O2", "bf16", "fp8"}) {
    INFO(policy);
    nn::TrainerOptions options{.layers = nn::precision(policy).on(dry(cpu)), .seed = 3, .steps = 3};
    nn::Trainer<Words, Tensor> trainer(words_program(), options);
    trainer.run();
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    CHECK(trainer.certify(2).holds());
    const nn::TensorOptions& on = options.layers;
    for (const nn::NamedTensor& p : trainer.model().parameters()) {
      CHECK(p.tensor.device() == cpu);
      CHECK(p.tensor.dtype() == (p.name.starts_with("norm.") ? on.norm_dtype() : on.dtype));
    }
  }
}

TEST_CASE("trainer: what tensor parallelism refuses", "[trainer][ranks]") {
  const auto refused = [](const std::function<void(nn::RankOptions&)>& change,
                          Misplaced misplaced = Misplaced::nothing) -> std::string {
    nn::TrainerOptions options;
    options.ranks = {.tensor_parallel = 2, .sharded = words_sharded};
    change(options.ranks);
    try {
      nn::Trainer<Words, Tensor>(words_program(0.2, misplaced), options).step();
    } catch (const ValueError& error) {
      return error.what();
    }
    return "taken";
  };
  struct Row {
    std::function<void(nn::RankOptions&)> change;
    const char* text;
    Misplaced misplaced = Misplaced::nothing;
  };
  const Row rows[] = {
      {[](auto& o) { o.tensor_parallel = 0; }, "options.ranks.tensor_parallel: expected at least 1, got 0"},
      {[](auto& o) { o.tensor_parallel = 1; },
       "options.ranks.sharded: expected a tensor_parallel of at least 2, got 1"},
      {[](auto& o) { o.sharded.clear(); }, "options.ranks.tensor_parallel: expected layers in options.ranks.sharded"},
      {[](auto& o) {
         o.sharded.push_back({"gate", nn::Sharding::column});
       },
       "options.ranks.sharded: 'gate': expected the end of the path of a layer of the model"},
      {[](auto& o) {
         o.sharded[1] = {"qkv", nn::Sharding::element};
       },
       "'qkv': expected a dropout"},
      {[](auto& o) { o.sharded[4].kind = nn::Sharding::row; }, "'drop': expected a linear layer"},
      {[](auto& o) {
         o.sharded.push_back({"head", nn::Sharding::vocabulary});
       },
       "'head': expected an embedding"},
      {[](auto& o) { o.sharded[0].kind = nn::Sharding::column; }, "'ids': expected a linear layer"},
      {[](auto& o) {
         o.sharded.push_back({"head", nn::Sharding::row});
       },
       "'head' is in shards: expected a call within nn::run_sharded"},
      {[](auto& o) { o.tensor_parallel = 5; }, "'qkv': 144 outputs in 3 projections are not divisible by 5 shards"},
      {[](auto& o) { o.tensor_parallel = 5, o.sharded.erase(o.sharded.begin() + 1); },
       "'out': 48 inputs are not divisible by 5 shards"},
      {[](auto& o) { o.tensor_parallel = 37; },  // a row of 'ids' each
       "'qkv': 144 outputs in 3 projections are not divisible by 37 shards"},
      {[](auto& o) { o.tensor_parallel = 38; }, "'ids': expected a row for each shard, got (37, 48)"},
      {[](auto& o) { o.sharded[1].projections = 0; },
       "'qkv': expected it once, with 1 projection or a column's, got it 1 times with 0"},
      {[](auto& o) { o.sharded[2].projections = 3; }, "'out': expected it once"},
      {[](auto& o) {
         o.sharded.push_back({"up", nn::Sharding::row});
       },
       "'up': expected it once"},
      {[](auto& o) { o.sharded[0].kind = nn::Sharding::element; }, "'ids': expected a dropout"},
      {[](auto& o) { o.sharded.erase(o.sharded.begin() + 4); }, "'drop': dropout within nn::run_sharded: expected it"},
      {[](auto&) {}, "'norm': layer_norm within nn::run_sharded: expected a shard or a constant", Misplaced::norm},
      {[](auto&) {}, "'up.0': linear within nn::run_sharded: expected a shard or a constant", Misplaced::outer},
      {[](auto&) {}, "all_reduce within nn::run_sharded: expected its function to end with", Misplaced::sum},
      {[](auto&) {}, "'down': expected no activation", Misplaced::activation},
  };
  {
    const nn::LayerScope fp8({.fp8 = nn::Fp8Recipe()});
    CHECK(refused([](auto&) {}).find("'qkv': a layer in shards has no FP8") != std::string::npos);
  }
  for (const Row& row : rows) {
    const std::string text = refused(row.change, row.misplaced);
    INFO(text);
    CHECK(text.find(row.text) != std::string::npos);
  }
}

TEST_CASE("trainer: several parts and frozen parameters on ranks", "[trainer][ranks]") {
  Sizes sizes;
  sizes.width = 24, sizes.depth = 2;
  sizes.samples = [](std::int64_t) { return std::int64_t{40}; };
  auto two = rivals(sizes);
  two.micro_batch = cut_batch;
  const auto train = [&](int ranks, int zero) {
    std::vector<double> losses;
    dist::run_ranks(ranks, [&](dist::Communicator& all) {
      nn::TrainerOptions options{.seed = 9, .steps = 4};
      options.step.micro_batches = 4 / ranks;
      options.ranks = {.ranks = &all, .zero = zero};
      nn::Trainer<Rivals, Batch> trainer(two, options);
      std::vector<double> mine;
      for (int step = 0; step < 4; ++step) {
        if (step == 2) trainer.model().judge->parameters().front().tensor.set_requires_grad(false);
        const nn::Progress p = trainer.step();
        mine.insert(mine.end(), p.losses.begin(), p.losses.end());
      }
      if (all.rank() == 0) losses = mine;
    });
    return losses;
  };
  const std::vector<double> one = train(1, 0);
  REQUIRE(one.size() == 8);
  CHECK(train(2, 0) == one);
  CHECK(train(4, 2) == one);
  CHECK(train(2, 3) == one);
}

TEST_CASE("trainer: what several ranks refuse", "[trainer][ranks]") {
  const TemporaryFolder folder;
  const auto refused = [](const Program& own, const std::function<void(nn::TrainerOptions&, int rank)>& change) {
    std::string text;
    try {
      dist::run_ranks(2, [&](dist::Communicator& all) {
        nn::TrainerOptions options{.seed = 3, .steps = 2};
        options.ranks.ranks = &all;
        change(options, all.rank());
        const nn::Trainer<Net, Batch> trainer(own, options);
      });
    } catch (const Error& error) {
      text = error.what();
    }
    return text;
  };
  struct Row {
    std::function<void(nn::TrainerOptions&, int rank)> change;
    const char* text;
  };
  const Row rows[] = {
      {[](auto& o, int) { o.ranks.zero = 4; }, "options.ranks.zero: expected a stage of ZeRO, 0 to 3, got 4"},
      {[](auto& o, int) { o.ranks.read_ahead = -1; }, "options.ranks.read_ahead: expected at least 0, got -1"},
      {[](auto& o, int) { o.step.fuses_optimizer = nn::FusedUpdate::secured; }, "fuses_optimizer with several ranks"},
      {[](auto& o, int rank) { o.seed = 3 + static_cast<std::uint64_t>(rank); }, "ranks 0 and 1 seed 3 and 4"},
      {[](auto& o, int rank) { o.step.clip_norm = rank; }, "trainer.clip_norm 0 and 1"},
      {[](auto& o, int rank) { o.ranks.zero = rank; }, "ranks.zero 0 and 1"},
      {[](auto& o, int) { o.budget_bytes = 1 << 20; }, "the budget is 1.00 MiB"},
      {[](auto& o, int rank) { o.steps = 2 + rank; }, "ranks 0 and 1 steps 2 and 3"},
      {[](auto& o, int rank) { o.evaluate_every = 1 + rank; }, "evaluate_every 1 and 2"},
      {[](auto& o, int rank) { o.budget_bytes = (std::size_t{1} << 40) + static_cast<std::size_t>(rank); },
       "budget_bytes 1099511627776 and 1099511627777"},
      {[](auto& o, int rank) { o.ranks.bucket_bytes = 7 + static_cast<std::size_t>(rank); },
       "ranks.bucket_bytes 7 and 8"},
      {[](auto& o, int rank) { o.ranks.zero = 3, o.ranks.read_ahead = rank; }, "ranks.read_ahead 0 and 1"},
      {[](auto& o, int rank) { o.save = rank > 0 ? "a file" : ""; }, "save none and a file"},
      {[&](auto& o, int rank) { o.save = folder / "file", o.save_every = 1 + rank; }, "save_every 1 and 2"},
      {[](auto& o, int rank) { o.evaluate_every = 1, o.patience = rank; }, "patience 0 and 1"},
      {[&](auto& o, int rank) { o.best = rank == 0 ? folder / "best" : ""; }, "best and none"},
      {[](auto& o, int rank) {
         o.example_steps = {0, 1 + rank};
       },
       "example_steps 1 1 and none"},
      {[](auto& o, int rank) { o.budget_bytes = 1 << 24, o.planner.spilling.packs = rank > 0; },
       "planner.spilling 0 and 1"},
      {[](auto& o, int rank) {
         if (rank > 0) o.step.on_gradients = [](const std::vector<optim::Named>&) {};
       },
       "on_gradients 0 and 1"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const std::string text = refused(ranks_program(), row.change);
    INFO(text);
    CHECK(text.find(row.text) != std::string::npos);
  }
  const auto fails = [](const std::function<void(Program&, nn::TrainerOptions&, int rank)>& change) {
    std::string text;
    try {
      dist::run_ranks(2, [&](dist::Communicator& all) {
        nn::TrainerOptions options{.seed = 3, .steps = 4, .evaluate_every = 2};
        options.ranks.ranks = &all;
        Program own = ranks_program();
        change(own, options, all.rank());
        nn::Trainer<Net, Batch>(own, options).run();
      });
    } catch (const ValueError& error) {
      text = error.what();
    }
    return text.substr(std::string("rank 0 of 2: ").size());  // from whichever rank failed first
  };
  CHECK(fails([&](Program& own, auto& o, int) {
          o.ranks.zero = 3, o.save = folder / "file";
          own.model = [make = own.model](memory::Device device) {
            auto net = make(device);
            net->freeze("head");
            return net;
          };
          own.optimizer = program().optimizer;
        }) ==
        "trainer: save and resume with ranks.zero 3: expected an optimizer of all parameters, got one without "
        "'head.weight'; ranks.zero 2 keeps parameters whole");
  CHECK(fails([](Program& own, auto&, int rank) {
          own.evaluate = [rank](Net&, memory::Device) { return 1.5 + rank; };
        }) == "trainer: evaluate: expected the loss to be the same on all ranks, got 1.5 on rank 0 and 2.5 on rank 1");
  CHECK(fails([](Program&, auto& o, int rank) {
          o.rate = [rank](std::int64_t step) { return step == 2 && rank == 1 ? 0.25 : 0.5; };
        }) ==
        "trainer: rate: expected the rate of step 2 to be the same on all ranks, got 0.5 on rank 0 and 0.25 on rank 1");
  CHECK(fails([](Program& own, auto&, int rank) {
          own.batch = [rank, first = own.batch](std::int64_t step, memory::Device device) {
            Batch batch = first(step, device);
            if (rank == 1) fill(batch.y, 3);
            return batch;
          };
        }) ==
        "trainer: batch: expected the batch of step 0 to be the same on all ranks, which share out its micro-batches, "
        "got other tensors on rank 1 than on rank 0");
  CHECK(fails([](Program& own, auto&, int) {
          own.optimizer = [](Net& net) {
            return std::make_unique<optim::Muon>(net.trainable(),
                                                 optim::MuonOptions{.matrix = {.elementwise = {"tail"}}});
          };
        }) == "muon: no parameter is named 'tail' or begins with 'tail.'");
  CHECK(fails([](Program& own, auto&, int) {
          own.optimizer = [](Net& net) {
            std::vector<optim::Named> all = net.trainable();
            all.push_back({"none", Tensor::empty({0, 4}, DType::f32, all[0].tensor.device())});
            all.back().tensor.require_grad();
            return std::make_unique<optim::Adam>(std::move(all), optim::AdamOptions{});
          };
        }) == "data parallel: none has no elements to share");
  Program whole = ranks_program();
  whole.micro_batch = nullptr;
  CHECK(refused(whole, [](auto&, int) {}).find("no micro_batch to cut its batches") != std::string::npos);
  nn::TrainerOptions alone;
  alone.ranks.zero = 2;
  CHECK_THROWS_AS((nn::Trainer<Net, Batch>(ranks_program(), alone)), ValueError);
}
