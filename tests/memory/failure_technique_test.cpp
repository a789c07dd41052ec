// Every allocation of a training step fails once, under every memory technique: the error is typed, the step leaves no
// trace, and a retry gives the bits of a step that never failed.

#include "certificate/certificate_check.h"
#include "certificate/certificate_nets.h"
#include "support/offload_data.h"

using namespace thimble;
using namespace thimble::certificate;

namespace {

MakeNet tiny_conv_net() { return conv_net({.is_tiny = true}); }
MakeNet tiny_transformer() { return transformer({.is_tiny = true}); }

/// check_walk() for both nets.
void check_walks(const Technique& technique, FailPlace place = FailPlace::tensors) {
  for (const MakeNet& make : {tiny_conv_net(), tiny_transformer()}) check_walk(make, technique, place);
}

}  // namespace

TEST_CASE("failure technique: segments of the program", "[failure][certificate]") {
  check_walks({.name = "none"});
  check_walks({.name = "every stage", .forward = every_kth(1)});
  check_walks({.name = "square root, what is costly kept", .forward = square_root(keep_costly)});
  check_walks({.name = "nested, clipped", .forward = nested(), .clip_norm = 0.1});
}

TEST_CASE("failure technique: random plans of the tape", "[failure][certificate]") {
  for (const MakeNet& make : {tiny_conv_net(), tiny_transformer()}) {
    for (const auto& plan : draw_plans(make, {}, 3, 50)) check_walk(make, {.name = "random plan", .plan = plan});
  }
}

TEST_CASE("failure technique: where blocks lie", "[failure][certificate]") {
  // A refused tensor is a deviation; the next step is replayed again.
  const Technique placed{.name = "placed", .is_placed = true};
  for (const MakeNet& make : {tiny_conv_net(), tiny_transformer()}) {
    const FailureWalk walk = check_walk(make, placed);
    CHECK(walk.figures.placed.deviations == walk.requests);
    CHECK(check_walk(make, placed, FailPlace::below_placed).requests < 10);
  }
  check_walks({.name = "moved", .moves_blocks = true});
}

TEST_CASE("failure technique: tensors on a disk", "[failure][certificate]") {
  if (offload_test::disk_folder().empty()) return;
  check_walks({.name = "offloaded", .offloads = true});
  check_walks({.name = "gradients offloaded", .clip_norm = 0.1, .offloads_gradients = true});
}

TEST_CASE("failure technique: parameters on a disk", "[failure][certificate]") {
  if (offload_test::disk_folder().empty()) return;
  check_walks({.name = "parameters offloaded", .offloads_parameters = true});
  check_walks({.name = "segments, parameters offloaded, placed",
               .forward = square_root(),
               .is_placed = true,
               .offloads_parameters = true});
}

TEST_CASE("failure technique: when parameters are updated", "[failure][certificate]") {
  constexpr nn::FusedUpdate secured = nn::FusedUpdate::secured, unsecured = nn::FusedUpdate::unsecured;
  check_walks({.name = "fused", .fuses = unsecured});
  // Secured updates take all their memory before the first update.
  check_walks({.name = "fused, placed", .fuses = secured, .is_placed = true}, FailPlace::below_placed);
  check_walks({.name = "micro-batches", .micro_batches = 2});
}

TEST_CASE("failure technique: several techniques at once", "[failure][certificate]") {
  constexpr nn::FusedUpdate secured = nn::FusedUpdate::secured, unsecured = nn::FusedUpdate::unsecured;
  check_walks({.name = "segments, placed", .forward = nested(), .is_placed = true});
  check_walks({.name = "segments, fused, placed", .forward = nested(), .fuses = secured, .is_placed = true},
              FailPlace::below_placed);
  check_walks({.name = "segments, fused, moved", .forward = square_root(), .fuses = unsecured, .moves_blocks = true});
  check_walks(
      {.name = "segments, micro-batches, placed", .forward = every_kth(2), .micro_batches = 2, .is_placed = true});
  if (offload_test::disk_folder().empty()) return;
  check_walks({.name = "segments, offloaded", .forward = square_root(), .offloads = true});
}
