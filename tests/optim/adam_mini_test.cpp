// Adam-mini against plain loops in f64.

#include <cmath>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/optim8.h"

using namespace thimble;
using namespace thimble::optim;

namespace {

AdamMiniOptions options_of(NarrowUpdate narrow = NarrowUpdate::rounded) {
  AdamMiniOptions options;
  options.rate = 0.02, options.beta1 = 0.8, options.beta2 = 0.95, options.epsilon = 1e-6;
  options.weight_decay = 0.1, options.smallest_decayed_rank = 2, options.narrow = narrow;
  return options;
}

// The second is longer than what is updated at a time.
const std::vector<Shape> shapes{{5, 3, 4}, {20, 131080}, {9}};

std::vector<Named> make_parameters(DType dtype = DType::f32) {
  RandomGenerator generator(3);
  const GeneratorScope random(generator);
  std::vector<Named> list;
  for (const Shape& shape : shapes) {
    list.push_back({"p" + std::to_string(list.size()), to_dtype(randn(shape), dtype).require_grad()});
  }
  return list;
}

void set_gradients(const std::vector<Named>& list, int step) {
  RandomGenerator generator(static_cast<std::uint64_t>(10 + step));
  const GeneratorScope random(generator);
  for (const Named& p : list) p.tensor.grad() = to_dtype(randn(p.tensor.shape()), p.tensor.dtype());
}

}  // namespace

TEST_CASE("adam-mini: against plain loops in f64", "[adam_mini]") {
  const std::vector<Named> list = make_parameters();
  const AdamMiniOptions options = options_of();
  AdamMini optimizer(list, options);
  optimizer.set_gradient_factor(0.5);
  std::vector<std::vector<double>> p, m, v;
  const std::size_t blocks[] = {5, 20, 1};
  for (std::size_t k = 0; k < list.size(); ++k) {
    p.push_back(to_host<double>(list[k].tensor));
    m.emplace_back(p[k].size()), v.emplace_back(blocks[k]);
  }
  for (int step = 1; step <= 3; ++step) {
    set_gradients(list, step);
    optimizer.step();
    const double c1 = 1 - std::pow(options.beta1, step), c2 = 1 - std::pow(options.beta2, step);
    for (std::size_t k = 0; k < list.size(); ++k) {
      const std::vector<double> g = to_host<double>(list[k].tensor.grad()), now = to_host<double>(list[k].tensor);
      const std::size_t each = g.size() / blocks[k];
      double worst = 0;
      for (std::size_t b = 0; b < blocks[k]; ++b) {
        double mean = 0;
        for (std::size_t i = b * each; i < (b + 1) * each; ++i) mean += 0.25 * g[i] * g[i] / static_cast<double>(each);
        v[k][b] = options.beta2 * v[k][b] + (1 - options.beta2) * mean;
        const double root = std::sqrt(v[k][b] / c2) + options.epsilon;
        for (std::size_t i = b * each; i < (b + 1) * each; ++i) {
          m[k][i] = options.beta1 * m[k][i] + (1 - options.beta1) * 0.5 * g[i];
          const double decay = k == 2 ? 0 : options.weight_decay;
          p[k][i] = p[k][i] * (1 - options.rate * decay) - options.rate * (m[k][i] / c1) / root;
          worst = std::max(worst, std::fabs(now[i] - p[k][i]));
        }
      }
      INFO("parameter " << k << ", step " << step);
      CHECK(worst < 3e-6);
    }
  }
}

TEST_CASE("adam-mini: bytes of state", "[adam_mini]") {
  CHECK(AdamMini(make_parameters(), options_of()).state_bytes() ==
        4 * (5 * 12 + 5 + std::size_t{20} * 131080 + 20 + 9 + 1));
}

TEST_CASE("adam-mini: narrow parameters, part after part", "[adam_mini]") {
  // What a part of a parameter is rounded by is that part's own: a run in f32 beside it, step by step.
  for (const NarrowUpdate narrow : {NarrowUpdate::master, NarrowUpdate::kahan, NarrowUpdate::stochastic}) {
    RandomGenerator generator(1);
    const GeneratorScope random(generator);
    const std::vector<Named> list = make_parameters(DType::bf16);
    std::vector<Named> wide;
    for (const Named& p : list) wide.push_back({p.name, to_dtype(p.tensor.detach(), DType::f32).require_grad()});
    AdamMini optimizer(list, options_of(narrow)), other(wide, options_of());
    for (int step = 1; step <= 2; ++step) {
      set_gradients(list, step);
      for (std::size_t k = 0; k < list.size(); ++k) {
        wide[k].tensor.grad() = to_dtype(list[k].tensor.grad(), DType::f32);
      }
      optimizer.step(), other.step();
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const std::vector<float> a = to_host<float>(list[k].tensor), b = to_host<float>(wide[k].tensor);
      float worst = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        worst = std::max(worst, std::fabs(a[i] - b[i]) / (1 + std::fabs(b[i])));
      INFO(to_string(narrow) << ", parameter " << k);
      CHECK(worst < (narrow == NarrowUpdate::stochastic ? 0.017f : 0.004f));  // two steps of 2^-7, or half of one
      if (narrow == NarrowUpdate::master) {
        CHECK((to_host<float>(to_dtype(wide[k].tensor.detach(), DType::bf16)) == a));
      }
    }
  }
}

TEST_CASE("adam-mini: every part of a parameter draws bits of its own", "[adam_mini]") {
  RandomGenerator generator(1);
  const GeneratorScope random(generator);
  constexpr std::int64_t rows = 17, columns = 131080;  // 8 rows at a time, and the last one
  const auto all_rows = [](const Tensor& row) { return to_dtype(row + zeros({rows, columns}), DType::bf16); };
  const Named p{"p", all_rows(randn({columns})).require_grad()};
  AdamMini optimizer({p}, options_of(NarrowUpdate::stochastic));
  p.tensor.grad() = all_rows(randn({columns}));
  const std::vector<float> before = to_host<float>(p.tensor);
  optimizer.step();
  const std::vector<float> now = to_host<float>(p.tensor);
  for (const std::int64_t other : {1, 8, 16}) {  // of the same part, and at the same place of later ones
    std::int64_t different = 0, moved = 0;
    for (std::int64_t i = 0; i < columns; ++i) {
      const auto at = static_cast<std::size_t>(other * columns + i);
      different += now[static_cast<std::size_t>(i)] != now[at];
      moved += now[at] != before[at];
    }
    INFO("rows 0 and " << other);
    CHECK((different > columns / 10 && moved > columns / 10));
  }
}

TEST_CASE("adam-mini: what is refused", "[adam_mini]") {
  AdamMiniOptions options;
  options.beta1 = 1;
  CHECK_THROWS_WITH(AdamMini(make_parameters(), options),
                    Catch::Contains("adam-mini: expected beta1 in [0, 1), got 1"));
  CHECK_THROWS_AS(AdamMini({{"w", zeros({2, 2}, DType::f64).require_grad()}}, {}), DTypeError);
}
