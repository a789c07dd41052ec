// --isa, --cpu-dot and --threads from outside: their effects, the output of `thimble devices`, and statuses.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include <sys/wait.h>

#include <thimble/bench/commands.h>
#include <thimble/core/kernels/cpu/base/units.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/program.h"
#include "support/skip.h"

using namespace thimble;

TEST_CASE("program: devices says what CPU kernels run on, and flags choose it", "[program][units]") {
  const files_test::TemporaryFolder folder;
  const auto run = [&](const std::string& arguments) { return program_test::run(folder, arguments); };
  if (!run("--version")) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  const auto cpu_of = [&](const std::string& flags) {
    const auto output = run("devices --json " + flags);
    INFO(flags << ": " << output->error);
    REQUIRE(output->status == 0);
    return nlohmann::json::parse(output->out).at("cpu");
  };
  for (const kernels::Isa set : kernels::isas) {
    const std::string name(to_string(set));
    if (!kernels::is_supported(set)) {
      for (const char* command :
           {"devices", "plan mlp", "train mlp --data synthetic --steps 1", "reproduce step-peak"}) {
        const auto output = run(std::string(command) + " --isa " + name);
        INFO(command << ": " << output->error);
        CHECK(output->status == 2);
        CHECK(output->error.find("--isa: '" + name + "' is not on this machine, which has generic") !=
              std::string::npos);
      }
      continue;
    }
    const auto cpu = cpu_of("--cpu-dot none --threads 3 --isa " + name);
    CHECK(cpu.at("isa") == name);
    CHECK(cpu.at("threads") == 3);
    CHECK(cpu.at("compute") ==
          name + ", bf16 converted, int8 on " + (set == kernels::Isa::generic ? "generic" : "avx2") + ", 3 threads");
    CHECK(cpu.at("units").at("bf16").at("gemm").at("on") == "converted");
  }
  const auto cpu = cpu_of("");
  for (const auto& [dtype, key] : {std::pair{DType::bf16, "bf16_units"}, {DType::i8, "int8_units"}}) {
    for (const kernels::DotUnit unit : {kernels::DotUnit::avx512, kernels::DotUnit::amx}) {
      const auto& list = cpu.at("units").at(key);
      const bool is_listed = std::find(list.begin(), list.end(), to_string(unit)) != list.end();
      CHECK(is_listed == kernels::is_supported(unit, dtype));
    }
  }
  CHECK(run("devices")->out.find("uses " + cpu.at("compute").get<std::string>()) != std::string::npos);

  // THIMBLE_UNITS counts if no flag is given; empty counts as unset.
  const char* const set = std::getenv("THIMBLE_UNITS");
  const std::string before = set != nullptr ? set : "";
  const auto compute = [&](const char* units, const std::string& flags) {
    ::setenv("THIMBLE_UNITS", units, 1);
    return cpu_of(flags).at("compute");
  };
  CHECK(compute("", "") == compute("auto", ""));
  CHECK(compute("none", "") == compute("", "--cpu-dot none"));
  CHECK(compute("none", "--cpu-dot auto") == compute("auto", ""));
  ::setenv("THIMBLE_UNITS", "neon", 1);
  const auto refused = run("devices");
  CHECK(refused->status == 2);
  CHECK(refused->error.find("THIMBLE_UNITS: 'neon'") != std::string::npos);
  set != nullptr ? ::setenv("THIMBLE_UNITS", before.c_str(), 1) : ::unsetenv("THIMBLE_UNITS");
}

TEST_CASE("program: a plan and a run under a forced instruction set", "[program][units]") {
  const files_test::TemporaryFolder folder;
  const auto run = [&](const std::string& arguments) { return program_test::run(folder, arguments); };
  if (!run("--version")) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  const auto output =
      run("train mlp --batch 4 --steps 2 --json --isa generic --cpu-dot none --threads 1 --data synthetic");
  INFO(output->error);
  REQUIRE(output->status == 0);
  const auto json = nlohmann::json::parse(output->out);
  CHECK(json.at("predicted_peak_bytes") == json.at("measured_peak_bytes"));
  CHECK(run("plan mlp --batch 4 --isa generic --threads 2")->status == 0);
  for (const char* wrong : {"--isa sse", "--cpu-dot fp8", "--threads 0", "--threads two"}) {
    INFO(wrong);
    const auto refused = run(std::string("plan mlp ") + wrong);
    CHECK(refused->status == 2);
    CHECK(refused->error.find(std::string(wrong).substr(0, std::string(wrong).find(' '))) != std::string::npos);
  }
}

TEST_CASE("program: a variable of the environment is read or refused by name", "[program][units]") {
  const files_test::TemporaryFolder folder;
  const char* const program = std::getenv("THIMBLE_PROGRAM");
  if (program == nullptr) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  const auto run = [&](const std::string& variables, const std::string& arguments) {
    const std::string line =
        variables + " '" + program + "' " + arguments + " > '" + (folder / "out") + "' 2> '" + (folder / "error") + "'";
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const auto threads = [&](const std::string& variables, const std::string& flags = "") {
    REQUIRE(run(variables, "devices --json " + flags) == 0);
    return nlohmann::json::parse(files_test::read_text_file(folder / "out")).at("cpu").at("threads").get<int>();
  };
  CHECK(threads("OMP_NUM_THREADS=3") == 3);
  CHECK(threads("OMP_NUM_THREADS=4,2") == 4);
  CHECK(threads("OMP_NUM_THREADS=") == threads("env -u OMP_NUM_THREADS"));
  CHECK(threads("OMP_NUM_THREADS=abc", "--threads 2") == 2);
  for (const char* const command :
       {"devices", "plan mlp --batch 4", "train mlp --data synthetic --steps 1 --batch 4"}) {
    INFO(command);
    CHECK(run("OMP_NUM_THREADS=abc", command) == 2);
    CHECK(files_test::contains(files_test::read_text_file(folder / "error"),
                               "OMP_NUM_THREADS: expected a number of threads from 1 to 1024, or a list of them, got "
                               "'abc'"));
  }
  CHECK(run("OMPI_COMM_WORLD_SIZE=2 THIMBLE_MODULES=/none", "train mlp --data synthetic --steps 1 --batch 4") != 0);
  CHECK(files_test::contains(files_test::read_text_file(folder / "error"),
                             "there is no module for it: /none/thimble_openmpi.so. It is built"));
  for (const char* const variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    INFO(variable);
    CHECK(run(std::string(variable) + "=two", "train mlp --data synthetic --steps 1 --batch 4") == 2);
    CHECK(files_test::contains(files_test::read_text_file(folder / "error"),
                               std::string(variable) + ": expected a number of ranks, as a launcher sets it, got "
                                                       "'two'"));
  }
}

// ---- `thimble` and devices: `--offload` and the device of the tensors, and only real devices are measured.

using files_test::contains;
using files_test::TemporaryFolder;

TEST_CASE("program: a plan for a GPU offloads to the host's pinned memory", "[program][offload]") {
  const TemporaryFolder folder;
  const std::string plan = "plan char-gpt --layers 4 --width 48 --heads 2 --seq 64 --batch 4 --json --device cuda ";
  const auto plain = program_test::run(folder, plan);
  if (!plain) return;
  CHECK(plain->status == 0);
  const nlohmann::json whole = nlohmann::json::parse(plain->out);
  CHECK(whole.at("tier_bytes") == 0);
  const auto peak = whole.at("peak_bytes").get<std::size_t>();
  const auto away =
      program_test::run(folder, plan + "--offload host --offload-optimizer --offload-gradients --budget " +
                                    std::to_string(peak - (std::size_t{2} << 20)));
  CHECK(away->status == 0);
  const nlohmann::json told = nlohmann::json::parse(away->out);
  CHECK(told.at("peak_bytes").get<std::size_t>() < peak);
  CHECK(told.at("tier_bytes").get<std::size_t>() >=
        told.at("offloaded_bytes").get<std::size_t>() + (std::size_t{2} << 20));
  CHECK(contains(told.at("cost_model").get<std::string>(), "h100-80gb"));
}

TEST_CASE("program: a place that a device's tensors cannot wait in, a device that measures nothing",
          "[program][offload]") {
  const TemporaryFolder folder;
  const std::string plan = "plan char-gpt --layers 1 --width 16 --heads 2 --seq 8 ";
  struct Row {
    std::string arguments, error;
  };
  const std::string out = folder / "report";
  for (const Row& row :
       {Row{plan + "--device cuda --offload /var/tmp",
            "--offload: '/var/tmp' for cuda:0, whose tensors wait in the host's pinned memory; expected host"},
        {plan + "--offload host", "--offload: host is for --device cuda; expected a folder on a disk"},
        {plan + "--device cuda --offload-optimizer", "needs --offload FOLDER, on a GPU --offload host"},
        {plan + "--device cuda --profile", "--profile: operators are timed on the cpu"},
        {"reproduce known-schedules --quick --device 'dry(cuda)' --out '" + out + "'",
         "--device: expected cpu, cuda or cuda:N ('thimble plan' runs dry), got 'dry(cuda)'"},
        {"reproduce known-schedules --quick --device 'dry(cpu)' --out '" + out + "'",
         "--device: expected cpu, cuda or cuda:N ('thimble plan' runs dry), got 'dry(cpu)'"},
        {"reproduce known-schedules --quick --device tpu --out '" + out + "'",
         "--device: expected cpu, cuda or cuda:N, got 'tpu'"}}) {
    INFO(row.arguments);
    const auto refused = program_test::run(folder, row.arguments);
    if (!refused) return;
    CHECK(refused->status == 2);
    CHECK(contains(refused->error, row.error));
    CHECK(refused->out.empty());
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

// ---- `thimble devices` with a CUDA device: its report for each. Runs on a GPU if there is one, else on
// tests/emulated.

using thimble::testing::has_cuda;

TEST_CASE("cuda_devices: memory, capability and driver of each GPU", "[cuda][program]") {
  if (!has_cuda()) return;
  CLI::App program;
  thimble::bench::add_devices(program);
  std::ostringstream text;
  std::streambuf* const before = std::cout.rdbuf(text.rdbuf());
  try {
    program.parse("devices --json");
  } catch (...) {
    std::cout.rdbuf(before);
    throw;
  }
  std::cout.rdbuf(before);
  const auto json = nlohmann::json::parse(text.str());
  CHECK(json["cuda"]["built"] == true);
  CHECK(json["cuda"]["found"] == true);
  CHECK_FALSE(json["cuda"].contains("why"));
  REQUIRE(json["cuda"]["devices"].size() >= 1);
  int number = 0;
  for (const auto& gpu : json["cuda"]["devices"]) {
    CHECK(gpu["device"] == "cuda:" + std::to_string(number++));
    CHECK_FALSE(gpu["name"].get<std::string>().empty());
    CHECK(gpu["memory_bytes"].get<std::uint64_t>() >= gpu["free_bytes"].get<std::uint64_t>());
    CHECK(gpu["memory_bytes"].get<std::uint64_t>() > 0);
    CHECK(gpu["multiprocessors"].get<int>() > 0);
    for (const char* const version : {"capability", "driver", "runtime"}) {
      INFO(version);
      std::istringstream number_of(gpu[version].get<std::string>());
      int major = 0, minor = -1;
      char point = 0;
      number_of >> major >> point >> minor;
      CHECK((major > 0 && point == '.' && minor >= 0 && number_of.eof()));
    }
  }
}
