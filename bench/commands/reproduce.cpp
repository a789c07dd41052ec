// thimble reproduce: runs experiments and writes the report.

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/writers.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/summary.h>
#include <thimble/version.h>

namespace thimble::bench {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string now() {
  const std::time_t time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// Checks the report folder before anything runs, including existing pictures, which experiments name.
void check_folder(const std::vector<const ExperimentTable*>& chosen, const std::string& folder, bool overwrites) {
  namespace fs = std::filesystem;
  make_output_folder("--out", folder);
  const auto in_folder = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  std::vector<files::Output> outputs{{"--out", in_folder("report.html"), &file_kinds::page},
                                     {"--out", in_folder("results.json"), &file_kinds::results}};
  for (const ExperimentTable* const e : chosen) {
    outputs.push_back({"--out", in_folder(e->name + ".csv"), &file_kinds::table});
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(e->name + "-") && name.ends_with(".svg")) {
        check_kind({"--out", entry.path().string(), &file_kinds::picture}, overwrites);
      }
    }
  }
  check_outputs(outputs, {}, overwrites);
}

void run(const std::vector<std::string>& names, bool is_quick, const std::string& device, const std::string& folder,
         bool overwrites) {
  const std::vector<const ExperimentTable*> chosen = select_experiments(names);
  ExperimentOptions options;
  options.device = parse_device_flag("--device", device);
  options.is_quick = is_quick;
  const auto start = std::chrono::steady_clock::now();
  options.progress = [start](const std::string& what) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "[%5.1f s] %s\n", elapsed.count(), what.c_str());
  };
  static_cast<void>(default_resource(options.device));  // fails early if the device does not exist
  check_folder(chosen, folder, overwrites);
  report::Report report;
  report.environment = {THIMBLE_VERSION, to_string(options.device), cpu_name(), thread_count(), now(), {}};
  report.environment.details = {{"compute", kernels::describe_compute()}, {"sizes", is_quick ? "quick" : "full"}};
  for (const ExperimentTable* const e : chosen) {
    report.experiments.push_back(run_experiment(*e, options));
    std::cout << report::to_table(report.experiments.back()) << "\n";
  }
  const std::vector<std::string> paths = report::write_report(report, folder);
  const report::Tally tally = report::tally(report);
  std::cout << tally.rows << " rows, of which " << tally.ran << " ran; predicted == measured in " << tally.equal
            << " of " << tally.compared << " measured ones; every byte of the theory named in " << tally.named << " of "
            << tally.with_theory << "; processes within what was promised in " << tally.within << " of " << tally.ran
            << " that ran\n";
  if (tally.ran > tally.with_process) {
    std::cout << tally.ran - tally.with_process << " rows that ran do not know their process: the tables say why\n";
  }
  if (tally.lacking > 0) std::cout << tally.lacking << " rows were not measured: this machine lacks what they need\n";
  std::cout << "report: " << folder << "/report.html (" << paths.size() << " files in " << folder << ")\n";
  if (options.device.is_cuda() && !options.device.is_dry) {
    std::cout << "libraries: " << memory::to_string(kernels::device_runtime(options.device).library_use()) << "\n";
  }
  if (!report::holds(tally)) throw CLI::RuntimeError(not_predicted_status);
}

}  // namespace

void add_reproduce(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("reproduce", "Run the memory-scaling experiments, write a report");
  struct Flags {
    std::vector<std::string> names;
    bool is_quick = false, overwrites = false;
    std::string device = "cpu", folder = "report";
  };
  const auto flags = std::make_shared<Flags>();
  command->add_option("names", flags->names, "all, or experiments by their names or the first word of their names");
  command->add_flag("--quick", flags->is_quick, "Small sizes");
  command->add_option("--device", flags->device, "cpu, cuda or cuda:N (cpu)")->type_name("DEVICE");
  command->add_option("--out", flags->folder, "Folder of the report (report)")->type_name("FOLDER");
  add_overwrite_flag(*command, flags->overwrites);
  add_compute_flags(*command);
  command->callback([flags] { run(flags->names, flags->is_quick, flags->device, flags->folder, flags->overwrites); });
}

}  // namespace thimble::bench
