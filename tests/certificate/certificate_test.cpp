// Every memory technique gives the bits of the plain run.

#include <string>
#include <vector>

#include <thimble/nn/fit/fit.h>

#include "certificate_check.h"
#include "certificate_nets.h"
#include "support/catch.h"
#include "support/offload_data.h"

using namespace thimble;
using namespace thimble::certificate;

namespace {

/// Calls body(certifier) for every net on 1 and 2 threads.
template <class F>
void for_each_net(F&& body) {
  const auto run = [&](const char* name, Certifier certifier) {
    for (const int threads : {1, 2}) {
      const ThreadScope scope(threads);
      INFO(name << ", " << threads << " threads");
      body(certifier);
    }
  };
  run("convolutions", Certifier(conv_net()));
  run("transformer", Certifier(transformer()));
}

bool has_disk() { return !offload_test::disk_folder().empty(); }

}  // namespace

TEST_CASE("certificate: the plain run repeats itself", "[certificate]") {
  for_each_net([](Certifier& certifier) {
    const Training training = train(certifier.net(), {});
    CHECK(training.trajectory == train(certifier.net(), {}).trajectory);
    CHECK(compare(training.trajectory, train(certifier.net(), {.clip_norm = 1e-3}).trajectory).size() > 20);
    check_certificate(certifier, {.name = "none"});
  });
}

TEST_CASE("certificate: segments of the program", "[certificate]") {
  for_each_net([](Certifier& certifier) {
    for (const FatePolicy policy : {drop_all, keep_costly}) {
      const std::string kept = policy == drop_all ? ", all dropped" : ", what is costly kept";
      for (const std::size_t k : {1, 2, 3}) {
        check_segments(certifier, {.name = "every " + std::to_string(k) + kept, .forward = every_kth(k, policy)});
      }
      check_certificate(certifier, {.name = "one" + kept, .forward = every_kth(100, policy)});
      check_segments(certifier, {.name = "square root" + kept, .forward = square_root(policy)});
      check_segments(certifier, {.name = "nested" + kept, .forward = nested(policy)});
    }
    check_segments(certifier, {.name = "nested, clipped", .forward = nested(), .clip_norm = 0.1});
  });
}

TEST_CASE("certificate: random plans of the tape", "[certificate]") {
  std::uint64_t seed = 1;
  for_each_net([&](Certifier& certifier) {
    std::size_t with_recomputed = 0;
    for (const auto& plan : draw_plans(certifier.net(), {}, 20, seed++)) {
      const Technique technique{.name = "random plan of seed " + std::to_string(seed - 1), .plan = plan};
      with_recomputed += check_certificate(certifier, technique).figures.recomputed > 0;
    }
    CHECK(with_recomputed >= 18);
  });
}

TEST_CASE("certificate: plans of a planner", "[certificate]") {
  // Peaks are counted in whole granules, so these nets are larger.
  std::size_t of_all = 0;
  for (const MakeNet& make : {conv_net({.samples = 120}), transformer({.samples = 120})}) {
    Certifier certifier(make);
    for (const int threads : {1, 2}) {
      const ThreadScope scope(threads);
      nn::Planner planner(make_runs(make, {}), cpu, nn::hardware("cpu"));
      constexpr std::size_t granule = std::size_t{2} << 20;
      std::size_t budgets = 0;
      for (std::size_t budget = planner.smallest().peak_bytes; planner.fit(budget).tape; budget += granule) {
        const nn::Plan& plan = planner.fit(budget);
        INFO(threads << " threads, " << budget << " bytes: " << plan.description);
        Technique technique{.name = "fit", .plan = plan.tape};
        technique.placement = plan.placement;
        technique.is_placed = !plan.placement.empty();
        check_segments(certifier, technique);
        ++budgets;
      }
      CHECK(budgets > 0);
      of_all += budgets;
    }
  }
  CHECK(of_all >= 6);
}

TEST_CASE("certificate: where blocks lie", "[certificate]") {
  for_each_net([](Certifier& certifier) {
    check_certificate(certifier, {.name = "placed", .is_placed = true});
    check_certificate(certifier, {.name = "moved", .moves_blocks = true});
    if (!has_disk()) return;
    check_certificate(certifier, {.name = "offloaded", .offloads = true});
    check_certificate(certifier, {.name = "state sent away", .sends_state = true});
    check_certificate(certifier, {.name = "gradients away", .offloads_gradients = true});
    check_certificate(certifier, {.name = "segments, gradients away, clipped, placed",
                                  .forward = square_root(),
                                  .clip_norm = 0.1,
                                  .is_placed = true,
                                  .offloads_gradients = true});
  });
}

TEST_CASE("certificate: parameters that are away between uses", "[certificate]") {
  if (!has_disk()) return;
  constexpr nn::FusedUpdate secured = nn::FusedUpdate::secured, unsecured = nn::FusedUpdate::unsecured;
  for_each_net([](Certifier& certifier) {
    check_certificate(certifier, {.name = "parameters away", .offloads_parameters = true});
    check_certificate(
        certifier,
        {.name = "clipped, placed, parameters away", .clip_norm = 0.1, .is_placed = true, .offloads_parameters = true});
    check_certificate(certifier, {.name = "fused, moved, parameters away",
                                  .fuses = unsecured,
                                  .moves_blocks = true,
                                  .offloads_parameters = true});
    check_segments(certifier, {.name = "segments, fused, placed, parameters away",
                               .forward = nested(),
                               .fuses = secured,
                               .is_placed = true,
                               .offloads_parameters = true});
    check_segments(certifier, {.name = "micro-batches, parameters away",
                               .forward = every_kth(2),
                               .micro_batches = 2,
                               .offloads_parameters = true});
    check_certificate(certifier, {.name = "everything away, clipped, placed",
                                  .clip_norm = 0.1,
                                  .is_placed = true,
                                  .offloads = true,
                                  .offloads_parameters = true,
                                  .offloads_gradients = true});
    for (const auto& plan : draw_plans(certifier.net(), {}, 5, 70)) {
      check_certificate(certifier, {.name = "random plan, parameters away", .plan = plan, .offloads_parameters = true});
    }
  });
}

TEST_CASE("certificate: when parameters are updated", "[certificate]") {
  for_each_net([](Certifier& certifier) {
    check_certificate(certifier, {.name = "fused", .fuses = nn::FusedUpdate::unsecured});
    check_certificate(certifier, {.name = "fused, placed", .fuses = nn::FusedUpdate::secured, .is_placed = true});
    check_segments(certifier, {.name = "micro-batches", .forward = every_kth(2), .micro_batches = 2});
  });
}

TEST_CASE("certificate: several techniques at once", "[certificate]") {
  std::uint64_t seed = 100;
  for_each_net([&](Certifier& certifier) {
    constexpr nn::FusedUpdate secured = nn::FusedUpdate::secured, unsecured = nn::FusedUpdate::unsecured;
    const auto random_plan = draw_plans(certifier.net(), {}, 1, ++seed).front();
    const auto random_plan_of_two = draw_plans(certifier.net(), {.micro_batches = 2}, 1, seed).front();
    std::vector<Technique> techniques{
        {.name = "segments, fused, placed", .forward = nested(), .fuses = secured, .is_placed = true},
        {.name = "segments, fused, moved", .forward = square_root(), .fuses = unsecured, .moves_blocks = true},
        {.name = "random plan, fused, placed", .plan = random_plan, .fuses = secured, .is_placed = true},
        {.name = "random plan, fused, moved", .plan = random_plan, .fuses = unsecured, .moves_blocks = true},
        {.name = "random plan, micro-batches, clipped, placed",
         .plan = random_plan_of_two,
         .micro_batches = 2,
         .clip_norm = 0.1,
         .is_placed = true},
        {.name = "segments, micro-batches, moved", .forward = nested(), .micro_batches = 2, .moves_blocks = true},
        {.name = "segments that keep some, micro-batches, placed",
         .forward = every_kth(2, keep_costly),
         .micro_batches = 2,
         .is_placed = true}};
    if (has_disk()) {
      const auto random_plan_away = draw_plans(certifier.net(), {.offloads = true}, 1, seed).front();
      techniques.push_back(
          {.name = "segments, moved, offloaded", .forward = square_root(), .moves_blocks = true, .offloads = true});
      techniques.push_back({.name = "random plan, fused, placed, offloaded",
                            .plan = random_plan_away,
                            .fuses = secured,
                            .is_placed = true,
                            .offloads = true,
                            .sends_state = true});
      techniques.push_back({.name = "micro-batches, offloaded", .micro_batches = 2, .offloads = true});
    }
    for (const Technique& technique : techniques) check_certificate(certifier, technique);
  });
}

TEST_CASE("certificate: a head that makes all logits", "[certificate]") {
  Certifier certifier(transformer({.has_chunked_head = false}));
  check_segments(certifier, {.name = "segments", .forward = every_kth(1)});
  check_segments(certifier, {.name = "nested, fused", .forward = nested(), .fuses = nn::FusedUpdate::unsecured});
  for (const auto& plan : draw_plans(certifier.net(), {}, 5, 1000)) {
    check_certificate(certifier, {.name = "random plan", .plan = plan, .is_placed = true});
  }
}
