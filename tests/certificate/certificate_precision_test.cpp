// Recomputation, plans, placement and threads give the same bits under every precision policy, including skipped steps,
// the scaler and the random bits of stochastic rounding.

#include <cstring>

#include <thimble/nn/precision/precision.h>

#include "certificate.h"
#include "certificate_nets.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::certificate;

namespace {

void check(Certifier& certifier, const Technique& technique) {
  INFO(technique.name);
  const Certificate certificate = certifier.certify(technique);
  INFO(certificate.text());
  CHECK(certificate.holds());
  CHECK(certificate.figures.leaked_bytes == 0);
  const bool drops = static_cast<bool>(technique.plan) || technique.name.starts_with("segments");
  if (drops) CHECK(certificate.figures.recomputed > 0);
}

void check_all(Certifier certifier, bool is_fused_allowed) {
  for (const int threads : {1, 2}) {
    const ThreadScope scope(threads);
    INFO(threads << " threads");
    check(certifier, {.name = "segments", .forward = every_kth(2)});
    check(certifier, {.name = "segments, nested", .forward = nested(keep_costly), .clip_norm = 0.1});
    check(certifier, {.name = "micro-batches, moved", .micro_batches = 2, .moves_blocks = true});
    check(certifier, {.name = "placed", .is_placed = true});
    check(certifier, {.name = "plan", .plan = draw_plans(certifier.net(), {}, 1, 5).front()});
    if (is_fused_allowed) {
      check(certifier, {.name = "fused", .forward = every_kth(2), .fuses = nn::FusedUpdate::unsecured});
    } else {
      CHECK_THROWS_AS(train(certifier.net(), {.fuses = nn::FusedUpdate::unsecured}), PlanError);
    }
  }
}

}  // namespace

TEST_CASE("certificate: precision policies", "[certificate][precision]") {
  for (const nn::Precision& precision : nn::precisions()) {
    if (precision.name == "O0") continue;
    INFO(precision.name);
    NetOptions options;
    options.is_tiny = true;
    options.samples = 4;
    options.has_chunked_head = false;
    options.precision = &precision;
    if (precision.fp8) {  // a net of convolutions falls back to bf16
      options.width = 16;
    } else {
      check_all(Certifier(conv_net(options)), !precision.scales_loss);
    }
    check_all(Certifier(transformer(options)), !precision.scales_loss);
  }
}

TEST_CASE("certificate: under a loss scale some step is skipped and some is not", "[certificate][precision]") {
  for (const char* name : {"O1", "O2"}) {
    NetOptions options;
    options.is_tiny = true;
    options.has_chunked_head = false;
    options.precision = &nn::precision(name);
    for (const MakeNet& make : {conv_net(options), transformer(options)}) {
      std::int64_t skipped = 0, updates = 0;
      for (const Entry& entry : train(make, {}).trajectory) {
        if (entry.step != certified_steps - 1) continue;
        if (entry.name == "scaler") {
          optim::GradScalerState state;
          std::memcpy(&state, entry.bytes.data(), sizeof state);
          skipped = state.skipped_steps;
        }
        if (entry.name == "updates") std::memcpy(&updates, entry.bytes.data(), sizeof updates);
      }
      INFO(name << ": " << skipped << " skipped");
      CHECK(skipped > 0);
      CHECK(updates > 0);
      CHECK(skipped + updates == certified_steps);
    }
  }
}
