// --isa, --cpu-dot and --threads.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/settings.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::bench {
namespace {

struct ComputeFlags {
  std::string isa, units;
  std::int64_t threads = 0;  // 0 keeps the default
};

// Sets the instruction set first, because it limits the units, also units from the environment.
void apply(const ComputeFlags& flags) {
  if (!flags.isa.empty()) kernels::set_isa("--isa", flags.isa);
  if (!flags.units.empty()) {
    kernels::set_units("--cpu-dot", flags.units);
  } else if (const char* const units = std::getenv("THIMBLE_UNITS"); units != nullptr && *units != '\0') {
    kernels::set_units("THIMBLE_UNITS", units);
  }
  if (flags.threads > 0) set_thread_count(static_cast<int>(flags.threads));
  check_environment();
}

}  // namespace

void add_compute_flags(CLI::App& command) {
  const auto flags = std::make_shared<ComputeFlags>();
  command.add_option("--isa", flags->isa, "Instruction set of CPU kernels: generic, avx2, avx512 (the machine's best)")
      ->type_name("I");
  command
      .add_option("--cpu-dot", flags->units,
                  "Dot-product units of CPU kernels: none, bf16, int8 or bf16,int8; auto: bf16 where it was measured "
                  "to be faster (auto)")
      ->type_name("U");
  add_integer(command, "--threads", flags->threads, 1, Settings::max_threads, "Threads of CPU kernels (one per core)");
  command.parse_complete_callback([flags] { apply(*flags); });
}

}  // namespace thimble::bench
