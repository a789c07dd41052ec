// What a communicator records of its transfers; that a bucket is on its way while backward goes on; and the trace.
#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/experiments/watched_ranks.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/threads.h>
#include <thimble/thimble.h>

#include "support/catch.h"

using namespace thimble;
using bench::RankTransfers;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Notes when backward has brought a gradient.
class NotedRanks : public bench::WatchedRanks {
 public:
  NotedRanks(optim::Ranks& inner, std::vector<double>& taken) : WatchedRanks(inner, [] {}), taken_(taken) {}
  void take_gradient(const std::shared_ptr<Leaf>& leaf) override {
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
    // In the order of backward, among what else ranks tell each other: half of each bucket goes to the other.
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
      CHECK(buckets[k].begun < taken[r][k + 1]);   // before the next layer's gradient is there
      CHECK(buckets[k].waited > taken[r][k + 1]);  // and nobody waits until it is
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
  // 0 ------ 4 on its way, waited for from 3 on; 2 ------- 6 is done before anybody asks; nothing; 8 - 9 all waited.
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
