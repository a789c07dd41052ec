// Layouts over ranks: the best layout is proven, nothing faster fits, and it runs within the predicted bytes.

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/planning/layouts.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/sanitizer.h"
#include "support/train_ranks.h"

using namespace thimble;
using models::Layout;

namespace {

struct Case {
  std::string model;
  int ranks;
  std::int64_t batch;
  double share;  // memory of each rank, as a share of one rank's need
  std::string precision = {};
  bool cuts_sequence = false;  // fixed if true, else chosen
};

models::RunOptions options_of(const Case& c) {
  models::RunOptions options;
  options.setup.model = c.model;
  models::ModelOptions& sizes = options.setup.sizes;
  if (c.model == "resnet18") {
    sizes.image = 32;
  } else {
    sizes.layers = 4, sizes.width = 96, sizes.heads = 4, sizes.sequence = 64;
  }
  if (c.model == "tiny-llama") sizes.key_heads = 2;
  if (c.model == "bert-base" || c.model == "llama-3-8b") sizes.vocabulary = 512;
  if (c.model == "llama-3-8b") sizes.key_heads = 4, sizes.hidden = 256;
  options.setup.batch = c.batch;
  if (!c.precision.empty()) set_precision(options.setup, c.precision);
  return options;
}

models::Cluster cluster_of(const Case& c, const models::RunOptions& options) {
  models::Cluster cluster;
  cluster.ranks = c.ranks;
  cluster.per_node = 4;
  const std::size_t alone = nn::profile_training(dry(cpu), models::zero_batch_run(options.setup)).peak_bytes;
  cluster.memory_bytes = static_cast<std::size_t>(static_cast<double>(alone) * c.share);
  return cluster;
}

models::FixedLayout fixed_of(const Case& c) {
  models::FixedLayout fixed;
  if (c.cuts_sequence) fixed.cuts_sequence = true;
  return fixed;
}

/// Whether the layout fits on every rank.
bool fits(const models::RunOptions& options, const models::Cluster& cluster, const Layout& layout,
          const models::LayoutTime& time) {
  std::vector<models::RankPlan> ranks;
  return judge(options, cluster, layout, time, &ranks).fits;
}

/// Trains within the predicted bytes on every rank.
void check_trains(const models::RunOptions& options, const models::Cluster& cluster, const Layout& layout) {
  models::RunOptions training;
  training.setup = models::setup_of(options.setup, layout);
  training.data = "synthetic";
  training.steps = 3;
  const models::TrainReport trained = testing::train(training);
  CHECK(trained.differences() == "");
  for (const nn::RankFigures& rank : trained.ranks) CHECK(rank.measured_peak_bytes <= cluster.memory_bytes);
}

}  // namespace

TEST_CASE("layouts: the best one fits on every rank, and no faster one does", "[layouts]") {
  const Case c = GENERATE(testing::table_rows<Case>({{"char-gpt", 4, 16, 0.5},
                                                     {"char-gpt", 8, 16, 0.2},
                                                     {"bert-base", 4, 8, 0.6, "bf16"},
                                                     {"tiny-llama", 4, 16, 0.35},
                                                     {"llama-3-8b", 8, 16, 0.3},
                                                     {"char-gpt", 8, 16, 0.15, "bf16", true},
                                                     {"resnet18", 4, 16, 0.7}}));
  INFO(c.model << " on " << c.ranks << " ranks with " << c.share << " of what one needs");
  const models::RunOptions options = options_of(c);
  const models::Cluster cluster = cluster_of(c, options);
  const models::FixedLayout fixed = fixed_of(c);
  const models::LayoutReport report = find_layout(options, cluster, fixed);
  INFO(to_string(report.best.layout));
  REQUIRE(report.best.fits);
  if (c.cuts_sequence) CHECK((report.best.layout.cuts_sequence && report.best.layout.tp > 1));
  CHECK(report.best.peak_bytes <= cluster.memory_bytes);
  CHECK(report.examined > 20);
  std::vector<int> ranks;
  for (const models::RankPlan& plan : report.ranks) {
    CHECK(plan.report.plan.peak_bytes <= cluster.memory_bytes);
    ranks.insert(ranks.end(), plan.ranks.begin(), plan.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  REQUIRE(ranks.size() == static_cast<std::size_t>(c.ranks));
  for (int r = 0; r < c.ranks; ++r) CHECK(ranks[static_cast<std::size_t>(r)] == r);
  // Brute force: dry-runs every layout that would be faster.
  models::LayoutTimes times(options.setup, cluster, nn::hardware("cpu"), cpu);
  for (const Layout& layout : layouts_of(options.setup, cluster, fixed)) {
    const models::LayoutTime time = times.of(layout);
    if (time.step_s() >= report.best.time.step_s()) continue;
    INFO(to_string(layout));
    CHECK(!fits(options, cluster, layout, time));
  }
}

TEST_CASE("layouts: the number of shards divides heads, widths and sequence", "[layouts]") {
  models::FixedLayout fixed;
  fixed.tp = 4, fixed.cuts_sequence = true;
  models::Cluster cluster;
  cluster.ranks = cluster.per_node = 4;
  const auto count = [&](std::int64_t models::ModelOptions::*size, std::int64_t value) {
    models::Setup setup = options_of({"tiny-llama", 4, 8, 1}).setup;
    setup.sizes.key_heads = 4, setup.sizes.hidden = 256;
    setup.sizes.*size = value;
    return layouts_of(setup, cluster, fixed).size();
  };
  using Sizes = models::ModelOptions;
  CHECK(count(&Sizes::vocabulary, 4) > 0);  // a token for each shard
  CHECK(count(&Sizes::vocabulary, 3) == 0);
  for (const auto& [size, fits, not_fits] :
       {std::tuple{&Sizes::key_heads, 4, 2}, {&Sizes::hidden, 260, 258}, {&Sizes::sequence, 60, 62}}) {
    CHECK(count(size, fits) > 0);
    CHECK(count(size, not_fits) == 0);
  }
}

TEST_CASE("layouts: a model of one block has no stages", "[layouts]") {
  models::RunOptions options = options_of({"char-gpt", 2, 8, 1});
  options.setup.sizes.layers = 1;
  const models::Cluster cluster = cluster_of({"char-gpt", 2, 8, 1}, options);
  const models::LayoutReport found = find_layout(options, cluster);
  CHECK(found.best.layout.pp == 1);
  CHECK(found.best.peak_bytes <= cluster.memory_bytes);
}

TEST_CASE("layouts: what a person would try is never faster and fits", "[layouts]") {
  const Case c = GENERATE(testing::table_rows<Case>({{"char-gpt", 8, 16, 0.25}, {"llama-3-8b", 8, 16, 0.35, "bf16"}}));
  const models::RunOptions options = options_of(c);
  const models::Cluster cluster = cluster_of(c, options);
  const models::LayoutReport report = find_layout(options, cluster);
  models::LayoutTimes times(options.setup, cluster, nn::hardware("cpu"), cpu);
  std::size_t fitting = 0;
  for (const Layout& layout : std::vector<Layout>{{8, 1, 1, 0, 2},
                                                  {8, 1, 1, 1, 1},
                                                  {8, 1, 1, 3, 1},
                                                  {8, 1, 1, 3, 2, true},
                                                  {8, 1, 1, 3, 1, true, 25 << 20, false, 0},
                                                  {4, 2, 1, 1, 2},
                                                  {2, 4, 1, 1, 4},
                                                  {2, 4, 1, 0, 8, true},
                                                  {2, 1, 4, 1, 8},
                                                  {4, 1, 2, 2, 4},
                                                  {2, 2, 2, 1, 8},
                                                  {2, 2, 2, 3, 4, true},
                                                  {1, 4, 2, 0, 16},
                                                  {1, 2, 4, 0, 16, true},
                                                  {2, 4, 1, 1, 4, false, 25 << 20, true},
                                                  {2, 2, 2, 1, 8, false, 25 << 20, true},
                                                  {1, 4, 2, 0, 16, true, 25 << 20, true}}) {
    INFO(to_string(layout) << " beside " << to_string(report.best.layout));
    const models::LayoutTime time = times.of(layout);
    if (!fits(options, cluster, layout, time)) continue;
    ++fitting;
    CHECK(time.step_s() >= report.best.time.step_s());
  }
  CHECK(fitting > 0);
}

TEST_CASE("layouts: the best one trains in the bytes that were told", "[layouts]") {
  const Case c = GENERATE(testing::table_rows<Case>(
      {{"char-gpt", 4, 16, 0.4}, {"tiny-llama", 8, 16, 0.25}, {"bert-base", 8, 16, 0.25, "", true}}));
  const models::RunOptions options = options_of(c);
  const models::Cluster cluster = cluster_of(c, options);
  models::FixedLayout fixed = fixed_of(c);
  if (c.ranks == 8) fixed.pp = 2, fixed.tp = 2;
  const models::LayoutReport report = find_layout(options, cluster, fixed);
  INFO(to_string(report.best.layout));
  check_trains(options, cluster, report.best.layout);
}

TEST_CASE("layouts: a rank reads parameters ahead where it has room for them", "[layouts]") {
  models::RunOptions options = options_of({"char-gpt", 4, 4, 1});
  models::ModelOptions& sizes = options.setup.sizes;
  sizes.layers = 3, sizes.width = 512, sizes.sequence = 64;  // parameters span several granules of the arena
  models::FixedLayout fixed;
  fixed.dp = 4, fixed.zero = 3, fixed.micro_batches = 1, fixed.recomputes_blocks = false, fixed.bucket_bytes = 1 << 20;
  models::Cluster cluster;
  cluster.ranks = 4;
  cluster.memory_bytes = std::size_t{1} << 40;
  const models::JudgedLayout ahead = find_layout(options, cluster, fixed).best;
  CHECK(ahead.layout.read_ahead == 1);
  fixed.read_ahead = 0;
  const models::JudgedLayout alone = find_layout(options, cluster, fixed).best;
  CHECK(alone.peak_bytes < ahead.peak_bytes);
  CHECK(alone.time.step_s() > ahead.time.step_s());
  fixed.read_ahead.reset();
  cluster.memory_bytes = ahead.peak_bytes;
  CHECK(find_layout(options, cluster, fixed).best.layout.read_ahead == 1);
  cluster.memory_bytes = ahead.peak_bytes - 1;
  const models::LayoutReport tight = find_layout(options, cluster, fixed);
  CHECK(tight.best.layout.read_ahead == 0);
  CHECK(tight.best.peak_bytes == alone.peak_bytes);
  check_trains(options, cluster, tight.best.layout);
}

TEST_CASE("layouts: reading parameters ahead only adds to the bytes that live at one time", "[layouts]") {
  // Without placement the arena adds holes, possibly more of them in the step that reads nothing ahead.
  const auto load = [](std::int64_t layers, std::int64_t width, std::int64_t sequence, bool recomputes, int ahead) {
    models::RunOptions options = options_of({"char-gpt", 4, 4, 1});
    models::ModelOptions& sizes = options.setup.sizes;
    sizes.layers = layers, sizes.width = width, sizes.sequence = sequence;
    const models::Setup setup = models::setup_of(options.setup, {4, 1, 1, 3, 1, recomputes, 1 << 20, false, ahead});
    return nn::profile_training(dry(cpu), models::zero_batch_run(setup)).lower_bound_bytes;
  };
  for (const std::int64_t layers : {2, 3, 4}) {
    for (const std::int64_t width : {256, 384, 512}) {
      for (const std::int64_t sequence : {16, 64}) {
        for (const bool recomputes : {false, true}) {
          INFO(layers << " layers of " << width << ", " << sequence << " tokens, recomputes " << recomputes);
          const std::size_t alone = load(layers, width, sequence, recomputes, 0);
          const std::size_t ahead = load(layers, width, sequence, recomputes, 1);
          CHECK(alone < ahead);
          CHECK(ahead <= load(layers, width, sequence, recomputes, 2));
          // A recomputed block has its peak at the gradient of `c_fc`; the unit read ahead there is a layer norm.
          if (recomputes) CHECK(ahead - alone == 2 * sizeof(float) * static_cast<std::size_t>(width));
        }
      }
    }
  }
}

TEST_CASE("layouts: bounds and traffic of groups, by hand", "[layouts]") {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = 2;
  setup.sizes.heads = 4, setup.sizes.width = 64, setup.sizes.sequence = 16;
  models::Cluster cluster;
  cluster.inside.bytes_per_s = 1e30, cluster.inside.message_s = 1;
  double before = 0;
  for (const std::int64_t layers : {2, 3}) {
    setup.sizes.layers = layers;
    models::LayoutTimes times(setup, cluster, nn::hardware("cpu"), cpu);
    const double parts_s = times.of({.tp = 2, .cuts_sequence = true}).parts_s;
    // Attention and feed-forward each gather rows and scatter sums (1 turn each); backward gathers the rows again and
    // scatters their gradients (2), and gathers the sums' gradients (1). Both ranks have the six parameters of norms
    // and of the sums' biases, whose gradients are summed (2).
    if (layers == 3) CHECK(parts_s - before == Approx(2 * (1 + 1) + 2 * (2 + 1) + 6 * 2));
    before = parts_s;
  }
  models::LayoutTimes times(setup, cluster, nn::hardware("cpu"), cpu);
  const auto parameters =
      static_cast<double>(4 * models::make_model(setup.model, setup.sizes, {dry(cpu)})->parameter_count());
  const auto least = [&](int zero) {
    return static_cast<double>(times.least_bytes({.dp = 2, .zero = zero, .recomputes_blocks = true}));
  };
  // AdamW's state is twice the parameters; without kept activations, the rest is gradients.
  CHECK(least(0) == Approx(0.95 * parameters * (1 + 2 + 1)).epsilon(1e-3));
  CHECK(least(1) == Approx(0.95 * parameters * (1 + 1 + 1)).epsilon(1e-3));
  CHECK(least(2) == Approx(0.95 * parameters * (1 + 1 + 0.5)).epsilon(1e-3));
  CHECK(least(3) == Approx(0.95 * parameters * (0.5 + 1 + 0.5)).epsilon(1e-3));
  // An activation and its gradient cross the link between two stages, each in a message; so do those of a tied table.
  const auto of_two = [&](double message_s) {
    models::Cluster two = cluster;
    two.ranks = 2, two.inside.message_s = message_s;
    return models::LayoutTimes(setup, two, nn::hardware("cpu"), cpu).of({.pp = 2});
  };
  CHECK(of_two(1).pipeline_s - of_two(0).pipeline_s == Approx(2));
  CHECK(of_two(1).shares_s - of_two(0).shares_s == Approx(2));
  // An update passes over all state, of which a rank has only its shard from ZeRO stage 1 on.
  const double whole_s = times.of({.dp = 2}).update_s;
  for (const int zero : {1, 2, 3}) CHECK(times.of({.dp = 2, .zero = zero}).update_s == Approx(whole_s / 2));
}

TEST_CASE("layouts: what is given is kept, and what cannot be is said", "[layouts]") {
  const Case c{"char-gpt", 8, 16, 1};
  const models::RunOptions options = options_of(c);
  models::Cluster cluster = cluster_of(c, options);
  models::FixedLayout fixed;
  fixed.tp = 2, fixed.pp = 2, fixed.zero = 1, fixed.micro_batches = 4, fixed.recomputes_blocks = true;
  const Layout best = find_layout(options, cluster, fixed).best.layout;
  CHECK((best.tp == 2 && best.pp == 2 && best.dp == 2 && best.zero == 1));
  CHECK((best.micro_batches == 4 && best.recomputes_blocks));
  models::FixedLayout traffic;
  traffic.zero = 3, traffic.bucket_bytes = 1 << 20, traffic.read_ahead = 2;
  const Layout moved = find_layout(options, cluster, traffic).best.layout;
  CHECK((moved.zero == 3 && moved.bucket_bytes == 1 << 20 && moved.read_ahead == 2));
  traffic.bucket_bytes = 0;
  CHECK_THROWS_WITH(find_layout(options, cluster, traffic), Catch::StartsWith("layouts: `bucket_bytes` 0"));
  fixed.tp = 3;
  CHECK_THROWS_WITH(find_layout(options, cluster, fixed), Catch::Contains("layouts: none of 8 ranks goes with"));
  models::FixedLayout without_effect;  // no buckets are sent, and all parameters are in memory
  without_effect.dp = 1, without_effect.bucket_bytes = 1 << 20;
  CHECK_THROWS_AS(find_layout(options, cluster, without_effect), ValueError);
  without_effect = {}, without_effect.zero = 2, without_effect.read_ahead = 0;
  CHECK_THROWS_AS(find_layout(options, cluster, without_effect), ValueError);
  models::Cluster one = cluster;
  one.ranks = 1;
  CHECK(find_layout(options, one).ranks.front().ranks == std::vector<int>{0});
  models::RunOptions interleaved = options;
  models::RunOptions by_heads = options;
  by_heads.setup.layout.cp = 2;
  CHECK_THROWS_WITH(find_layout(by_heads, cluster), "layouts: `cp` 2; expected 1, as no other is tried");
  interleaved.setup.layout.pipeline = "interleaved";
  CHECK_THROWS_WITH(find_layout(interleaved, cluster),
                    "layouts: `pipeline` interleaved; expected 1f1b, as no other is tried");
  cluster.memory_bytes = 1000;
  const auto least = [&](const models::FixedLayout& of) {
    try {
      find_layout(options, cluster, of);
    } catch (const nn::BudgetError& error) {
      CHECK(std::string(error.what()).find("fits in 1000 B a rank; one needs at least ") != std::string::npos);
      return error.minimum_bytes();
    }
    FAIL("nothing trains in 1,000 bytes");
    return std::size_t{0};
  };
  std::size_t of_kinds = ~std::size_t{0}, most = 0;  // some kind has the overall minimum
  models::FixedLayout kind;
  for (const int pp : {1, 2, 4}) {
    for (const int zero : {0, 1, 2, 3}) {
      kind.pp = pp, kind.zero = zero;
      of_kinds = std::min(of_kinds, least(kind)), most = std::max(most, least(kind));
    }
  }
  CHECK(of_kinds < most);
  CHECK(of_kinds == least({}));
  cluster.memory_bytes = 0;
  CHECK_THROWS_AS(find_layout(options, cluster), ValueError);
  CHECK_THROWS_WITH(dist::link("tin cans"), Catch::Contains("nvlink-4"));
  CHECK(dist::link("pcie-4").bytes_per_s == Approx(25.2e9));
}
