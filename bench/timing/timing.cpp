#include <thimble/bench/timing/timing.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/process.h>

namespace thimble::bench {
namespace {

constexpr int warm_up = 2;  // steps that make optimizer state and touch pages for the first time

/// A run in its arena.
struct Lane {
  memory::Stack stack;
  std::unique_ptr<nn::TrainingRun> run;
  double least_ms = std::numeric_limits<double>::infinity();

  std::int64_t skipped() const {
    const optim::GradScaler* const scaler = run->options().scaler;
    return scaler == nullptr ? 0 : scaler->state().skipped_steps;
  }
  void step(bool counts) {
    const ResourceScope scope(stack.top);
    const std::int64_t before = skipped();
    const double start = process::processor_ms();
    run->step();
    const double ms = process::processor_ms() - start;
    if (counts && skipped() == before) least_ms = std::min(least_ms, ms);
  }
};

/// Destroys runs in reverse order, because each holds a scope of this thread.
struct Lanes {
  std::vector<Lane> list;
  ~Lanes() {
    while (!list.empty()) list.pop_back();
  }
};

}  // namespace

OneThread::OneThread() : before_(thread_count()) { set_thread_count(1); }

OneThread::~OneThread() { set_thread_count(before_); }

std::vector<double> step_processor_ms(memory::Device device, const std::vector<nn::MakeRun>& makes, int rounds) {
  if (rounds < 1) {
    throw ValueError("step_processor_ms: " + std::to_string(rounds) + " rounds; expected at least 1");
  }
  const OneThread alone;
  Lanes lanes;
  lanes.list.reserve(makes.size());
  for (const nn::MakeRun& make : makes) {
    Lane& lane = lanes.list.emplace_back();
    lane.stack = memory::make_resource(device);
    const ResourceScope scope(lane.stack.top);
    lane.run = make(device);
  }
  for (int round = -warm_up; round < rounds; ++round) {
    for (Lane& lane : lanes.list) lane.step(round >= 0);
  }
  std::vector<double> least;
  for (const Lane& lane : lanes.list) {
    if (lane.least_ms == std::numeric_limits<double>::infinity()) {
      throw ValueError("step_processor_ms: run " + std::to_string(least.size()) + " skipped each of its " +
                       std::to_string(rounds) + " steps; expected more rounds");
    }
    least.push_back(lane.least_ms);
  }
  return least;
}

double clock_ms(int threads) {
  std::timespec now{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

Lines lines(std::size_t bytes) { return Lines((bytes + sizeof(Line) - 1) / sizeof(Line)); }

namespace {

using Json = nlohmann::ordered_json;

constexpr double us = 1e6;  // microseconds per second

/// An interval on one row.
Json slice(std::size_t rank, int row, const char* name, double begin, double end) {
  return {{"name", name}, {"ph", "X"}, {"pid", rank}, {"tid", row}, {"ts", begin * us}, {"dur", (end - begin) * us}};
}

void add_rank(Json& events, std::size_t rank, const RankTransfers& transfers) {
  events.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", "rank " + std::to_string(rank)}}}});
  std::vector<std::pair<double, double>> waits;
  std::size_t id = 0;
  for (const dist::TransferTimes& t : transfers) {
    if (t.done > t.waited) waits.emplace_back(t.waited, t.done);
    // Transfers overlap; asynchronous events get extra rows where needed.
    const std::string name = std::to_string(rank) + "." + std::to_string(id++);
    Json begin{{"name", t.call}, {"cat", "on its way"}, {"ph", "b"}, {"id", name}, {"pid", rank}, {"tid", 1}};
    Json end = begin;
    begin["ts"] = t.begun * us;
    begin["args"] = {{"bytes sent", t.bytes}};
    end["ph"] = "e";
    end["ts"] = t.done * us;
    events.push_back(std::move(begin));
    events.push_back(std::move(end));
  }
  std::sort(waits.begin(), waits.end());
  double at = 0;
  for (const auto& [begin, end] : waits) {
    if (begin > at) events.push_back(slice(rank, 0, "computes", at, begin));
    events.push_back(slice(rank, 0, "waits", begin, end));
    at = end;
  }
}

}  // namespace

double shared_moment(dist::Communicator& ranks) {
  ranks.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<RankTransfers> gather_transfers(dist::Communicator& ranks, RankTransfers own, double moment) {
  for (dist::TransferTimes& t : own) t.begun -= moment, t.waited -= moment, t.done -= moment;
  const auto size = static_cast<std::size_t>(ranks.size());
  const std::size_t mine = own.size();
  std::vector<std::size_t> counts(size);
  ranks.all_gather(&mine, sizeof mine, counts.data());
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  own.resize(most);
  RankTransfers all(most * size);
  ranks.all_gather(own.data(), most * sizeof(dist::TransferTimes), all.data());
  std::vector<RankTransfers> by_rank(size);
  for (std::size_t r = 0; r < size; ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * most);
    by_rank[r].assign(first, first + static_cast<std::ptrdiff_t>(counts[r]));
  }
  return by_rank;
}

Overlap overlap_of(std::span<const dist::TransferTimes> transfers) {
  Overlap result{0, 0};
  double until = 0;                                 // end of the time covered so far
  for (const dist::TransferTimes& t : transfers) {  // ordered by `begun`
    result.on_its_way += std::max(0.0, t.done - std::max(t.begun, until));
    until = std::max(until, t.done);
    result.waited += t.done - t.waited;
  }
  return result;
}

std::string write_transfers(std::span<const RankTransfers> ranks) {
  Json events = Json::array();
  for (std::size_t r = 0; r < ranks.size(); ++r) add_rank(events, r, ranks[r]);
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace thimble::bench
