// thimble pack: computes offsets for the lifetimes in a CSV file.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/core/files/outputs.h>
#include <thimble/memory/placement/csv.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

constexpr int not_met = 3;

struct PackFlags {
  std::string input, output;
  std::size_t capacity = 0;
  double seconds = 10;
  std::int64_t alignment = 1;
  bool is_json = false, overwrites = false;
};

void print_json(std::size_t buffers, const memory::Placement& placement, const PackFlags& flags) {
  nlohmann::ordered_json json{{"buffers", buffers},
                              {"load", placement.load},
                              {"height", placement.height},
                              {"ratio", placement.ratio()},
                              {"ms", placement.ms},
                              {"optimal", placement.is_optimal},
                              {"stage", to_string(placement.stage)},
                              {"nodes", placement.nodes}};
  if (flags.capacity > 0) {
    json["capacity"] = flags.capacity;
    json["is_met"] = placement.height <= flags.capacity;
  }
  std::cout << json.dump(2) << "\n";
}

void print_line(std::size_t buffers, const memory::Placement& placement, const PackFlags& flags) {
  std::printf("%zu buffers: height %s, load %s, ratio %.5f%s; found by the %s stage in %.1f ms%s\n", buffers,
              format_grouped(placement.height).c_str(), format_grouped(placement.load).c_str(), placement.ratio(),
              placement.is_optimal ? " (optimal)" : "", std::string(to_string(placement.stage)).c_str(), placement.ms,
              flags.capacity == 0                  ? ""
              : placement.height <= flags.capacity ? "; within the capacity"
                                                   : "; above the capacity");
}

void run(const PackFlags& flags) {
  if (!std::has_single_bit(static_cast<std::size_t>(flags.alignment))) {
    throw ValueError("--alignment: expected a power of two, got " + std::to_string(flags.alignment));
  }
  check_outputs({{"--out", flags.output, &file_kinds::lifetimes}}, {{"IN", flags.input}}, flags.overwrites);
  memory::PlacementFile file = memory::read_placement(flags.input);
  memory::PlacementOptions options;
  options.capacity_bytes = flags.capacity;
  options.seconds = flags.seconds;
  options.node_limit = 0;  // only --seconds limits the search
  options.unit = static_cast<std::size_t>(flags.alignment);
  const bool has_gaps = std::any_of(file.gaps.begin(), file.gaps.end(), [](const auto& all) { return !all.empty(); });
  const memory::Placement placement =
      has_gaps ? memory::place_with_gaps(file.buffers, file.gaps, options) : memory::place(file.buffers, options);
  if (has_gaps) {
    memory::check_placement_with_gaps(file.buffers, file.gaps, placement.offsets, placement.height);
  } else {
    memory::check_placement(file.buffers, placement.offsets, placement.height);
  }
  if (!flags.output.empty()) {
    file.offsets = placement.offsets;
    write_output(flags.output, memory::write_placement(file));
  }
  const std::size_t count = file.buffers.size();
  flags.is_json ? print_json(count, placement, flags) : print_line(count, placement, flags);
  if (flags.capacity > 0 && placement.height > flags.capacity) throw CLI::RuntimeError(not_met);
}

}  // namespace

void add_pack(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("pack", "Place buffers with known lifetimes: offsets for a CSV");
  const auto flags = std::make_shared<PackFlags>();
  command->add_option("IN", flags->input, "CSV with the columns id,lower,upper,size and optional alignment,gaps")
      ->required();
  add_size(*command, "--capacity", flags->capacity, "Height to reach, as in 512MiB; exit status 3 if it is not met");
  add_number(*command, "--seconds", flags->seconds, 0, 1e6, "Seconds of search (10)");
  add_integer(*command, "--alignment", flags->alignment, 1, std::int64_t{1} << 30,
              "Power of two that sizes are rounded up to and offsets are multiples of (1)");
  command->add_option("--out", flags->output, "Write the CSV with a column offset")->type_name("FILE");
  command->add_flag("--json", flags->is_json, "Print JSON");
  add_overwrite_flag(*command, flags->overwrites);
  command->callback([flags] { run(*flags); });
}

}  // namespace thimble::bench
