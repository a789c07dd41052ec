// thimble plan --graph, as a user calls it, and as PyTorch does.

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using program_test::Output;
using program_test::run;

constexpr const char* toy = R"({"version": 1, "name": "toy <net>", "values": [{"bytes": 100, "given": true},
  {"name": "h", "bytes": 4000, "gradient_bytes": 4000}, {"name": "a", "bytes": 4000, "gradient_bytes": 4000}],
  "nodes": [{"name": "fc", "inputs": [0], "outputs": [1], "seconds": 0.002, "backward_reads": [0]},
  {"name": "relu", "inputs": [1], "outputs": [2], "seconds": 0.001, "backward_reads": [1]}]})";

}  // namespace

TEST_CASE("program plan --graph: text, JSON and the page", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::string file = folder / "toy.json", page = folder / "toy.html";
  files_test::write_text_file(file, toy);
  const std::optional<Output> text = run(folder, "plan --graph '" + file + "' --html '" + page + "'");
  if (!text) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(text->status == 0);
  // h and the gradients of a and h: the backward of relu.
  CHECK(files_test::contains(text->out, "peak                                  12,000"));
  const std::string html = files_test::read_text_file(page);
  CHECK(files_test::contains(html, "toy &lt;net&gt;"));
  CHECK(files_test::contains(html, "recomputed, in order: 0 nodes"));
  const Output json = *run(folder, "plan --graph '" + file + "' --json --budget 12096");
  REQUIRE(json.status == 0);
  CHECK(nlohmann::json::parse(json.out)["peak_bytes"] == 12'000);
  CHECK(nlohmann::json::parse(json.out)["kept"] == nlohmann::json({1}));

  const Output small = *run(folder, "plan --graph '" + file + "' --budget 1000");
  CHECK(small.status == 3);
  CHECK(files_test::contains(small.error, "no plan of the graph keeps 1000 B; the smallest needs 11.81 KiB (12"));
  const Output both = *run(folder, "plan gpt2 --graph '" + file + "'");
  CHECK(both.status == 2);
  CHECK(files_test::contains(both.error, "MODEL: expected a model to plan, got --graph"));
  CHECK(files_test::contains(run(folder, "plan --budget 1MiB")->error, "expected MODEL, got none"));
  files_test::write_text_file(file, "{\"version\": 2}");
  CHECK(run(folder, "plan --graph '" + file + "'")->status == 2);
}

TEST_CASE("program plan --graph: PyTorch carries plans out", "[program]") {
  const char* const program = std::getenv("THIMBLE_PROGRAM");
  if (program == nullptr) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  const int status = files_test::run_oracle("torch_plan_check.py", "'" + std::string(program) + "'");
  if (status == 77) return thimble_test::skip("THIMBLE_PYTHON names no Python with PyTorch");
  CHECK(status == 0);
}
