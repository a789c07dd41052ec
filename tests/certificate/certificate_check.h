#pragma once
// Catch2 checks of certificates and failure walks, including that the technique was in force.

#include "certificate.h"
#include "support/catch.h"

namespace thimble::certificate {

/// Compares the technique with the plain run, and checks that it was in force.
inline Certificate check_certificate(Certifier& certifier, const Technique& technique) {
  INFO("technique: " << technique.name);
  const Certificate certificate = certifier.certify(technique);
  INFO(certificate.text());
  CHECK(certificate.holds());
  const Figures& figures = certificate.figures;
  CHECK(figures.leaked_bytes == 0);
  CHECK((figures.moved_blocks > 0) == technique.moves_blocks);
  CHECK((figures.tier_writes > 0) ==
        (technique.offloads || technique.sends_state || technique.offloads_gradients || technique.offloads_parameters));
  CHECK((figures.parameter_peak_bytes < certificate.plain.parameter_peak_bytes) == technique.offloads_parameters);
  CHECK(figures.placed.steps == (technique.is_placed ? certified_steps : 0));
  CHECK(figures.placed.deviations == 0);
  CHECK(figures.placed.dynamic_steps == 0);
  const bool has_few_gradients = technique.fuses != nn::FusedUpdate::off || technique.offloads_gradients;
  CHECK((figures.gradient_peak_bytes < certificate.plain.gradient_peak_bytes) == has_few_gradients);
  CHECK(certificate.plain.recomputed == 0);
  return certificate;
}

/// For techniques that run nodes again in order to keep less.
inline void check_segments(Certifier& certifier, const Technique& technique) {
  const Certificate certificate = check_certificate(certifier, technique);
  INFO("technique: " << technique.name);
  CHECK(certificate.figures.recomputed > 0);
  CHECK(certificate.figures.activation_peak_bytes < certificate.plain.activation_peak_bytes);
}

/// Fails each allocation of a step, and checks the outcomes.
inline FailureWalk check_walk(const MakeNet& make, const Technique& technique, FailPlace place = FailPlace::tensors,
                              memory::Device device = cpu) {
  INFO("technique: " << technique.name);
  const FailureWalk walk = walk_failures(make, technique, place, device);
  INFO(walk.requests << " requests");
  CHECK(walk.requests > (place == FailPlace::tensors ? 100 : 0));
  const bool may_be_partial = technique.fuses == nn::FusedUpdate::unsecured || technique.offloads_gradients ||
                              (technique.offloads_parameters && place == FailPlace::tensors);
  CHECK((walk.partial > 0) == may_be_partial);
  CHECK(walk.clean > 0);
  CHECK(walk.clean + walk.partial == walk.requests);
  CHECK(walk.untyped == 0);
  CHECK(walk.changed == 0);
  CHECK(walk.leaked == 0);
  CHECK(walk.leftovers == 0);
  CHECK(walk.different == 0);
  CHECK(walk.figures.placed.dynamic_steps == 0);
  CHECK((walk.figures.moved_blocks > 0) == technique.moves_blocks);
  CHECK((walk.figures.tier_writes > 0) ==
        (technique.offloads || technique.offloads_gradients || technique.offloads_parameters));
  return walk;
}

}  // namespace thimble::certificate
