// Updates of many parameters in a few launches (cuda/optimizer/parameter.h): the bits of the CPU, which updates them
// one by one, and the number of launches. On a GPU if there is one, otherwise on tests/emulated.

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/launch/launch_graph.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace update_list_test {

using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<optim::Named>)>;

/// Sizes around a team's range and the block of 8-bit state, two of them of rank 2, and an empty one.
std::vector<Shape> sizes() {
  return {{1}, {255}, {256}, {257}, {4095}, {4096}, {4097}, {3, 5000}, {0}, {17}, {300, 2}, {12289}};
}

Tensor noise(const Shape& shape, DType dtype, std::uint32_t site) {
  return normal(shape, 0, 1, dtype, cpu, {7, 1, 0, site});
}

std::uint64_t launches() { return kernels::device_runtime(cuda()).launch_count(); }

/// Parameters of these shapes, with alternating dtypes.
std::vector<optim::Named> parameters(memory::Device device, const std::vector<Shape>& shapes,
                                     const std::vector<DType>& dtypes) {
  std::vector<optim::Named> list;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Tensor p = to_device(noise(shapes[i], dtypes[i % dtypes.size()], static_cast<std::uint32_t>(i)), device);
    p.require_grad();
    list.push_back({"p" + std::to_string(i), p});
  }
  return list;
}

/// Gradients for all parameters except every seventh.
void give_gradients(const std::vector<optim::Named>& list, int step) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Tensor& p = list[i].tensor;
    if (i % 7 == 5) continue;
    const auto site = static_cast<std::uint32_t>(1000 + 100 * step) + static_cast<std::uint32_t>(i);
    p.grad() = to_device(noise(p.shape(), p.dtype(), site), p.device());
  }
}

/// Parameters and state after three steps, as bits.
std::vector<std::vector<std::uint64_t>> run(memory::Device device, const std::vector<DType>& dtypes, const Make& make) {
  RandomGenerator generator(5);
  const GeneratorScope scope(generator);
  const std::vector<optim::Named> list = parameters(device, sizes(), dtypes);
  const std::unique_ptr<optim::Optimizer> optimizer = make(list);
  for (int step = 0; step < 3; ++step) {
    give_gradients(list, step);
    optimizer->set_rate(0.01 * (step + 1));
    optimizer->set_gradient_factor(0.5);
    optimizer->step();
  }
  std::vector<optim::Named> all = optimizer->state();
  all.insert(all.end(), list.begin(), list.end());
  std::vector<std::vector<std::uint64_t>> bits;
  for (const optim::Named& one : all) {
    bits.emplace_back();
    for (const double value : to_host<double>(to_device(one.tensor.detach(), cpu))) {
      bits.back().push_back(std::bit_cast<std::uint64_t>(value));
    }
  }
  return bits;
}

Make adam(optim::AdamOptions options) {
  return [options](std::vector<optim::Named> list) { return std::make_unique<optim::Adam>(std::move(list), options); };
}
Make sgd(optim::SgdOptions options) {
  return [options](std::vector<optim::Named> list) { return std::make_unique<optim::Sgd>(std::move(list), options); };
}

Make adam8(optim::NarrowUpdate narrow, DType moments = DType::u8) {
  return adam({.weight_decay = 0.1, .smallest_decayed_rank = 2, .narrow = narrow, .moments = {.dtype = moments}});
}
Make momentum8(optim::NarrowUpdate narrow) {
  return sgd({.momentum = 0.9, .narrow = narrow, .moments = {.dtype = DType::u8}});
}
Make adafactor(optim::AdafactorOptions options) {
  return [options](std::vector<optim::Named> list) {
    return std::make_unique<optim::Adafactor>(std::move(list), options);
  };
}

}  // namespace update_list_test

using namespace update_list_test;

TEST_CASE("update list: many parameters at once have the bits of the CPU's one after the other", "[cuda][optim]") {
  if (!has_cuda()) return;
  const std::vector<DType> mixed{DType::f32, DType::bf16, DType::f64}, narrow{DType::bf16, DType::f32},
      eight{DType::f32, DType::bf16, DType::f16};
  struct Case {
    const char* name;
    std::vector<DType> dtypes;
    Make make;
  };
  using optim::NarrowUpdate;
  const std::vector<Case> cases = {
      {"adamw, vectors not decayed", mixed, adam({.weight_decay = 0.1, .smallest_decayed_rank = 2})},
      {"adam with L2", mixed, adam({.weight_decay = 0.1, .is_decoupled = false})},
      {"adamw with masters", narrow, adam({.narrow = NarrowUpdate::master})},
      {"adamw, rounded stochastically", narrow, adam({.narrow = NarrowUpdate::stochastic})},
      {"adamw with Kahan's sum", narrow, adam({.narrow = NarrowUpdate::kahan})},
      {"sgd", mixed, sgd({.weight_decay = 0.01})},
      {"momentum", mixed, sgd({.momentum = 0.9, .weight_decay = 0.01})},
      {"nesterov with masters", narrow, sgd({.momentum = 0.9, .nesterov = true, .narrow = NarrowUpdate::master})},
      {"adamw8", eight, adam8(NarrowUpdate::rounded)},
      {"momentum8", eight, momentum8(NarrowUpdate::rounded)},
      {"adamw8 with masters", eight, adam8(NarrowUpdate::master)},
      {"adamw8, rounded stochastically", narrow, adam8(NarrowUpdate::stochastic)},
      {"adamw8 with Kahan's sum", eight, adam8(NarrowUpdate::kahan)},
      {"adamw in bf16 with masters", narrow, adam8(NarrowUpdate::master, DType::bf16)},
      {"momentum8 with masters", eight, momentum8(NarrowUpdate::master)},
      {"momentum8, rounded stochastically", narrow, momentum8(NarrowUpdate::stochastic)},
      {"momentum8 with Kahan's sum", eight, momentum8(NarrowUpdate::kahan)},
      {"adafactor", eight, adafactor({.rate = 0.05})},
      {"adafactor with masters", eight, adafactor({.rate = 0.05, .narrow = NarrowUpdate::master})},
      {"adafactor, rounded stochastically", narrow, adafactor({.beta1 = 0.5, .narrow = NarrowUpdate::stochastic})},
      {"adafactor with Kahan's sum", eight, adafactor({.weight_decay = 0.1, .narrow = NarrowUpdate::kahan})},
      {"adafactor, vectors not decayed", eight,
       adafactor({.beta1 = 0.5, .weight_decay = 0.1, .smallest_decayed_rank = 2})},
      {"adafactor with its own rate", eight, adafactor({.has_relative_step = true, .scales_by_parameter = false})},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    const auto here = run(cpu, c.dtypes, c.make), there = run(cuda(), c.dtypes, c.make);
    REQUIRE(here.size() == there.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      INFO("tensor " << i);
      CHECK(here[i] == there[i]);
    }
  }
}

TEST_CASE("update list: a launch has 56 parameters that are alike", "[cuda][optim]") {
  if (!has_cuda()) return;
  struct Case {
    std::size_t vectors, matrices;
    std::uint64_t launches;
  };
  // Parameters of rank 1 are not decayed, so they get separate launches.
  for (const Case& c : {Case{1, 0, 1}, Case{56, 0, 1}, Case{57, 0, 2}, Case{30, 30, 2}, Case{57, 113, 5}}) {
    INFO(c.vectors << " vectors, " << c.matrices << " matrices");
    std::vector<Shape> shapes;
    for (std::size_t i = 0; i < std::max(c.vectors, c.matrices); ++i) {  // alternating, as in a model
      if (i < c.vectors) shapes.push_back({9});
      if (i < c.matrices) shapes.push_back({3, 3});
    }
    const std::vector<optim::Named> list = parameters(cuda(), shapes, {DType::f32});
    for (const optim::Named& p : list) p.tensor.grad() = to_device(noise(p.tensor.shape(), DType::f32, 3), cuda());
    optim::Adam adam(list, {.weight_decay = 0.1, .smallest_decayed_rank = 2});
    const std::uint64_t before = launches();
    adam.step();
    CHECK(launches() - before == c.launches);
    adam.begin_step();
    for (std::size_t i = 0; i < list.size(); ++i) adam.step_one(i);  // like updates during backward
    CHECK(launches() - before == c.launches + list.size());
  }
}

TEST_CASE("update list: 8-bit state with masters takes no more launches", "[cuda][optim]") {
  if (!has_cuda()) return;
  using optim::NarrowUpdate;
  for (const NarrowUpdate narrow :
       {NarrowUpdate::rounded, NarrowUpdate::master, NarrowUpdate::stochastic, NarrowUpdate::kahan}) {
    INFO(to_string(narrow));
    const std::vector<optim::Named> list = parameters(cuda(), std::vector<Shape>(57, Shape{5000}), {DType::bf16});
    for (const optim::Named& p : list) p.tensor.grad() = to_device(noise(p.tensor.shape(), DType::bf16, 3), cuda());
    const auto optimizer = adam8(narrow)(list);
    const std::uint64_t before = launches();
    optimizer->step();
    CHECK(launches() - before == 2);
  }
}

TEST_CASE("update list: Adafactor takes a launch for each phase of 56 parameters that are alike", "[cuda][optim]") {
  if (!has_cuda()) return;
  struct Case {
    std::size_t vectors, matrices;
    optim::AdafactorOptions options;
    std::uint64_t launches;
  };
  // For matrices: parameters' squares, rows, columns, the rows' mean, updates' squares, the length, the update. Vectors
  // have one phase for their moments, and share all others.
  const optim::AdafactorOptions plain{}, unscaled{.scales_by_parameter = false},
      apart{.weight_decay = 0.1, .smallest_decayed_rank = 2};
  for (const Case& c :
       {Case{0, 1, plain, 7}, Case{0, 56, plain, 7}, Case{1, 0, plain, 5}, Case{28, 28, plain, 8},
        Case{0, 57, plain, 14}, Case{30, 56, plain, 16}, Case{28, 28, unscaled, 7}, Case{28, 28, apart, 5 + 7}}) {
    INFO(c.vectors << " vectors, " << c.matrices << " matrices");
    std::vector<Shape> shapes;
    for (std::size_t i = 0; i < std::max(c.vectors, c.matrices); ++i) {
      if (i < c.vectors) shapes.push_back({9});
      if (i < c.matrices) shapes.push_back({3, 4});
    }
    const std::vector<optim::Named> list = parameters(cuda(), shapes, {DType::f32});
    for (const optim::Named& p : list) p.tensor.grad() = to_device(noise(p.tensor.shape(), DType::f32, 3), cuda());
    optim::Adafactor adafactor(list, c.options);
    const std::uint64_t before = launches();
    adafactor.step();
    CHECK(launches() - before == c.launches);
  }
}

TEST_CASE("update list: norms and clipping of many gradients have the bits of one after the other", "[cuda][optim]") {
  if (!has_cuda()) return;
  std::vector<Shape> shapes = sizes();
  shapes.push_back({40'000});  // several parts of a sum
  while (shapes.size() < 120) shapes.push_back({5});
  const std::vector<optim::Named> list = parameters(cuda(), shapes, {DType::f32, DType::bf16, DType::f32, DType::f64});
  give_gradients(list, 1);
  const std::vector<double> all = to_host<double>(optim::gradient_square_sums(list));
  std::vector<double> single, unclipped;
  for (const optim::Named& p : list) {
    const Tensor sums = optim::gradient_square_sums({p});
    if (!sums.defined()) continue;
    single.push_back(item(sums));
    double expected = 0;
    for (const double g : to_host<double>(p.tensor.grad())) expected += g * g, unclipped.push_back(g);
    CHECK(single.back() == Approx(expected));
  }
  REQUIRE(all.size() > 56);
  CHECK(all == single);

  const double norm = optim::norm_of(optim::clip_grad_norm(list, 2.5)), factor = 2.5 / (norm + 1e-6);
  CHECK(norm > 100);
  std::size_t at = 0;
  for (const optim::Named& p : list) {
    if (!p.tensor.grad().defined()) continue;
    const double tolerance = p.tensor.dtype() == DType::bf16 ? 4e-3 : 1e-6;
    for (const double g : to_host<double>(p.tensor.grad())) {
      CHECK(g == Approx(unclipped[at++] * factor).epsilon(tolerance));
    }
  }
  CHECK(at == unclipped.size());
  CHECK(optim::norm_of(optim::clip_grad_norm(list, 1e9)) == Approx(2.5).epsilon(1e-3));  // unchanged below the bound
}

TEST_CASE("update list: a gradient's sum adds those of its stretches, in any number of launches", "[cuda][optim]") {
  if (!has_cuda()) return;
  constexpr std::int64_t stretch = kernels::square_stretch;
  const std::int64_t n = GENERATE(std::int64_t{5000}, 40 * stretch + 1, 4096 * stretch, 4098 * stretch - 7);
  const Tensor g = to_device(noise({n}, DType::bf16, 5), cuda());
  const std::int64_t count = (n + stretch - 1) / stretch;
  const Tensor parts = Tensor::empty({count}, DType::f64, cuda()), whole = Tensor::empty({1}, DType::f64, cuda());
  launch(cuda(), [&](const Addresses& at) {
    const auto* const from = at.as<const std::uint16_t>(g);
    std::vector<kernels::SquareSumArgs> list = {{n, from, DType::bf16, at.as<double>(whole)}};
    for (std::int64_t k = 0; k < count; ++k) {
      list.push_back({std::min(stretch, n - k * stretch), from + k * stretch, DType::bf16, at.as<double>(parts) + k});
    }
    kernels::optimizer_kernels(cuda()).square_sums(list);
  });
  double sum = 0, exact = 0;
  for (const double part : to_host<double>(parts)) sum += part;
  for (const double value : to_host<double>(g)) exact += value * value;
  CHECK(item(whole) == sum);
  CHECK(sum == Approx(exact).epsilon(1e-12));
}

TEST_CASE("update list: norms and clipping take a few launches", "[cuda][optim]") {
  if (!has_cuda()) return;
  const std::vector<optim::Named> list = parameters(cuda(), std::vector<Shape>(148, Shape{9}), {DType::f32});
  for (const optim::Named& p : list) p.tensor.grad() = to_device(noise({9}, DType::f32, 3), cuda());
  const std::uint64_t before = launches();
  optim::gradient_square_sums(list);
  CHECK(launches() - before == 3 * 2);  // the parts, and their sums
  optim::clip_grad_norm(list, 1);
  CHECK(launches() - before == 2 * 3 * 2 + 3 * 2);  // the factor, and the gradients
}
