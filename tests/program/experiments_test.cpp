// The experiments of `thimble reproduce`: their quick forms hold, and so do the figures behind their verdicts.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/experiments/watched_ranks.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/threads.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/models/planning/planning.h>
#include <thimble/thimble.h>

#include "process_rows.h"
#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

report::Row technique_row(const std::string& technique, double same) {
  report::Row row;
  row.config = {{"technique", technique}};
  row.numbers = {{"same", same}};
  return row;
}

}  // namespace

TEST_CASE("experiments: how a curve grows", "[experiments]") {
  struct Case {
    const char* words;
    double (*y)(double x);
  };
  const Case cases[] = {{"O(1)", [](double) { return 7.0; }},
                        {"O(log n)", [](double x) { return 5 + 3 * std::log(x); }},
                        {"O(sqrt(n))", [](double x) { return 9 + 2 * std::sqrt(x); }},
                        {"O(n)", [](double x) { return 1000 + 4 * x; }},
                        {"O(n^2)", [](double x) { return 3 + x * x; }}};
  for (const Case& c : cases) {
    for (const double factor : {2.0, 4.0}) {
      INFO(c.words << ", factor " << factor);
      std::vector<report::Point> points;
      for (double x = 1; points.size() < 4; x *= factor) points.push_back({x, c.y(x)});
      const std::string words = bench::growth_in_words(bench::growth_exponent(points), "n");
      CHECK(words.substr(0, words.find(" (")) == c.words);
    }
  }
  using Points = std::vector<report::Point>;
  CHECK_FALSE(bench::growth_exponent(Points{{1, 3}, {2, 2}, {4, 1}}).has_value());
  CHECK_THROWS_AS(bench::growth_exponent(Points{{1, 1}, {2, 2}}), ValueError);
  CHECK_THROWS_AS(bench::growth_exponent(Points{{1, 1}, {2, 2}, {3, 3}}), ValueError);
  CHECK_THROWS_AS(bench::growth_exponent(Points{{4, 1}, {2, 2}, {1, 3}}), ValueError);
}

TEST_CASE("experiments: verdicts follow the figures", "[experiments]") {
  using Batches = std::vector<bench::CheckpointedBatch>;
  const Batches smooth{{1, 100, 100, 1, 1.3}, {8, 200, 150, 8, 10}, {16, 300, 180, 16, 20}};
  const std::string no_rule = bench::checkpoint_batch_verdict(smooth);
  CHECK(has(no_rule, "from a batch of 8 on: 0.0 % at 1 (30.0 % slower), 25.0 % at 8 (25.0 % slower), 40.0 % at 16"));
  CHECK(has(no_rule, "The share rises with the batch, and nothing begins at 16"));
  const Batches step{{1, 100, 100, 1, 1}, {8, 200, 200, 8, 8}, {16, 300, 180, 16, 16}, {32, 600, 400, 32, 32}};
  const std::string rule = bench::checkpoint_batch_verdict(step);
  CHECK(has(rule, "from a batch of 16 on"));
  CHECK(has(rule, "does not rise with every batch, and 16 is where it begins"));
  CHECK(bench::checkpoint_batch_verdict(Batches{{1, 10, 12, 1, 1}}) ==
        "Checkpointing saves nothing at any of these batches.");

  using Curve = std::vector<bench::CurvePoint>;
  const std::string reached = bench::gpt_curve_verdict(Curve{{1, 2, 0}, {0.3, 0.6, 0.02}, {0.14, 0.28, 0.049}});
  CHECK(has(reached, "86.0 % fewer bytes than the textbook build, 72.0 % fewer than the fused one, at +4.9 %"));
  CHECK(has(reached, ", reached."));
  const std::string late = bench::gpt_curve_verdict(Curve{{1, 2, 0}, {0.3, 0.6, 0.02}, {0.14, 0.28, 0.06}});
  CHECK(has(late, "70.0 % fewer bytes"));
  CHECK(has(late, "at +6.0 %, not reached."));
  CHECK(has(bench::gpt_curve_verdict(Curve{{0.5, 1, 0.3}}), "no plan takes at most +5 % time"));
  CHECK(has(bench::gpt_curve_verdict(Curve{{0.5, 1, 0.3}}), "no plan keeps 85 % fewer"));

  const auto counts = bench::count_by_technique(
      {technique_row("checkpoint", 1), technique_row("budget 25 % + placed", 1),
       technique_row("checkpoint + 2 micro-batches", 0), technique_row("budget 50 % + 4 micro-batches", 1)});
  REQUIRE(counts.size() == 4);
  const auto expect = [&](std::size_t i, const char* name, std::size_t rows, std::size_t equal) {
    CHECK(counts[i].name == name);
    CHECK(counts[i].rows == rows);
    CHECK(counts[i].equal == equal);
  };
  expect(0, "checkpoint", 2, 1);
  expect(1, "budget", 2, 2);
  expect(2, "placed", 1, 1);
  expect(3, "micro-batches", 2, 1);
}

TEST_CASE("experiments: the largest batch is found with few probes", "[experiments]") {
  struct Case {
    const char* name;
    std::size_t (*peak)(std::int64_t batch);
    int probes;  // limit
  };
  const Case cases[] = {
      {"a line", [](std::int64_t b) { return std::size_t(1000 + 7 * b); }, 8},
      {"a line in granules", [](std::int64_t b) { return (std::size_t(1000 + 7 * b) + 63) / 64 * 64; }, 14},
      {"flat, then a line", [](std::int64_t b) { return std::size_t(b < 50 ? 1100 : 1100 + 20 * (b - 50)); }, 22},
      {"a square", [](std::int64_t b) { return std::size_t(900 + b * b / 3); }, 18},
      {"steps", [](std::int64_t b) { return std::size_t(1000 + 500 * (b / 10)); }, 22}};
  for (const Case& c : cases) {
    for (const std::size_t budget : {1100, 1301, 2000, 9000, 70001}) {
      INFO(c.name << ", budget " << budget);
      const models::Largest found = models::search_largest(c.peak, budget);
      CHECK(found.peak_bytes == c.peak(found.size));
      CHECK(found.peak_bytes <= budget);
      CHECK(found.next_peak_bytes == c.peak(found.size + 1));
      CHECK(found.next_peak_bytes > budget);
      CHECK(found.probes <= c.probes);
    }
  }
  const auto bump = [](std::int64_t b) { return std::size_t(1000 + 7 * b + (b >= 200 && b < 210 ? 500 : 0)); };
  CHECK(models::search_largest(bump, 2600).size == 228);  // not 199
  const auto constant = [](std::int64_t) { return std::size_t{10}; };
  CHECK_THROWS_WITH(models::search_largest(constant, 9),
                    "`finds_batch`: a batch of 1 needs 10 B, more than the budget of 9 B");
  CHECK_THROWS_WITH(models::search_largest(constant, 10),
                    "`finds_batch`: even 16777216 samples are within the budget of 10 B");
}

TEST_CASE("experiments: schedules on a tape of 100 blocks run and hold what theory says", "[experiments]") {
  const report::Experiment experiment = quick("known-schedules");
  CHECK(experiment.rows.size() == 9);
  for (const report::Row& row : experiment.rows) {
    INFO(std::get<std::string>(row.config[0].second));
    CHECK(report::find_number(row, "forwards") == report::find_number(row, "forwards_theory"));
    CHECK(report::find_number(row, "same_gradients") == 1);
    CHECK(report::unnamed_bytes(row) == 0);
    CHECK(report::match(row) == report::Match::equal);
  }
  CHECK(has(experiment.verdict, "9 of 9 schedules"));
}

TEST_CASE("experiments: MONeT's cells cost less in the same bytes, or no plan can", "[experiments]") {
  const report::Experiment experiment = quick("monet");
  std::map<std::string, double> before;  // by net: the overhead at the next larger share
  std::size_t planned = 0, measured = 0;
  for (const report::Row& row : experiment.rows) {
    const std::string net = bench::setting(row, "net");
    INFO(net << ", " << bench::setting(row, "published GiB") << " GiB");
    if (row.measured_bytes) {
      ++measured;
      CHECK(report::match(row) == report::Match::equal);
      continue;
    }
    ++planned;
    const double published = bench::number(row, "published"), overhead = bench::number(row, "overhead");
    CHECK(static_cast<double>(*row.predicted_bytes) <= bench::number(row, "share") * bench::number(row, "everything"));
    CHECK(bench::number(row, "least") <= overhead);
    CHECK(overhead >= before[net]);
    before[net] = overhead;
    const bool is_below = published <= 0 || bench::number(row, "overhead_in_gib") < published;
    CHECK((is_below || bench::number(row, "least_in_gib") > published));
    if (published > 0) CHECK(bench::number(row, "over_separate") < published);
    if (net == "VGG-16") CHECK(bench::number(row, "over_separate") == bench::number(row, "overhead_in_gib"));
  }
  CHECK(planned == 30);
  CHECK(measured == 4);
  CHECK(has(experiment.verdict, "18 of 24 in the same GiB; there no plan of these operators is below it in 6 of 24"));
  CHECK(has(experiment.verdict, "as published, the plan's is below it in 24 of 24"));
}

TEST_CASE("experiments: HiRemate's savings cost less time than published", "[experiments]") {
  const report::Experiment experiment = quick("hiremate");
  // Parameters as counted by torchvision and timm.
  const std::map<std::string, double> parameters{{"GPT-2", 124'439'808},
                                                 {"ResNet-101", 44'549'160},
                                                 {"MLP-Mixer-B/16", 59'880'472},
                                                 {"RegNetX-32GF", 107'811'560}};
  std::size_t planned = 0, measured = 0, below = 0;
  for (const report::Row& row : experiment.rows) {
    const std::string net = bench::setting(row, "net");
    INFO(net << ", " << bench::setting(row, "of all bytes"));
    if (parameters.contains(net)) CHECK(bench::number(row, "parameters") == parameters.at(net));
    if (row.measured_bytes) {
      ++measured;
      CHECK(report::match(row) == report::Match::equal);
      continue;
    }
    ++planned;
    const std::optional<double> overhead = bench::value(row, "overhead");
    if (!overhead) {
      CHECK(net == "U-Net");
      CHECK(static_cast<double>(*row.predicted_bytes) > 0.3 * bench::number(row, "everything"));
      continue;
    }
    CHECK(static_cast<double>(*row.predicted_bytes) <=
          bench::number(row, "of all bytes") * bench::number(row, "everything"));
    CHECK(bench::number(row, "least") <= *overhead);
    below += *overhead < bench::number(row, "published");
  }
  CHECK(planned == 10);
  CHECK(below == 9);
  CHECK(measured == 2);
}

TEST_CASE("experiments: every technique is predicted as it is measured", "[experiments]") {
  const report::Experiment experiment = quick("techniques");
  CHECK(experiment.rows.size() >= 40);
  for (const report::Row& row : experiment.rows) {
    INFO(std::get<std::string>(row.config[0].second) << ", " << std::get<std::string>(row.config[3].second));
    CHECK(report::match(row) == report::Match::equal);
    CHECK(report::find_number(row, "height") == report::find_number(row, "height_measured"));
    CHECK(report::find_number(row, "live") == report::find_number(row, "live_measured"));
    CHECK(report::find_number(row, "same") == 1);
  }
}

TEST_CASE("experiments: a row holds a run's process against its promise, or says why there is none", "[experiments]") {
  report::Row row;
  CHECK(report::process_absence(row) == "nothing ran");
  row.predicted_bytes = row.measured_bytes = 100;
  bench::ProcessBytes process{.arena_bytes = 100, .outside = {}, .peak_bytes = 50};
  bench::add_process(row, 100, process);
  CHECK(has(report::process_absence(row), "GPU"));
  process.outside.code = 40;
  process.peak_bytes = 0;
  bench::add_process(row, 100, process);
  CHECK(has(report::process_absence(row), "kernel"));
  CHECK_FALSE(row.process_peak_bytes.has_value());
  for (const std::size_t peak : {110, 130, 120}) {
    process.peak_bytes = peak;
    bench::add_process(row, 100, process);
  }
  CHECK(row.process_peak_bytes == 130);  // of several runs, keeps the peak nearest to its promise
  CHECK(row.process_promise_bytes == 140);
  CHECK(report::process_absence(row).empty());
  process.peak_bytes = 200;  // above the promise to its own run
  bench::add_process(row, 150, process);
  CHECK(row.process_promise_bytes == 190);
  process.peak_bytes = 0;
  bench::add_process(row, 100, process);
  CHECK(row.process_peak_bytes == 200);
}

TEST_CASE("experiments: the process of a part is watched from its set-up on", "[experiments]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const bench::PartWatch watch(cpu), dry_watch(dry(cpu));
  constexpr std::int64_t elements = 6 << 20;
  const ResourceScope scope(stack.top);
  const Tensor tensor = zeros({elements}, DType::f32);
  const bench::ProcessBytes bytes = watch.bytes(*stack.arena, 10);
  CHECK(bytes.arena_bytes == stack.arena->statistics().peak_committed_bytes);
  CHECK(bytes.outside.nodes == 10 * 2048);
  if (bytes.peak_bytes > 0) CHECK(bytes.peak_bytes >= 4 * elements);
  const bench::ProcessBytes dry_bytes = dry_watch.bytes(*stack.arena, 10);
  CHECK(dry_bytes.arena_bytes == bytes.arena_bytes);
  CHECK(dry_bytes.outside.total() == 0);
  CHECK(dry_bytes.peak_bytes == 0);
}

TEST_CASE("experiments: parts of a step hold, and so does the advice that follows", "[experiments]") {
  struct Case {
    const char* name;
    std::size_t with_theory;  // expected rows
    std::vector<std::string> findings;
  };
  const Case cases[] = {{"resnet-batch", 7, {"7 of 7 rows"}},
                        {"resnet-branches", 10, {"adds its input as it is keeps nothing", "10 of 10 rows"}},
                        {"gpt-layer", 20, {"20 of 20 rows"}},
                        {"gpt-curve", 2, {"small gpt: ", "3 of 3 measured plans"}},
                        {"checkpoint-depth",
                         12,
                         {"keep every layer (fused): kept O(layers)", "each layer (fused): kept O(layers)",
                          "sqrt(n) layers (fused): kept O(sqrt(layers))",
                          "halves of halves (fused): kept O(log layers)", "12 of 12 rows"}},
                        {"checkpoint-sequence",
                         16,
                         {"each layer (textbook): kept O(sequence) (exponent 1.00), peak O(sequence^2)",
                          "each layer (fused): kept O(sequence) (exponent 1.00), peak O(sequence) ", "16 of 16 rows"}},
                        {"accumulation", 6, {"the activations fall 32-fold", "6 of 6 rows"}},
                        {"sharing",
                         10,
                         {"100.0 % of what is kept for backward", "16 to 32 channels refuses it",
                          "16 to 16 takes it in silence", "4 of 4 networks"}},
                        {"fragmentation",
                         15,
                         {"0.0 % by trimming, 50.0 % by compaction", "50.0 % by trimming, 50.0 % by compaction",
                          "33.3 % by trimming, 50.0 % by compaction", "takes all of it again", "15 of 15 rows"}}};
  for (const Case& c : cases) {
    const report::Experiment experiment = quick(c.name);
    INFO(c.name << ": " << experiment.verdict);
    for (const std::string& finding : c.findings) CHECK(has(experiment.verdict, finding));
    const report::Tally tally = report::tally(experiment);
    CHECK(tally.ran == experiment.rows.size());
    CHECK(tally.equal == tally.ran);
    CHECK(tally.with_theory == c.with_theory);
    CHECK(tally.named == tally.with_theory);
  }
}

TEST_CASE("experiments: fewer bits leave gradients and losses near those of f32", "[experiments]") {
  const report::Experiment experiment = quick("eight-bits");
  REQUIRE(experiment.rows.size() == 12);
  std::size_t packed = 0;
  for (const report::Row& row : experiment.rows) {
    const std::string saved = std::get<std::string>(row.config[0].second);
    const std::string optimizer = std::get<std::string>(row.config[1].second);
    INFO(saved << ", " << optimizer << ", " << std::get<std::string>(row.config[2].second));
    CHECK(report::match(row) == report::Match::equal);
    if (optimizer != "adafactor") CHECK(std::fabs(*report::find_number(row, "validation_change")) < 0.01);
    if (saved == "f32") continue;
    ++packed;
    // Errors double with each fraction bit less: the cosine is 0.99913 with E4M3's three bits and 0.9929 with E5M2's
    // two. The latter is close to its bound.
    const double least = saved == "f8e5m2" ? 0.99 : saved == "f8e4m3" ? 0.998 : 0.9999;
    CHECK(*report::find_number(row, "least_cosine") > least);
    CHECK(*report::find_number(row, "least_cosine") < 1);
    CHECK(*report::find_number(row, "packed_bytes") > 0);
  }
  CHECK(packed == 6);
}

TEST_CASE("experiments: a technique that cannot be is refused", "[experiments]") {
  models::Setup setup;
  setup.model = "mlp";
  setup.batch = 6;
  bench::StepForm technique;
  technique.micro_batches = 4;
  CHECK_THROWS_AS(bench::compare(cpu, bench::technique_run(setup, technique)), ValueError);
  const TapeGraph graph = nn::record_step(cpu, bench::technique_run(setup, {}));
  CHECK_THROWS_AS(bench::block_cuts(graph, "gpt.h."), ValueError);
}

TEST_CASE("experiments: overheads are counted from the step that keeps everything", "[experiments]") {
  const report::Experiment experiment = quick("overhead");
  REQUIRE(experiment.rows.size() == 6);
  for (std::size_t i = 0; i < experiment.rows.size(); ++i) {
    const report::Row& row = experiment.rows[i];
    CHECK(row.predicted_bytes == row.measured_bytes);
    const double predicted = *report::find_number(row, "predicted_overhead");
    CHECK((i % 3 == 0 ? predicted == 0 : predicted > 0));
    CHECK((i % 3 != 0 || *report::find_number(row, "measured_overhead") == 0));
  }
}

// ---- Rows of `thimble reproduce techniques` on a CUDA device whose tensors wait in the host's pinned memory. Runs on
// a GPU if there is one; a build without CUDA uses the host's emulation.

using thimble::testing::has_cuda;

TEST_CASE("cuda offload: techniques' rows with an average that is away", "[cuda][offload]") {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = 6;
  setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 32;
  setup.sizes.sequence = 64, setup.sizes.vocabulary = 40;
  constexpr std::size_t slab = std::size_t{2} << 20;
  using bench::Average;
  for (const bench::StepForm& technique :
       {bench::StepForm{.average = Average::offloaded},
        bench::StepForm{.checkpoint = bench::Checkpoint::blocks, .micro_batches = 2, .average = Average::offloaded}}) {
    const nn::MakeRun make = bench::technique_run(setup, technique);
    CHECK(nn::profile_training(dry(cuda()), make).tier_bytes == slab);
    if (!has_cuda()) continue;
    const bench::Comparison compared = bench::compare(cuda(), make);
    CHECK(compared.is_equal());
    CHECK(compared.measured.tier_bytes == slab);
  }
}

// ---- A communicator's record of its transfers, buckets on their way during backward, and the trace.

using bench::RankTransfers;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Notes when backward delivers each gradient.
class NotedRanks : public bench::WatchedRanks {
 public:
  NotedRanks(optim::Ranks& inner, std::vector<double>& taken) : WatchedRanks(inner, [] {}), taken_(taken) {}
  void take_gradient(const std::shared_ptr<tape::Leaf>& leaf) override {
    taken_.push_back(now());
    WatchedRanks::take_gradient(leaf);
  }

 private:
  std::vector<double>& taken_;
};

dist::TransferTimes at(double begun, double waited, double done, std::uint64_t bytes = 0) {
  dist::TransferTimes t{"exchange", bytes, begun, waited, done};
  return t;
}

}  // namespace

TEST_CASE("transfers: a bucket is on its way while backward computes the next gradient", "[dist]") {
  constexpr int ranks = 2, layers = 5, width = 128;
  std::vector<double> taken[ranks];
  RankTransfers transfers[ranks];
  dist::run_ranks(ranks, [&](dist::Communicator& c) {
    const auto r = static_cast<std::size_t>(c.rank());
    std::vector<optim::Named> parameters;
    for (int i = 0; i < layers; ++i) {
      Tensor w = full({width, width}, 0.01);
      w.require_grad();
      parameters.push_back({"w" + std::to_string(i), std::move(w)});
    }
    dist::DataParallel parallel(c, parameters, {.zero = 1, .buckets = {.bytes = 0}});
    NotedRanks noted(parallel, taken[r]);
    optim::Sgd sgd(parallel.parameters(), {.rate = 0.1});
    nn::StepOptions options{.micro_samples = 4, .ranks = &noted};
    c.record(&transfers[r]);
    nn::training_step(
        sgd,
        [&](std::int64_t) {
          Tensor x = full({4, width}, 1);
          for (const optim::Named& p : parameters) x = matmul(x, p.tensor);
          return mean(x);
        },
        options);
    c.record(nullptr);
    c.barrier();
  });
  for (int r = 0; r < ranks; ++r) {
    INFO("rank " << r);
    REQUIRE(taken[r].size() == layers);
    // Buckets go in the order of backward, among other transfers; half of each goes to the other rank.
    RankTransfers buckets;
    for (const dist::TransferTimes& t : transfers[r]) {
      CHECK(t.begun <= t.waited);
      CHECK(t.waited <= t.done);
      if (t.begun > taken[r].front() && buckets.size() < layers && t.bytes == width * width * sizeof(float) / ranks)
        buckets.push_back(t);
    }
    REQUIRE(buckets.size() == layers);
    for (std::size_t k = 0; k + 1 < layers; ++k) {
      INFO("bucket " << k);
      CHECK(buckets[k].begun < taken[r][k + 1]);   // before the next layer's gradient arrives
      CHECK(buckets[k].waited > taken[r][k + 1]);  // and no rank waits for the bucket until then
    }
  }
}

TEST_CASE("transfers: what is recorded is what was asked for", "[dist]") {
  std::vector<RankTransfers> all;
  dist::run_ranks(3, [&](dist::Communicator& c) {
    const double moment = bench::shared_moment(c);
    RankTransfers own;
    c.record(&own);
    char mine = 'a', every[3];
    c.all_gather(&mine, 1, every);
    if (c.rank() == 0) {
      for (int to : {1, 2}) c.exchange(std::vector<dist::Send>{{to, every, 3}}, {}).wait();
    } else {
      char got[3];
      c.exchange({}, std::vector<dist::Receive>{{0, got, 3}}).wait();
    }
    c.record(nullptr);
    c.barrier();
    const auto gathered = bench::gather_transfers(c, own, moment);
    if (c.rank() == 2) all = gathered;
  });
  REQUIRE(all.size() == 3);
  REQUIRE(all[0].size() == 3);
  CHECK(std::string(all[0][0].call) == "all_gather");
  CHECK(all[0][0].bytes == 2);
  CHECK(std::string(all[0][2].call) == "exchange");
  CHECK(all[0][2].bytes == 3);
  for (std::size_t r : {1, 2}) {
    REQUIRE(all[r].size() == 2);
    CHECK(all[r][1].bytes == 0);
    CHECK(all[r][0].begun > 0);
  }
}

TEST_CASE("transfers: overlap and trace of known times", "[dist]") {
  // 0 ------ 4 on its way, awaited from 3 on; 2 ------- 6 is done before the wait; a gap; 8 - 9 all awaited.
  const RankTransfers known{at(0, 3, 4, 10), at(2, 6, 6, 20), at(8, 8, 9, 30)};
  const bench::Overlap overlap = bench::overlap_of(known);
  CHECK(overlap.on_its_way == 7);
  CHECK(overlap.waited == 2);

  const auto trace = nlohmann::json::parse(bench::write_transfers(std::vector<RankTransfers>{known, {}}));
  std::vector<std::string> rows;
  std::size_t begins = 0, ends = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      rows.push_back(event["name"].get<std::string>() + " " + std::to_string(event["ts"].get<int>()) + " " +
                     std::to_string(event["dur"].get<int>()));
    }
    if (event["ph"] == "b") begins += event["args"]["bytes sent"].get<std::size_t>();
    if (event["ph"] == "e") ++ends;
  }
  CHECK(rows == std::vector<std::string>{"computes 0 3000000", "waits 3000000 1000000", "computes 4000000 4000000",
                                         "waits 8000000 1000000"});
  CHECK(begins == 60);
  CHECK(ends == 3);
}
