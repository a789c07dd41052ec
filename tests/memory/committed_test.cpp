// What committed bytes consist of: every table adds up to them.

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/memory/policies/committed.h>
#include <thimble/memory/summary.h>
#include <thimble/models/planning/planning.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;
using memory::CommittedParts;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

std::size_t sum_of(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}); }

void check_parts(const CommittedParts& parts, std::size_t live, std::size_t holes, std::size_t rounding) {
  CHECK(parts.live_bytes == live);
  CHECK(parts.hole_bytes == holes);
  CHECK(parts.rounding_bytes == rounding);
}

// The last number of every line of `text` between the lines that begin with these words, the first of them left out:
// "  gradient   1,024   1.00 KiB" is 1024, and so is "  gradient   1,024".
std::vector<std::size_t> column(const std::string& text, const std::string& from, const std::string& to) {
  std::vector<std::size_t> numbers;
  std::istringstream lines(text.substr(text.find(from)));
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, found;
    while (words >> word) {
      if (word.find_first_not_of("0123456789,") == std::string::npos) found = word;
    }
    REQUIRE_FALSE(found.empty());
    found.erase(std::remove(found.begin(), found.end(), ','), found.end());
    numbers.push_back(std::stoull(found));
    if (contains(line, to)) break;
  }
  return numbers;
}

models::PlanOptions small_gpt() {
  models::PlanOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 4;
  options.setup.sizes.layers = 3, options.setup.sizes.heads = 2, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 128;
  return options;
}

void check_plan(const models::PlanReport& report) {
  CHECK(report.committed.live_bytes == sum_of(report.plan.peak_by_category));
  CHECK(report.committed.total() == report.plan.peak_bytes);
  CHECK(report.committed.rounding_bytes < 2 * mib);  // of the CPU's granule
}

}  // namespace

TEST_CASE("committed: live bytes, holes and rounding are all there is", "[memory]") {
  check_parts(memory::committed_parts(5, 7, 10), 5, 2, 3);
  check_parts(memory::committed_parts(5, 5, 5), 5, 0, 0);
  check_parts(memory::committed_parts(5, 20, 10), 5, 5, 0);  // holes without pages
  check_parts(memory::committed_parts(0, 0, 10), 0, 0, 10);

  const memory::Stack stack = memory::make_resource(dry(cpu));
  memory::Block* const first = stack.top->allocate({.bytes = 1000});  // 1024 of the arena
  memory::Block* const hole = stack.top->allocate({.bytes = mib});
  memory::Block* const last = stack.top->allocate({.bytes = 3 * mib});
  stack.top->deallocate(hole, nullptr);
  check_parts(memory::committed_at_peak(stack), 1000 + 4 * mib, 24, 6 * mib - 1024 - 4 * mib);
  check_parts(memory::committed_now(stack), 1000 + 3 * mib, 24 + mib, 6 * mib - 1024 - 4 * mib);
  const std::string table = memory::committed_table(stack);
  INFO(table);
  CHECK(contains(table, " 24 B\n  + rounding"));
  CHECK(contains(table, "= committed"));
  CHECK(contains(table, "1.00 MiB (1048600 B)"));
  CHECK(contains(table, "6.00 MiB (6291456 B)"));
  stack.top->deallocate(first, nullptr);
  stack.top->deallocate(last, nullptr);
  stack.arena->trim();
  CHECK(memory::committed_now(stack).total() == 0);
  CHECK(memory::committed_at_peak(stack).total() == 6 * mib);
  CHECK(contains(memory::summary(dry(cpu)), "+ holes between blocks"));
}

TEST_CASE("committed: the categories of a plan, its holes and its rounding are its peak", "[fit]") {
  models::PlanOptions options = small_gpt();
  const models::PlanReport kept = models::make_plan(options);
  check_plan(kept);
  options.budget_bytes = (kept.minimum_bytes + kept.keep_everything_bytes) / 2;
  const models::PlanReport planned = models::make_plan(options);
  CHECK(planned.plan.tape != nullptr);
  check_plan(planned);
  options.budget_bytes = 1;  // the smallest plan
  check_plan(models::make_plan(options));
  options = small_gpt();
  options.setup.micro_batches = 2;
  options.setup.fuses_optimizer = false;
  check_plan(models::make_plan(options));
  options = small_gpt();
  options.is_inference = true;
  check_plan(models::make_plan(options));
}

TEST_CASE("committed: the columns that the program prints add up", "[program]") {
  const TemporaryFolder folder;
  const std::string model = "mlp --batch 4 --image 8 --width 64 ";
  const auto plan = program_test::run(folder, "plan " + model);
  if (!plan) {
    WARN("SKIPPED: THIMBLE_PROGRAM does not name the program");
    return;
  }
  REQUIRE(plan->status == 0);
  INFO(plan->out);
  std::vector<std::size_t> numbers = column(plan->out, "live bytes at the peak", "= peak (committed)");
  REQUIRE(numbers.size() > 4);
  CHECK(std::accumulate(numbers.begin(), numbers.end() - 1, std::size_t{0}) == numbers.back());

  const std::string run = "train " + model + "--data synthetic --steps 2 ";
  const auto train = program_test::run(folder, run);
  REQUIRE(train->status == 0);
  INFO(train->out);
  numbers = column(train->out, "  predicted peak", "rounding to granules");
  REQUIRE(numbers.size() > 4);
  CHECK(std::accumulate(numbers.begin() + 1, numbers.end(), std::size_t{0}) == numbers.front());  // the measured peak

  for (const std::string& line : {"plan " + model, run, run + "--budget 8MiB "}) {
    const auto out = program_test::run(folder, line + "--json");
    REQUIRE(out->status == 0);
    const auto json = nlohmann::json::parse(out->out);
    std::size_t sum = json["hole_bytes"].get<std::size_t>() + json["rounding_bytes"].get<std::size_t>();
    for (const auto& [name, bytes] : json["peak_by_category"].items()) sum += bytes.get<std::size_t>();
    CHECK(sum == json[line.starts_with("plan") ? "peak_bytes" : "measured_peak_bytes"].get<std::size_t>());
  }
}
