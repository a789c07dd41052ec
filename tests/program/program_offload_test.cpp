// `thimble` and devices: where `--offload` puts tensors of which device, and that only real devices are measured.

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"

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
