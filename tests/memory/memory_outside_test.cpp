// The bytes of a process outside its arena: the formula, and a real process.

#include <thimble/memory/process/outside.h>

#include <bit>
#include <vector>

#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/fit/process_budget.h>

#include "support/catch.h"
#include "support/sanitizer.h"
#include "support/skip.h"

using namespace thimble;

namespace {

constexpr std::size_t outside_KiB = 1024, outside_MiB = 1024 * outside_KiB;

[[maybe_unused]] models::RunOptions small_training(const char* model, std::int64_t steps) {
  models::RunOptions options;
  options.setup.model = model;
  options.setup.batch = 4;
  if (std::string(model) == "char-gpt") {
    options.setup.sizes.layers = 2, options.setup.sizes.heads = 2;
    options.setup.sizes.width = 32, options.setup.sizes.sequence = 16;
  } else {
    options.setup.sizes.image = 28;
  }
  options.data = "synthetic";
  options.steps = steps;
  options.eval_batches = 2;
  return options;
}

}  // namespace

TEST_CASE("outside: the formula, term by term", "[outside]") {
  memory::ProcessBase base;
  base.code_bytes = 7 * outside_MiB;
  base.writable_bytes = 5 * outside_MiB;
  const memory::OutsideBytes least = memory::outside_bytes(base, {});
  CHECK(least.code == 7 * outside_MiB);
  CHECK(least.heap == 6 * outside_MiB);  // plus 1 MiB for later growth
  CHECK(least.total() == 13 * outside_MiB);
  const memory::OutsideBytes all = memory::outside_bytes(
      base, {.threads = 3, .tier_threads = 2, .nodes = 100, .staging = 2 * outside_MiB, .data = 4 * outside_MiB});
  CHECK(all.threads == 2 * (worker_stack_bytes + memory::thread_stack_bytes() + 2 * 192 * outside_KiB));
  CHECK(memory::thread_stack_bytes() >= 64 * outside_KiB);
  CHECK(all.nodes == 200 * outside_KiB);
  CHECK(all.staging == 2 * outside_MiB);
  CHECK(all.data == 4 * outside_MiB);
  CHECK(all.heap == 2 * outside_MiB);  // the base included the data
  CHECK(all.total() == 7 * outside_MiB + all.heap + all.threads + all.nodes + all.staging + all.data);
  const memory::OutsideBytes later = memory::outside_bytes(base, {.data = 4 * outside_MiB, .holds_data = false});
  CHECK(later.heap == 6 * outside_MiB);
  CHECK(memory::outside_bytes(base, {.data = 9 * outside_MiB}).heap == outside_MiB);  // data within the base at most
  CHECK(to_string(later) == "17.00 MiB (code 7.00 MiB, heap 6.00 MiB, data 4.00 MiB)");
}

TEST_CASE("outside: each tier has its threads, and files their staging buffer", "[outside]") {
  for (unsigned bits = 0; bits < 32; ++bits) {
    INFO(bits);
    models::Setup setup;
    setup.offload.optimizer = bits & 1, setup.offload.parameters = bits & 2, setup.offload.gradients = bits & 4;
    if (bits & 8) setup.offload.to = "FOLDER";
    const bool has_budget = bits & 16, has_files = bits & 1;
    const memory::OutsideFacts facts = models::outside_facts(setup, has_budget, has_files, 5, 7);
    const int tiers = std::popcount(bits & 7) + ((bits & 24) == 24 ? 1 : 0);  // plans with a budget have one, too
    CHECK(facts.tier_threads == tiers * memory::FileTier::Options().workers);
    CHECK((facts.nodes == 5 && facts.data == 7 && facts.staging == (has_files ? nn::file_staging_bytes : 0)));
  }
}

TEST_CASE("outside: what differs is said", "[outside]") {
  models::TrainReport report;
  report.predicted_peak_bytes = report.measured_peak_bytes = 100;
  CHECK(report.differences().empty());
  report.measured_peak_bytes = 90;
  CHECK(report.differences() == "the arena's peak measured 90 B, predicted 100 B");
  report.skipped_steps = 1;  // a skipped update needs less
  CHECK(report.differences().empty());
  report.measured_peak_bytes = 110;
  CHECK_FALSE(report.differences().empty());
  report.measured_peak_bytes = 100;
  report.outside.code = 10;
  report.process_peak_bytes = 110;
  CHECK(report.differences().empty());
  report.process_peak_bytes = 111;
  CHECK(report.differences() == "the process measured 111 B, promised 110 B");
  report.process_peak_bytes = 110;
  report.process_budget_bytes = 109;
  CHECK(report.differences() == "the process measured 110 B, its budget 109 B");
  report.process_budget_bytes = 110;
  report.predicted_tier_bytes = 20, report.measured_tier_bytes = 21;
  CHECK(report.differences() == "the offloaded bytes measured 21 B, predicted 20 B");
  report.measured_tier_bytes = 20;
  report.ranks.resize(2);
  report.ranks[1].predicted_peak_bytes = 50, report.ranks[1].measured_peak_bytes = 49;
  CHECK(report.differences().empty());
  report.skipped_steps = 0;
  CHECK(report.differences() == "the arena's peak of rank 1 measured 49 B, predicted 50 B");
  report.skipped_steps = 1, report.ranks[1].measured_peak_bytes = 51;
  CHECK(report.differences() == "the arena's peak of rank 1 measured 51 B, predicted 50 B");
}

#ifndef THIMBLE_TEST_HAS_SANITIZER
TEST_CASE("outside: a watch sees what the process took since, and no more", "[outside]") {
  const memory::ProcessWatch before;
  const std::size_t quiet = before.peak_bytes();
  if (quiet == 0) return thimble_test::skip("/proc/self/clear_refs cannot be written here");
  constexpr std::size_t bytes = 24 * outside_MiB;
  {
    const std::vector<char> heap(bytes, 1);
    CHECK(before.peak_bytes() >= quiet + bytes - outside_MiB);
  }
  const memory::ProcessWatch after;
  CHECK(after.peak_bytes() < quiet + bytes / 2);  // the earlier peak is over
  CHECK(after.base().writable_bytes + after.base().code_bytes >= after.peak_bytes());
}

TEST_CASE("outside: a run stays within its promise, over many steps as over few", "[outside]") {
  for (const char* model : {"char-gpt", "mlp"}) {
    INFO(model);
    std::vector<std::size_t> growth;
    for (const std::int64_t steps : {std::int64_t{20}, std::int64_t{400}}) {
      models::Engine engine(small_training(model, steps));
      REQUIRE(engine.plan().nodes >= 4);
      REQUIRE(engine.plan().is_steady);
      const models::TrainReport report = engine.run();
      CHECK(report.differences().empty());
      CHECK(report.outside.nodes == engine.plan().nodes * 2 * outside_KiB);
      if (report.process_peak_bytes == 0) return thimble_test::skip("/proc/self/clear_refs cannot be written here");
      CHECK(report.process_peak_bytes <= report.predicted_peak_bytes + report.outside.total());
      CHECK(report.process_peak_bytes >= report.measured_peak_bytes);
      // How much code gets touched varies; the run's own bytes do not grow with its steps.
      const std::size_t known = report.measured_peak_bytes + report.outside.code + report.outside.heap;
      growth.push_back(report.process_peak_bytes > known ? report.process_peak_bytes - known : 0);
    }
    CHECK(growth[1] <= growth[0] + 256 * outside_KiB);
  }
}

TEST_CASE("outside: a budget for the process leaves the arena the rest, or says what is missing", "[outside]") {
  models::RunOptions options = small_training("char-gpt", 3);
  models::Engine free(options);
  const memory::OutsideBytes outside = memory::outside_bytes(memory::ProcessBase::measure(), free.outside_facts());
  options.process_budget_bytes = outside.total() + 4 * free.plan().peak_bytes;
  models::Engine planned(options);
  planned.plan();
  CHECK(planned.options().budget_bytes > 0);
  CHECK(planned.options().budget_bytes < options.process_budget_bytes);
  const models::TrainReport report = planned.run();
  CHECK(report.differences().empty());
  CHECK(report.process_budget_bytes == options.process_budget_bytes);
  CHECK(report.loss_last == free.run().loss_last);
  options.process_budget_bytes = outside.code;
  CHECK_THROWS_AS(models::Engine(options).plan(), nn::BudgetError);
  memory::OutsideBytes part;
  part.heap = 60;
  CHECK(nn::arena_budget(100, part) == 40);
  CHECK_THROWS_MATCHES(nn::arena_budget(60, part), nn::BudgetError,
                       Catch::Predicate<nn::BudgetError>([](const auto& e) { return e.minimum_bytes() == 61; }));
}
#endif
