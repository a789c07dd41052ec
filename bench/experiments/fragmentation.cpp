// Experiment: holes. Bytes that an arena holds when half of its blocks are free, and bytes that trimming (PyTorch's
// empty_cache) and compaction give back.

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/memory/stack.h>

namespace thimble::bench {
namespace {

/// `count` blocks of one size, side by side. The experiment frees every second one.
struct Blocks {
  std::int64_t count, bytes;
};

constexpr const char* moments[] = {"all are there", "every second freed", "trimmed", "the next step",
                                   "compacted and trimmed"};

std::int64_t rounded_up(std::int64_t bytes, std::int64_t granule) { return (bytes + granule - 1) / granule * granule; }

/// Bytes of the granules that an even block touches. Trimming gives all others back.
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

/// Bytes of an arena and of its process at a moment.
struct Held {
  memory::Arena::Statistics arena;
  ProcessBytes process;
};

std::vector<Held> run_blocks(memory::Device device, const Blocks& blocks) {
  memory::Options options;
  options.arena.capacity_bytes = static_cast<std::size_t>(blocks.count * blocks.bytes);
  options.arena.compaction = memory::Arena::Compaction::never;  // it is called by hand here
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

}  // namespace

std::string run_fragmentation(Rows& rows) {
  const auto granule = static_cast<std::int64_t>(memory::make_backing(dry(rows.options.device))->granule());
  std::string findings;
  for (const std::int64_t halves : {1, 2, 3}) {
    const Blocks blocks{rows.sizes(16, 64), halves * granule / 2};
    rows.say("blocks of " + std::to_string(blocks.bytes) + " bytes");
    const std::int64_t all = rounded_up(blocks.count * blocks.bytes, granule);
    const std::int64_t half = rounded_up((blocks.count + 1) / 2 * blocks.bytes, granule);
    const std::int64_t theory[] = {all, all, touched_bytes(blocks, granule), all, half};  // by the sizes only
    const auto held = rows.both([&](memory::Device device) { return run_blocks(device, blocks); });
    for (std::size_t i = 0; i < std::size(moments); ++i) {
      const memory::Arena::Statistics &predicted = held.predicted[i].arena, &measured = held.measured[i].arena;
      rows.add({{"blocks", blocks.count}, {"block_bytes", blocks.bytes}, {"moment", moments[i]}},
               Figures{.theory = theory[i],
                       .predicted = predicted.committed_bytes,
                       .measured = measured.committed_bytes,
                       .numbers = {{"live", predicted.requested_bytes},
                                   {"largest", predicted.largest_free_bytes},
                                   {"moved", measured.moved_bytes}},
                       .compared = {{"live", predicted.requested_bytes, measured.requested_bytes},
                                    {"largest", predicted.largest_free_bytes, measured.largest_free_bytes}},
                       .processes = {{held.predicted[i].process.arena_bytes, held.measured[i].process}}});
    }
    const auto given_back = [&](std::size_t moment) {
      const auto bytes = static_cast<double>(held.measured[moment].arena.committed_bytes);
      return report::format_percent(1 - bytes / static_cast<double>(all));
    };
    findings += (findings.empty() ? "" : "; ") +
                report::format_quantity(static_cast<double>(blocks.bytes), Unit::bytes, 0) + ": " + given_back(2) +
                " by trimming, " + given_back(4) + " by compaction";
  }
  const auto is_all_equal = [](const report::Row& row) { return is_explained(row) && is_equal(row); };
  return "Half of the bytes are freed. Given back, for blocks of " + findings +
         ". The next step takes all of it again. Theory, prediction and measurement are equal in " +
         count_rows(rows.experiment.rows, is_all_equal) + " rows.";
}

}  // namespace thimble::bench
