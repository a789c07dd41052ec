// Options of a step that make no sense, and clipping where there is nothing to clip.

#include <cmath>
#include <limits>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("clip: clipping at the edges, and options that make no sense", "[clip]") {
  Tensor p = zeros({2});
  p.require_grad();
  const std::vector<optim::Named> list{{"p", p}};
  CHECK_FALSE(optim::clip_grad_norm(list, 1).defined());  // no gradient at all
  CHECK(optim::norm_of(Tensor()) == 0);
  p.grad() = zeros({2});
  CHECK(optim::norm_of(optim::clip_grad_norm(list, 1)) == 0);
  CHECK(to_host<float>(p.grad()) == std::vector<float>{0, 0});
  const std::uint32_t version = p.grad().storage()->version();
  optim::clip_grad_norm(list, 1);
  CHECK(p.grad().storage()->version() != version);  // a tape that kept it refuses it
  p.grad() = from_host(std::vector<float>{NAN, 1}, {2});
  CHECK(std::isnan(optim::norm_of(optim::clip_grad_norm(list, 1))));
  for (const double bound : {0.0, -1.0, std::nan(""), -std::numeric_limits<double>::infinity()}) {
    INFO(bound);
    CHECK_THROWS_AS(optim::clip_grad_norm(list, bound), ValueError);
  }
  p.grad() = Tensor();

  optim::Adam optimizer(list, {});
  const auto loss_of = [&](std::int64_t) { return sum(p); };
  for (const nn::StepOptions& options :
       {nn::StepOptions{-1, 1, 0}, nn::StepOptions{std::nan(""), 1, 0}, nn::StepOptions{0, 0, 1},
        nn::StepOptions{0, 2, 0}, nn::StepOptions{0, 2, -1}}) {
    INFO(options.clip_norm << " " << options.micro_batches << " " << options.micro_samples);
    CHECK_THROWS_AS(nn::training_step(optimizer, loss_of, options), ValueError);
  }
  CHECK(optimizer.step_count() == 0);
  nn::training_step(optimizer, loss_of);
  CHECK(optimizer.step_count() == 1);
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope on(stack.top);
  Tensor q = zeros({2}, DType::f32, dry(cpu));
  q.require_grad().grad() = zeros({2}, DType::f32, dry(cpu));
  CHECK_THROWS_AS(optim::norm_of(optim::clip_grad_norm({{"q", q}}, 1)), DeviceError);
}
