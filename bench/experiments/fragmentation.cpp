// Experiment: holes. What an arena holds when half of its blocks are gone, what trimming gives back (PyTorch calls it
// empty_cache), and what compaction does.

#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/memory/stack.h>

namespace thimble::bench {
namespace fragmentation_detail {

/// So many blocks of one size, side by side; every second one goes.
struct Blocks {
  std::int64_t count, bytes;
};

constexpr const char* moments[] = {"all are there", "every second freed", "trimmed", "the next step",
                                   "compacted and trimmed"};
constexpr std::size_t moment_count = std::size(moments);

std::int64_t rounded_up(std::int64_t bytes, std::int64_t granule) { return (bytes + granule - 1) / granule * granule; }

/// Granules that a block of the even ones touches: what is left when all others are given back.
std::int64_t touched_bytes(const Blocks& blocks, std::int64_t granule) {
  std::int64_t bytes = 0;
  const std::int64_t granules = rounded_up(blocks.count * blocks.bytes, granule) / granule;
  for (std::int64_t i = 0; i < granules; ++i) {
    bool is_touched = false;
    for (std::int64_t k = 0; k < blocks.count; k += 2) {
      is_touched |= k * blocks.bytes < (i + 1) * granule && (k + 1) * blocks.bytes > i * granule;
    }
    bytes += is_touched ? granule : 0;
  }
  return bytes;
}

/// Committed bytes at each moment, by the sizes alone.
std::vector<std::int64_t> theory_of(const Blocks& blocks, std::int64_t granule) {
  const std::int64_t all = rounded_up(blocks.count * blocks.bytes, granule);
  return {all, all, touched_bytes(blocks, granule), all, rounded_up((blocks.count + 1) / 2 * blocks.bytes, granule)};
}

/// What an arena, and its process, have at a moment.
struct Held {
  Arena::Statistics arena;
  ProcessBytes process;
};

std::vector<Held> run_blocks(Device device, const Blocks& blocks) {
  memory::Options options;
  options.arena.capacity_bytes = static_cast<std::size_t>(blocks.count * blocks.bytes);
  options.arena.compaction = Arena::Compaction::never;  // it is called by hand here
  const memory::Stack stack = memory::make_resource(device, options);
  const PartWatch watch(device);
  const ResourceScope scope(stack.top);
  std::vector<Held> held;
  const auto look = [&] { held.push_back({stack.arena->statistics(), watch.bytes(*stack.arena, 0)}); };
  const auto make = [&] { return Tensor::empty({blocks.bytes}, DType::u8, device); };
  std::vector<Tensor> tensors(static_cast<std::size_t>(blocks.count));
  const auto change_every_second = [&](const auto& to) {
    for (std::size_t i = 1; i < tensors.size(); i += 2) tensors[i] = to();
  };
  for (Tensor& tensor : tensors) tensor = make();
  look();
  change_every_second([] { return Tensor(); });
  look();
  stack.arena->trim();
  look();
  change_every_second(make);
  look();
  change_every_second([] { return Tensor(); });
  stack.arena->compact();
  stack.arena->trim();
  look();
  return held;
}

}  // namespace fragmentation_detail

report::Experiment fragmentation_experiment(const ExperimentOptions& options) {
  using namespace fragmentation_detail;
  report::Experiment experiment;
  experiment.name = "fragmentation";
  experiment.title = "Holes: trimming and compaction";
  experiment.question = "What do emptying the cache and defragmentation give back, and when?";
  experiment.theory =
      "<i>n</i> blocks of <i>s</i> bytes take <i>n s</i> rounded up to granules of <i>g</i>. Freeing a block gives no "
      "page back. Trimming gives back the granules that no block touches: none where the holes are smaller than a "
      "granule. Blocks that were slid together take (<i>n</i> / 2) <i>s</i>, rounded up.";
  using report::Unit;
  experiment.columns = {{"live", "live bytes", Unit::bytes},
                        {"largest", "largest request that fits", Unit::bytes},
                        {"moved", "bytes moved", Unit::bytes}};
  const auto granule = static_cast<std::int64_t>(make_backing(dry(options.device))->granule());
  const std::int64_t count = options.is_quick ? 16 : 64;
  const auto last = static_cast<std::ptrdiff_t>(moment_count) - 1;
  std::size_t equal = 0;
  std::string findings;
  for (const std::int64_t halves : {1, 2, 3}) {
    const Blocks blocks{count, halves * granule / 2};
    options.progress("fragmentation: blocks of " + std::to_string(blocks.bytes) + " bytes");
    const std::vector<std::int64_t> theory = theory_of(blocks, granule);
    const std::vector<Held> predicted = run_blocks(dry(options.device), blocks);
    const std::vector<Held> measured = run_blocks(options.device, blocks);
    for (std::size_t i = 0; i < moment_count; ++i) {
      report::Row row;
      row.config = {{"blocks", count}, {"block_bytes", blocks.bytes}, {"moment", std::string(moments[i])}};
      row.theory_bytes = theory[i];
      row.predicted_bytes = static_cast<std::int64_t>(predicted[i].arena.committed_bytes);
      row.measured_bytes = static_cast<std::int64_t>(measured[i].arena.committed_bytes);
      row.compared = {{"live", static_cast<std::int64_t>(predicted[i].arena.requested_bytes),
                       static_cast<std::int64_t>(measured[i].arena.requested_bytes)},
                      {"largest", static_cast<std::int64_t>(predicted[i].arena.largest_free_bytes),
                       static_cast<std::int64_t>(measured[i].arena.largest_free_bytes)}};
      row.numbers = {{"live", static_cast<double>(predicted[i].arena.requested_bytes)},
                     {"largest", static_cast<double>(predicted[i].arena.largest_free_bytes)},
                     {"moved", static_cast<double>(measured[i].arena.moved_bytes)}};
      add_process(row, predicted[i].process.arena_bytes, measured[i].process);
      equal += row.theory_bytes == row.predicted_bytes && report::match(row) == report::Match::equal ? 1 : 0;
      experiment.rows.push_back(std::move(row));
    }
    const auto of_all = [&](std::ptrdiff_t moment) {
      const auto bytes = static_cast<double>(measured[static_cast<std::size_t>(moment)].arena.committed_bytes);
      return report::format_quantity(1 - bytes / static_cast<double>(theory[0]), Unit::percent, 1);
    };
    findings += (findings.empty() ? "" : "; ") +
                report::format_quantity(static_cast<double>(blocks.bytes), Unit::bytes, 0) + ": " + of_all(2) +
                " by trimming, " + of_all(last) + " by compaction";
  }
  experiment.verdict = "Half of the bytes are freed. Given back, for blocks of " + findings +
                       ". The next step takes all of it again. Theory, prediction and measurement are equal in " +
                       std::to_string(equal) + " of " + std::to_string(experiment.rows.size()) + " rows.";
  return experiment;
}

}  // namespace thimble::bench
