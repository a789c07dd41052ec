// Offloading from a GPU to the host's pinned memory, in the tier itself and in every part of the program that uses one.
// On a GPU if there is one; in a build without CUDA on tests/emulated.

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/memory/offload/pinned_tier.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/summary.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>

#include "emulated/library.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"
#include "support/operator_table.h"
#include "support/refusal.h"
#include "support/trained.h"

using namespace thimble;
using files_test::contains;
using refusal_test::refusal;
using thimble::testing::has_cuda;
using trained_test::run;
using trained_test::Run;

namespace cuda_offload_test {

constexpr std::size_t kib = 1024, mib = 1024 * kib;

std::vector<memory::Device> devices() {
  return has_cuda() ? std::vector{dry(cuda()), cuda()} : std::vector{dry(cuda())};
}

models::RunOptions gpt(memory::Device device) {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 6;
  options.setup.sizes.layers = 4, options.setup.sizes.heads = 2, options.setup.sizes.width = 32;
  options.setup.sizes.sequence = 64;
  options.data = "synthetic";
  options.steps = 2;
  options.eval_batches = 1;
  options.device = device;
  return options;
}

void check_predicted(const models::TrainReport& report) {
  CHECK(report.predicted_peak_bytes == report.measured_peak_bytes);
  CHECK(report.predicted_tier_bytes == report.measured_tier_bytes);
}

}  // namespace cuda_offload_test

using namespace cuda_offload_test;

TEST_CASE("pinned tier: grows by slabs that its writes alone decide, in books of their own", "[cuda][offload]") {
  for (const memory::Device device : devices()) {
    INFO(to_string(device));
    const std::shared_ptr<memory::Ledger>& books = pinned_ledger(device);
    const std::size_t before = books->bytes(), arena = memory::default_stack(device).ledger->bytes();
    const Tensor large = zeros({static_cast<std::int64_t>(5 * mib)}, DType::u8, device);
    const Tensor small = zeros({700}, DType::u8, device);
    {
      const PathScope path("somewhere");
      const auto tier = memory::make_tier(device);
      const auto committed = [&] { return static_cast<std::size_t>(tier->statistics().committed_bytes); };
      CHECK(tier->device() == device);
      CHECK(committed() == 0);
      std::vector<memory::Offloaded> away;
      away.push_back(memory::offload(small, tier));
      CHECK(committed() == 2 * mib);
      away.push_back(memory::offload(large, tier));
      CHECK(committed() == 8 * mib);  // a slab for the slot, in multiples of 2 MiB
      away.push_back(memory::offload(small, tier));
      CHECK(committed() == 8 * mib);  // after the first
      away.push_back(memory::offload(large, tier));
      CHECK(committed() == 16 * mib);  // doubles the committed bytes
      CHECK(books->bytes() - before == committed());
      CHECK(books->bytes(memory::Category::workspace, "offload") == books->bytes());
      for (memory::Offloaded& tensor : away) tensor.drop();
      away.push_back(memory::offload(large, tier));
      CHECK(committed() == 16 * mib);  // reuses a slot
      CHECK(contains(memory::summary(device), "pinned memory: 16.00 MiB"));
    }
    CHECK(books->bytes() == before);
    CHECK(memory::default_stack(device).ledger->bytes() == arena + large.bytes() + small.bytes());
  }
}

TEST_CASE("pinned tier: a bound, and a host that has no more, leave what was there as it is", "[cuda][offload]") {
  for (const memory::Device device : devices()) {
    memory::PinnedTier tier(device, 3 * mib);
    const Tensor t = zeros({static_cast<std::int64_t>(2 * mib)}, DType::u8, device);
    const auto write = [&](std::size_t bytes) {
      if (device.is_dry) return tier.write(nullptr, bytes);
      const memory::Pin pin(t);
      const memory::Ticket ticket = tier.write(pin.data(), bytes);
      tier.wait(ticket);
      return ticket;
    };
    const memory::Ticket first = write(2 * mib);
    CHECK(
        contains(refusal<Error>([&] { write(2 * mib); }), "within the capacity of 3145728, 2097152 of them are taken"));
    write(1 * mib);  // the last slab is the rest of the bound
    CHECK(tier.statistics().committed_bytes == 3 * mib);
    CHECK_THROWS_AS(write(512), FileError);
    tier.drop(first);
    write(2 * mib);
    CHECK(tier.statistics().live_bytes == 3 * mib);
  }
  CHECK_THROWS_AS(memory::PinnedMemory(cpu), DeviceError);
  CHECK_THROWS_AS(pinned_ledger(dry(cpu)), DeviceError);
  CHECK(contains(refusal<Error>([] { memory::make_tier(dry(cuda()), {.folder = "/var/tmp"}); }), "give no folder"));
}

TEST_CASE("cuda offload: every flag keeps the run's bits, in the bytes that were predicted", "[cuda][offload][slow]") {
  if (!has_cuda()) return;
  const files_test::TemporaryFolder folder;
  models::RunOptions here = gpt(cuda());
  here.save = folder / "here";
  const Run free = run(here);
  check_predicted(free.report);
  CHECK(free.report.measured_tier_bytes == 0);
  const std::size_t budget = free.report.measured_peak_bytes - 2 * mib;
  struct Row {
    const char* name;
    bool optimizer, gradients;
    std::size_t budget_bytes;
  };
  for (const Row& row : {Row{"saved tensors", false, false, budget}, Row{"optimizer", true, false, 0},
                         Row{"gradients", false, true, 0}, Row{"all", true, true, budget - 2 * mib}}) {
    INFO(row.name);
    models::RunOptions options = gpt(cuda());
    options.setup.offload.to = "host";
    options.setup.offload.optimizer = row.optimizer;
    options.setup.offload.gradients = row.gradients;
    options.budget_bytes = row.budget_bytes;
    options.save = folder / row.name;
    const Run away = run(options);
    check_predicted(away.report);
    CHECK(away.report.measured_tier_bytes > 0);
    CHECK(away.report.measured_tier_bytes >= away.report.offloaded_bytes);
    CHECK((away.report.offloaded_bytes > 0) == (row.budget_bytes > 0));
    if (row.optimizer) CHECK(away.report.measured_tier_bytes >= away.report.state_bytes);
    if (row.budget_bytes > 0) CHECK(away.report.measured_peak_bytes <= row.budget_bytes);
    CHECK(away.losses == free.losses);
    CHECK(away.report.evaluation->loss == free.report.evaluation->loss);
    CHECK(files_test::read_text_file(options.save) == files_test::read_text_file(here.save));
  }
}

TEST_CASE("cuda offload: a plan for a GPU that is not there has the bytes of the run", "[cuda][offload]") {
  models::RunOptions options;
  options.setup = gpt(cuda()).setup;
  options.setup.sizes.vocabulary = 40;
  options.device = cuda();
  options.budget_bytes = std::size_t{1} << 40;
  const std::size_t most = models::make_plan(options).keep_everything_bytes;
  options.budget_bytes = most - 4 * mib;
  options.setup.offload.to = "host", options.setup.offload.optimizer = options.setup.offload.gradients = true;
  const models::PlanReport report = models::make_plan(options);
  REQUIRE(report.is_feasible);
  const nn::Plan& plan = report.plan;
  CHECK(report.keep_everything_bytes <= most);
  CHECK(plan.offloaded_bytes > 0);
  CHECK(plan.tier_bytes > plan.offloaded_bytes);
  CHECK(plan.peak_by_category[static_cast<std::size_t>(memory::Category::workspace)] <
        memory::FileTier::workspace_bytes({}));  // the device's workspace holds nothing of the tiers
  if (!has_cuda()) return;
  const nn::MakeRun planned = [&](memory::Device device) {
    auto run = report.run(device);
    plan.apply(run->options(), device);
    return run;
  };
  const nn::MemoryProfile measured = nn::profile_training(cuda(), planned, 3, false, plan.placement);
  CHECK(measured.peak_bytes == plan.peak_bytes);
  CHECK(measured.tier_bytes == plan.tier_bytes);
}

TEST_CASE("cuda offload: a host without so much pinned memory is told of, and the step can be tried again",
          "[cuda][offload]") {
  if (!testing::is_emulated()) return;  // a GPU's host has no adjustable bound
  const memory::Stack stack = memory::make_resource(cuda());
  const ResourceScope scope(stack.top);
  models::Setup setup = gpt(cuda()).setup;
  setup.sizes.layers = 1, setup.sizes.vocabulary = 40;
  setup.offload.to = "host", setup.offload.gradients = true;
  const auto train = models::zero_batch_run(setup)(cuda());
  {
    const emulated::PinnedBound none(0);
    CHECK(contains(refusal<Error>([&] { train->step(); }), "pinned memory"));
    CHECK(train->tier_bytes() == 0);
  }
  train->step();
  CHECK(train->tier_bytes() == 2 * mib);
}

TEST_CASE("cuda offload: where tensors can wait depends on their device", "[offload]") {
  models::Setup setup = gpt(cpu).setup;
  setup.offload.gradients = true;
  setup.offload.to = "/var/tmp";
  CHECK(contains(refusal<Error>([&] { models::planner_options(setup, cuda()); }),
                 "`offload`: '/var/tmp' for cuda:0, whose tensors wait in the host's pinned memory; expected host"));
  CHECK_THROWS_AS(models::zero_batch_run(setup)(dry(cuda())), ValueError);
  setup.offload.to = "host";
  CHECK(models::planner_options(setup, cuda()).spilling.offloads);
  CHECK(contains(refusal<Error>([&] { models::planner_options(setup, cpu); }), "host is for `device` cuda"));
  CHECK_THROWS_AS(models::zero_batch_run(setup)(dry(cpu)), ValueError);
  // Techniques that exclude offloaded gradients are not proposed with them.
  models::RunOptions plan;
  plan.setup = setup;
  plan.setup.sizes.layers = 1, plan.setup.sizes.vocabulary = 40;
  plan.device = cuda();
  plan.budget_bytes = 1;
  const models::PlanReport refused = models::make_plan(plan, {.prices_techniques = true});
  std::vector<std::string> proposed;
  for (const nn::LeverPrice& price : refused.techniques) proposed.push_back(price.options);
  CHECK(proposed == std::vector<std::string>{"", "`head` chunked", "`feed_forward` tiled",
                                             "`head` chunked `feed_forward` tiled", "`offloads_optimizer`",
                                             "`offloads_parameters`", "`offloads_parameters` `offloads_optimizer`"});
  setup.offload.to.clear();
  CHECK(contains(refusal<Error>([&] { models::zero_batch_run(setup)(dry(cuda())); }), "on a GPU `offload` host"));
}

TEST_CASE("cuda offload: a faster bus makes offloading cheaper, a GPU is planned with its own numbers", "[fit]") {
  CHECK(nn::hardware("h100-80gb").tier_bytes_per_s > nn::hardware("a100-40gb").tier_bytes_per_s);
  CHECK(nn::hardware("rtx-3060-12gb").tier_bytes_per_s > nn::hardware("cpu").tier_bytes_per_s);
  CHECK(nn::hardware_of_gpu("NVIDIA H200").name == "h200-141gb");
  CHECK(nn::hardware_of_gpu("NVIDIA A100-SXM4-40GB").name == "a100-40gb");
  CHECK(nn::hardware_of_gpu("NVIDIA GeForce RTX 4090").name == "rtx-4090-24gb");
  CHECK(nn::hardware_of_gpu("a GPU of its own").name == "h100-80gb");
  CHECK(nn::CostModel(nn::hardware_of_gpu("a GPU of its own")).source ==
        "h100-80gb: built-in rates of NVIDIA H100, 80 GiB, for the unknown GPU 'a GPU of its own'");
  CHECK(models::hardware_for({}, cuda()).name == "h100-80gb");
  CHECK(models::hardware_for({}, cpu).name == "cpu");
  CHECK(models::hardware_for({"cpu", false, ""}, cuda()).name == "cpu");
  CHECK_THROWS_AS(models::hardware_for({"abacus", false, ""}, cuda()), ValueError);

  models::Setup setup = gpt(cuda()).setup;
  setup.sizes.vocabulary = 40;
  setup.offload.to = "host";
  nn::Hardware bus = nn::hardware("h100-80gb"), disk = bus;
  disk.tier_bytes_per_s = nn::hardware("cpu").tier_bytes_per_s;
  const nn::PlannerOptions options = models::planner_options(setup, cuda());
  nn::Planner fast(models::zero_batch_run(setup), cuda(), bus, options);
  nn::Planner slow(models::zero_batch_run(setup), cuda(), disk, options);
  const std::size_t budget = std::max(fast.smallest().peak_bytes, slow.smallest().peak_bytes);
  CHECK(fast.fit(budget).step_s < slow.fit(budget).step_s);
}
