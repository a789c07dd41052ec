// --isa, --cpu-dot and --threads from outside: what is set, what `thimble devices` says, and statuses.

#include <nlohmann/json.hpp>

#include <thimble/core/kernels/cpu/base/units.h>

#include "support/catch.h"
#include "support/files.h"
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

  // THIMBLE_UNITS, where no flag is given; empty is as good as unset.
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
