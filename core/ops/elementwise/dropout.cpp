#include <thimble/core/ops/elementwise/dropout.h>

#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/random.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/ops/reuse.h>

namespace thimble::ops {
namespace {

double scale_of(double p) { return 1 / (1 - p); }

// Throws for unsupported arguments.
void check(const char* name, const Tensor& x, double p, const RandomSite& site, const SampleParts& parts) {
  if (!is_floating(x.dtype())) throw DTypeError(std::string(name) + ": " + describe(x) + " is not floating");
  if (!(p >= 0 && p < 1)) {
    throw ValueError(std::string(name) + ": probability " + std::to_string(p) + " is not in [0, 1)");
  }
  check_random_site(name, site);
  const std::int64_t samples = x.rank() > 0 ? x.shape()[0] : 1;
  const bool is_in_parts = parts.groups != 1 || parts.first != 0;
  if (is_in_parts && (parts.groups < 1 || parts.first < 0 || x.rank() == 0 || samples % parts.groups != 0 ||
                      (samples > 0 && x.elements() / samples % 4 != 0))) {
    throw ValueError(std::string(name) + ": " + describe(x) + " in " + std::to_string(parts.groups) +
                     " groups from part " + std::to_string(parts.first) +
                     " on; expected groups that divide the first axis, and parts that 4 divides");
  }
  constexpr std::int64_t words = std::int64_t{1} << 32;
  if (site.first_sample < 0 || site.first_sample > words - samples ||
      (samples > 0 && x.elements() / samples > 4 * words)) {
    throw ValueError(std::string(name) + ": " + describe(x) + " from sample " + std::to_string(site.first_sample) +
                     " on, samples must count below 2^32 and have at most 2^34 elements");
  }
}

// out = in with elements dropped; all are dense and of one shape. `mask` may be undefined.
void run(const Tensor& in, double p, const RandomSite& site, const SampleParts& parts, const Tensor& out,
         const Tensor& mask) {
  if (in.elements() == 0) return;
  launch(in.device(), [&](const Addresses& at) {
    kernels::DropoutArgs args;
    const std::int64_t samples = in.rank() > 0 ? in.shape()[0] : 1;
    args.samples = samples / parts.groups;
    args.sample_elements = in.elements() / samples;
    args.site = site;
    args.threshold = static_cast<std::uint32_t>(std::floor(p * 0x1p32));
    args.scale = scale_of(p);
    args.dtype = in.dtype();
    const std::int64_t of_group = args.samples * args.sample_elements;
    const std::int64_t bytes = of_group * static_cast<std::int64_t>(size_of(in.dtype()));
    for (std::int64_t g = 0; g < parts.groups; ++g) {
      args.first_block = (parts.first + g) * args.sample_elements / 4;
      args.in = at.as<std::byte>(in) + g * bytes;
      args.out = at.as<std::byte>(out) + g * bytes;
      args.mask = mask.defined() ? at.as<std::uint8_t>(mask) + g * of_group : nullptr;
      kernels::random_kernels(in.device()).dropout(args);
    }
  });
}

}  // namespace

Tensor Dropout::forward(const Tensor& x, Needs, Saved&) const {
  check(name, x, p, site, parts);
  const Tensor in = contiguous(x);
  const Tensor y = Tensor::empty_like(x);
  run(in, p, site, parts, y, Tensor());
  return y;
}

Gradients Dropout::backward(Saved, Tensor dy, Needs) const {
  dy = contiguous(dy);
  const Tensor dx = reused_or_new(dy);
  run(dy, p, site, parts, dx, Tensor());
  return {dx};
}

Tensor DropoutTextbook::forward(const Tensor& x, Needs needs, Saved& saved) const {
  check(name, x, p, site, parts);
  const Tensor in = contiguous(x);
  const Tensor y = Tensor::empty_like(x);
  Tensor mask;
  if (needs.any()) mask = Tensor::empty(x.shape(), DType::u8, x.device());
  run(in, p, site, parts, y, mask);
  saved.mask = mask;
  return y;
}

Gradients DropoutTextbook::backward(Saved saved, Tensor dy, Needs) const {
  dy = contiguous(dy);
  const Tensor dx = reused_or_new(dy);
  if (dy.elements() == 0) return {dx};
  launch(dy.device(), [&](const Addresses& at) {
    kernels::MaskArgs args;
    args.elements = dy.elements();
    args.mask = at.as<std::uint8_t>(saved.mask);
    args.scale = scale_of(p);
    args.in = at(dy);
    args.out = at(dx);
    args.dtype = dy.dtype();
    kernels::random_kernels(dy.device()).apply_mask(args);
  });
  return {dx};
}

}  // namespace thimble::ops
