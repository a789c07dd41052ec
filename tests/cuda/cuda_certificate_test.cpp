// Memory techniques on a CUDA device, in memory filled with NaN, have the bits of keeping everything there; and a step
// in which every allocation fails once. On a GPU if there is one, otherwise on tests/emulated.

#include <memory>

#include "certificate/certificate_check.h"
#include "certificate/certificate_nets.h"
#include "emulated/library.h"
#include "support/catch.h"
#include "support/operator_table.h"
#include "support/training_failure.h"

using namespace thimble;
using namespace thimble::certificate;
using thimble::testing::has_cuda;

namespace cuda_certificate_test {

void check_techniques(const MakeNet& net) {
  Certifier certifier(net, cuda());
  check_segments(certifier, {.name = "segments", .forward = every_kth(2)});
  std::size_t with_recomputed = 0;
  for (const auto& plan : draw_plans(net, {}, 2, 21, cuda())) {
    with_recomputed += check_certificate(certifier, {.name = "plan of the tape", .plan = plan}).figures.recomputed > 0;
  }
  CHECK(with_recomputed > 0);
  check_certificate(certifier, {.name = "placed", .is_placed = true});
  check_certificate(certifier, {.name = "moved", .moves_blocks = true});
  check_certificate(certifier, {.name = "fused", .fuses = nn::FusedUpdate::unsecured});
  check_segments(certifier, {.name = "segments, fused, placed",
                             .forward = square_root(),
                             .fuses = nn::FusedUpdate::secured,
                             .is_placed = true});
}

}  // namespace cuda_certificate_test

using namespace cuda_certificate_test;

TEST_CASE("cuda certificate: convolutions", "[cuda][certificate]") {
  if (!has_cuda()) return;
  check_techniques(conv_net({.samples = 2}));
}

TEST_CASE("cuda certificate: transformer", "[cuda][certificate][slow]") {
  if (!has_cuda()) return;
  check_techniques(transformer({.samples = 2}));
}

TEST_CASE("cuda certificate: transformer, products of the library", "[cuda][certificate][slow]") {
  if (!has_cuda()) return;
  const emulated::LibraryScope library;
  check_techniques(transformer({.samples = 2}));
}

TEST_CASE("cuda certificate: a step leaves no trace, whichever allocation fails", "[cuda][failure]") {
  if (!has_cuda()) return;
  const memory::Stack stack = memory::make_resource(cuda(), {.arena = {.poison = true}});
  const auto fail = std::make_shared<memory::FailAt>(stack.top, 0);
  {
    const ResourceScope scope(fail);
    SmallTraining run({.model = "char-gpt", .optimizer = "adamw"}, cuda());
    training_failure::check_step(run, *fail, stack);
  }
  CHECK(stack.ledger->bytes() == 0);
  const Technique placed{.name = "segments, placed", .forward = every_kth(3), .is_placed = true};
  CHECK(check_walk(transformer({.is_tiny = true}), placed, FailPlace::tensors, cuda()).figures.placed.deviations > 0);
}
