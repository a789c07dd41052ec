// FP8 under every fate, when memory runs out, and with mistakes: a recompute that counts as another step, a recompute
// that uses the scales of the next step, a step that records twice. certificate_precision_test.cpp has the certificates
// common to all policies.

#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/quant/fp8_linear.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/nn/layers/fp8.h>

#include "certificate.h"
#include "certificate_nets.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::certificate;

namespace {

NetOptions options_of(const char* policy) {
  NetOptions options;
  options.is_tiny = true;
  options.width = 16;
  options.has_chunked_head = false;
  options.precision = &nn::precision(policy);
  return options;
}

Fp8State state_of(const nn::Linear& layer) {
  Fp8State state;
  for (const nn::NamedTensor& b : layer.buffers()) {
    if (b.name == "fp8_amax") state.amax = b.tensor;
    if (b.name == "fp8_scale") state.scale = b.tensor;
    if (b.name == "fp8_steps") state.steps = b.tensor;
  }
  return state;
}

/// An FP8 product with a mistake in it; `none` is the layer's product.
struct Mistaken {
  enum class Kind : std::uint8_t { none, recompute_is_a_step, recompute_takes_next_scales, records_twice };
  static constexpr const char* name = "mistaken";
  static constexpr ops::Cost cost = ops::Cost::matmul;
  using Saved = ops::Fp8Linear::Saved;
  ops::Fp8Linear proper;
  Kind kind;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scales, ops::Needs needs,
                 Saved& saved) const {
    ops::Fp8Linear op = proper;
    const bool is_again = context().is_recomputing;
    if (is_again && kind == Kind::recompute_is_a_step) {
      struct Forgetting {
        bool before = std::exchange(context().is_recomputing, false);
        ~Forgetting() { context().is_recomputing = before; }
      } const forgetting;
      op.use.step += 1000;
      return op.forward(x, weight, bias, scales, needs, saved);
    }
    if (is_again && kind == Kind::recompute_takes_next_scales) {
      return op.forward(x, weight, bias, writable_state(op.use.state.scale), needs, saved);
    }
    if (!is_again && kind == Kind::records_twice) {
      Saved unused;
      op.use.step += 1000;
      op.forward(x, weight, bias, scales, ops::Needs(), unused);
      op.use.step -= 1000;
    }
    return op.forward(x, weight, bias, scales, needs, saved);
  }
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    return proper.backward(std::move(saved), std::move(dy), needs);
  }
};

MakeNet net_with(Mistaken::Kind kind) {
  NetOptions options = options_of("fp8");
  options.multiply = [kind](const nn::Linear& layer, const Tensor& x) {
    const Fp8State state = state_of(layer);
    const Fp8Use use{nn::Fp8Recipe{}.format(), state, static_cast<std::int64_t>(current_generator().step()), true};
    return apply(Mistaken{{use}, kind}, x, layer.weight, layer.bias, state.scale);
  };
  return transformer(options);
}

const Technique segments{.name = "segments", .forward = every_kth(1)};

}  // namespace

TEST_CASE("certificate: every fate of an FP8 product", "[certificate][fp8]") {
  for (const char* policy : {"fp8", "fp8-current", "fp8-block"}) {
    INFO(policy);
    Certifier certifier(transformer(options_of(policy)));
    std::size_t recomputed = 0;
    for (const auto& plan : draw_plans(certifier.net(), {}, 4, 11)) {
      const Certificate certificate = certifier.certify({.name = "plan", .plan = plan});
      INFO(certificate.text());
      CHECK(certificate.holds());
      recomputed += certificate.figures.recomputed;
    }
    CHECK(recomputed > 0);
    const Certificate away = certifier.certify({.name = "state on a disk", .sends_state = true});
    INFO(away.text());
    CHECK(away.holds());
  }
}

TEST_CASE("certificate: the state of FP8 is compared", "[certificate][fp8]") {
  const Trajectory all = train(transformer(options_of("fp8")), {}, 2).trajectory;
  std::size_t changed = 0, states = 0;
  for (const Entry& entry : all) {
    if (entry.item != Item::statistics || entry.step != 1) continue;
    ++states;
    for (const Entry& before : all) {
      changed += before.step == 0 && before.name == entry.name && before.bytes != entry.bytes;
    }
  }
  // All eight layers have state; it changes in every step, except in "block1.up", which the net multiplies itself.
  CHECK(states == 8 * 3);
  CHECK(changed >= 7 * 2);
}

TEST_CASE("certificate: FP8 when memory runs out", "[certificate][fp8]") {
  for (const char* policy : {"fp8", "fp8-block"}) {
    NetOptions options = options_of(policy);
    options.samples = 1;
    const FailureWalk walk = walk_failures(transformer(options), {.name = "segments", .forward = every_kth(3)});
    INFO(policy);
    CHECK(walk.requests > 100);
    CHECK(walk.clean == walk.requests);
    CHECK(walk.changed + walk.untyped + walk.leaked + walk.leftovers + walk.different == 0);
  }
}

TEST_CASE("certificate mutant: FP8 scales", "[certificate][fp8]") {
  using Kind = Mistaken::Kind;
  {
    Certifier certifier(net_with(Kind::none));
    const Certificate certificate = certifier.certify(segments);
    INFO(certificate.text());
    CHECK(certificate.holds());
  }
  // A recompute that records again shows in the layer's counts at once, and nothing else is wrong in the first step.
  Certifier again(net_with(Kind::recompute_is_a_step));
  CHECK(again.certify({.name = "none"}).holds());
  const Certificate counted = again.certify(segments);
  CHECK_FALSE(counted.holds());
  bool has_counts = false;
  for (const Difference& d : counted.differences) {
    if (d.step == 0) CHECK(d.kind == Item::statistics);
    has_counts = has_counts || (d.step == 0 && d.name == "block1.down.fp8_steps");
  }
  CHECK(has_counts);
  // A recompute that takes future scales shows in gradients from the second step on.
  Certifier next(net_with(Kind::recompute_takes_next_scales));
  CHECK(next.certify({.name = "none"}).holds());
  const Certificate early = next.certify(segments);
  CHECK(early.names(Item::gradient));
  CHECK_FALSE(early.names(Item::loss, 0));
  // A step that records twice is wrong with and without a technique: only a correct net reveals it.
  const std::vector<Difference> twice =
      compare(train(net_with(Kind::none), {}).trajectory, train(net_with(Kind::records_twice), {}).trajectory);
  CHECK_FALSE(twice.empty());
  for (const Difference& d : twice) {
    if (d.step == 0) CHECK(d.kind == Item::statistics);
  }
}
