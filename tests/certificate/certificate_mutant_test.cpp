// The certificate itself: deliberate mistakes must fail it, by the right name.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/ops/random.h>

#include "certificate.h"
#include "certificate_nets.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::certificate;

namespace {

/// A batch norm that cannot tell a recompute from a forward: it updates its statistics in both.
struct TwiceUpdated {
  using Proper = ops::BatchNorm<kernels::NormTail::none>;
  static constexpr const char* name = "twice_updated";
  static constexpr ops::Cost cost = ops::Cost::reduction;
  using Saved = Proper::Saved;
  Proper proper;

  Tensor forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, ops::Needs needs,
                 Saved& saved) const {
    struct Forgetting {
      bool before = std::exchange(context().is_recomputing, false);
      ~Forgetting() { context().is_recomputing = before; }
    } const forgetting;
    return proper.forward(x, residual, weight, bias, needs, saved);
  }
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    return proper.backward(std::move(saved), std::move(dy), needs);
  }
};

Tensor normalize_twice(const nn::BatchNorm2d& norm, const Tensor& x) {
  const TwiceUpdated op{{norm.running_mean, norm.running_var}};
  return apply(op, x, Tensor(), norm.weight, norm.bias);
}

/// A dropout that draws its site when it runs, so a recompute takes the next one.
struct NextSite {
  static constexpr const char* name = "next_site";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  struct Saved {
    RandomSite site;
  };
  double p;

  Tensor forward(const Tensor& x, ops::Needs, Saved& saved) const {
    saved.site = next_random_site();
    ops::Dropout::Saved nothing;
    return ops::Dropout{p, saved.site}.forward(x, ops::Needs(), nothing);
  }
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    return ops::Dropout{p, saved.site}.backward({}, std::move(dy), needs);
  }
};

/// A dropout whose recompute is off by one: it numbers samples one higher.
struct OffByOne {
  static constexpr const char* name = "off_by_one";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  ops::Dropout proper;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const {
    ops::Dropout op = proper;
    if (context().is_recomputing) ++op.site.first_sample;
    return op.forward(x, needs, saved);
  }
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    return proper.backward(saved, std::move(dy), needs);
  }
};

/// Multiplies a weight without the tape's knowledge: exact for 2 and 0.5, and its version does not change.
void scale_stealthily(Net& net, const std::string& name, float factor) {
  for (const nn::NamedTensor& p : net.parameters()) {
    if (p.name != name || p.tensor.device().is_dry) continue;
    launch(cpu, [&](const Addresses& at) {
      for (std::int64_t i = 0; i < p.tensor.elements(); ++i) at.as<float>(p.tensor)[i] *= factor;
    });
  }
}

std::vector<std::string> names_of(const Certificate& certificate, Item item, int step) {
  std::vector<std::string> names;
  for (const Difference& d : certificate.differences) {
    if (d.kind == item && d.step == step) names.push_back(d.name);
  }
  return names;
}
using Names = std::vector<std::string>;

const Technique segments{.name = "segments", .forward = every_kth(1)};

/// A mutant is harmless where nothing runs again.
void check_harmless_without_recomputation(Certifier& certifier) {
  for (const Technique& technique : {Technique{.name = "none"}, Technique{.name = "placed", .is_placed = true},
                                     Technique{.name = "moved", .moves_blocks = true}}) {
    const Certificate certificate = certifier.certify(technique);
    INFO(technique.name << "\n" << certificate.text());
    CHECK(certificate.holds());
  }
}

}  // namespace

TEST_CASE("certificate mutant: a batch norm updated twice", "[certificate]") {
  Certifier certifier(conv_net({.normalize = normalize_twice}));
  check_harmless_without_recomputation(certifier);
  const Certificate certificate = certifier.certify(segments);
  // In training nothing reads the statistics, so only they are wrong, only in this norm, in every step.
  CHECK_FALSE(certificate.holds());
  CHECK(certificate.differences.size() == 2 * certified_steps);
  for (int step = 0; step < certified_steps; ++step) {
    CHECK(names_of(certificate, Item::statistics, step) ==
          Names{"block1.norm2.running_mean", "block1.norm2.running_var"});
  }
}

TEST_CASE("certificate mutant: a counter off by one", "[certificate]") {
  SECTION("a recompute that takes the next counter") {
    Certifier certifier(conv_net({.drop = [](const Tensor& x, double p) { return apply(NextSite{p}, x); }}));
    check_harmless_without_recomputation(certifier);
    const Certificate certificate = certifier.certify(segments);
    CHECK(names_of(certificate, Item::generator, 0) == Names{"calls"});
    CHECK(certificate.names(Item::gradient, 0));
    CHECK(certificate.names(Item::parameter, 0));
    CHECK_FALSE(certificate.names(Item::loss, 0));
    CHECK_FALSE(certificate.names(Item::statistics, 0));
    CHECK(certificate.names(Item::loss, 1));
  }
  SECTION("a recompute that draws one sample further") {
    Certifier certifier(conv_net({.drop = [](const Tensor& x, double p) {
      return apply(OffByOne{{p, next_random_site()}}, x);
    }}));
    check_harmless_without_recomputation(certifier);
    const Certificate certificate = certifier.certify(segments);
    // The next convolution reads the dropped tensor again for its weight's gradient, and so does the norm after it;
    // later layers have forward's mask.
    CHECK(certificate.names(Item::gradient, 0));
    const Names wrong = names_of(certificate, Item::gradient, 0);
    CHECK(std::count(wrong.begin(), wrong.end(), "block1.conv2.weight") == 1);
    CHECK(std::count(wrong.begin(), wrong.end(), "head.linear.weight") == 0);
    CHECK_FALSE(certificate.names(Item::generator));
    CHECK_FALSE(certificate.names(Item::loss, 0));
    CHECK_FALSE(certificate.names(Item::statistics, 0));
    CHECK(certificate.names(Item::loss, 1));
  }
}

TEST_CASE("certificate mutant: a stale weight", "[certificate]") {
  // The stem's weight is different between the end of forward and the first update. Backward does not read it, because
  // images take no gradient: only a rerun of the stem does.
  const auto overwritten = [](Technique technique) {
    technique.after_forward = [](Net& net) { scale_stealthily(net, "stem.conv.weight", 2); };
    technique.before_update = [](Net& net) { scale_stealthily(net, "stem.conv.weight", 0.5f); };
    return technique;
  };
  Certifier certifier(conv_net());
  const Certificate kept = certifier.certify(overwritten({.name = "none"}));
  INFO(kept.text());
  CHECK(kept.holds());
  const Certificate stale = certifier.certify(overwritten(segments));
  const Names wrong = names_of(stale, Item::gradient, 0);
  CHECK(std::count(wrong.begin(), wrong.end(), "stem.norm.weight") == 1);
  CHECK(std::all_of(wrong.begin(), wrong.end(), [](const std::string& name) { return name.find("stem.") == 0; }));
  CHECK(names_of(stale, Item::parameter, 0) == wrong);
  CHECK_FALSE(stale.names(Item::loss, 0));
  CHECK_FALSE(stale.names(Item::statistics, 0));
  CHECK_FALSE(stale.names(Item::generator));
  CHECK(stale.names(Item::loss, 1));
}

TEST_CASE("certificate mutant: every bit that is compared counts", "[certificate]") {
  const MakeNet nets[] = {conv_net({.is_tiny = true}), transformer({.is_tiny = true})};
  for (const MakeNet& make : nets) {
    const Trajectory plain = train(make, {}).trajectory;
    for (const Item item : {Item::loss, Item::gradient, Item::parameter, Item::optimizer_state, Item::generator}) {
      CHECK(std::any_of(plain.begin(), plain.end(),
                        [&](const Entry& e) { return e.item == item && e.step == 2 && !e.bytes.empty(); }));
    }
    std::size_t caught = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      REQUIRE_FALSE(plain[i].bytes.empty());
      for (const std::size_t at : {std::size_t{0}, plain[i].bytes.size() - 1}) {
        Trajectory other = plain;
        other[i].bytes[at] ^= std::byte{0x80};
        const std::vector<Difference> found = compare(plain, other);
        caught += found.size() == 1 && found[0].step == plain[i].step && found[0].kind == plain[i].item &&
                  found[0].name == plain[i].name;
      }
    }
    CHECK(caught == 2 * plain.size());
    Trajectory shorter = plain;
    shorter.pop_back();
    CHECK(compare(plain, shorter).size() == 1);
    CHECK(compare(shorter, plain).size() == 1);
  }
  // Everything that a step of a convolutional net changes is there.
  const Trajectory all = train(nets[0], {}, 1).trajectory;
  const auto has = [&](Item item, const char* name) {
    return std::any_of(all.begin(), all.end(), [&](const Entry& e) { return e.item == item && e.name == name; });
  };
  CHECK(has(Item::gradient, "stem.conv.weight"));
  CHECK(has(Item::parameter, "head.linear.bias"));
  CHECK(has(Item::statistics, "block2.norm2.running_var"));
  CHECK(has(Item::statistics, "stem.norm.num_batches_tracked"));
  CHECK(has(Item::optimizer_state, "updates"));
  CHECK(has(Item::generator, "step"));
}
