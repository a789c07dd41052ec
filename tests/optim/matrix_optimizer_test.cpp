// Matrix optimizers against plain loops in f64: Muon, APOLLO-Mini, GaLore, and their common rules.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/matrix/muon.h>
#include <thimble/optim/matrix/projected.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/matrix_f64.h"
#include "support/optim8.h"
#include "support/store_tier.h"

using namespace thimble;
using namespace thimble::optim;
using namespace matrix_test;

namespace {

const std::vector<std::pair<const char*, Shape>> shapes{
    {"wide", {6, 10}}, {"tall", {12, 5}}, {"conv", {4, 2, 2, 3}}, {"emb.weight", {7, 4}}, {"bias", {9}}};

std::vector<Named> make_parameters(DType dtype = DType::f32, memory::Device device = cpu) {
  RandomGenerator generator(3);
  const GeneratorScope random(generator);
  std::vector<Named> list;
  for (const auto& [name, shape] : shapes) {
    Tensor t = device.is_dry ? Tensor::empty(shape, dtype, device) : to_dtype(randn(shape), dtype);
    t.storage()->set_category(memory::Category::parameter);
    list.push_back({name, t.require_grad()});
  }
  return list;
}

void set_gradients(const std::vector<Named>& list, int step) {
  RandomGenerator generator(static_cast<std::uint64_t>(10 + step));
  const GeneratorScope random(generator);
  for (const Named& p : list) {
    p.tensor.grad() = p.tensor.device().is_dry ? Tensor::empty(p.tensor.shape(), p.tensor.dtype(), p.tensor.device())
                                               : to_dtype(randn(p.tensor.shape()), p.tensor.dtype());
  }
}

const MatrixOptions common{.rate = 0.02,
                           .beta1 = 0.8,
                           .beta2 = 0.95,
                           .epsilon = 1e-6,
                           .weight_decay = 0.1,
                           .smallest_decayed_rank = 2,
                           .elementwise = {"emb"}};
constexpr std::size_t matrices = 3;  // the first three shapes

std::unique_ptr<MatrixOptimizer> make(const std::string& name, const std::vector<Named>& list,
                                      const MatrixOptions& options = common) {
  if (name == "muon") return std::make_unique<Muon>(list, MuonOptions{.matrix = options});
  if (name == "galore") return std::make_unique<Galore>(list, GaloreOptions{.matrix = options, .rank = 3, .period = 2});
  return std::make_unique<ApolloMini>(list, ApolloOptions{.matrix = options, .period = 2});
}

const char* const names[] = {"muon", "apollo-mini", "galore"};

Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  for (const Named& s : optimizer.state()) {
    if (s.name == name) return s.tensor;
  }
  FAIL("no state " << name);
  return {};
}

// Runs steps and compares each matrix with a move along `direction` (parameter, gradient, step).
void check_against(Optimizer& optimizer, const std::vector<Named>& list, int steps, double tolerance,
                   const std::function<Matrix(std::size_t, const Matrix&, int)>& direction) {
  std::vector<Matrix> expected;
  for (std::size_t k = 0; k < matrices; ++k) expected.push_back(Matrix::of(list[k].tensor));
  optimizer.set_gradient_factor(0.5);
  for (int step = 1; step <= steps; ++step) {
    set_gradients(list, step);
    optimizer.step();
    for (std::size_t k = 0; k < matrices; ++k) {
      const Matrix along = direction(k, scaled(Matrix::of(list[k].tensor.grad()), 0.5), step);
      const std::vector<double> now = to_host<double>(list[k].tensor);
      double worst = 0, moved = 0;
      for (std::size_t i = 0; i < now.size(); ++i) {
        const double before = expected[k].v[i];
        expected[k].v[i] = before * (1 - common.rate * common.weight_decay) - common.rate * along.v[i];
        worst = std::max(worst, std::fabs(now[i] - expected[k].v[i]));
        moved = std::max(moved, std::fabs(now[i] - before));
        expected[k].v[i] = now[i];
      }
      INFO(list[k].name << " in step " << step << ": off by " << worst << " of " << moved);
      CHECK(worst <= tolerance * moved);
    }
  }
}

struct AdamState {
  std::vector<double> m, v;
  std::vector<double> direction(const std::vector<double>& g, int step) {
    m.resize(g.size()), v.resize(g.size());
    std::vector<double> u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = common.beta1 * m[i] + (1 - common.beta1) * g[i];
      v[i] = common.beta2 * v[i] + (1 - common.beta2) * g[i] * g[i];
      const double c1 = 1 - std::pow(common.beta1, step), c2 = 1 - std::pow(common.beta2, step);
      u[i] = m[i] / c1 / (std::sqrt(v[i] / c2) + common.epsilon);
    }
    return u;
  }
};

}  // namespace

TEST_CASE("matrix optimizers: Muon against plain loops in f64", "[matrix_optimizer]") {
  const std::vector<Named> list = make_parameters();
  Muon muon(list, {.matrix = common});
  std::vector<Matrix> momentum;
  for (std::size_t k = 0; k < matrices; ++k) momentum.push_back(scaled(Matrix::of(list[k].tensor), 0));
  check_against(muon, list, 4, 2e-4, [&](std::size_t k, const Matrix& g, int) {
    momentum[k] = sum(scaled(momentum[k], 0.95), g);
    const Matrix x = sum(g, scaled(momentum[k], 0.95));
    Matrix y = scaled(x, 1 / (x.norm() + 1e-7));
    for (int i = 0; i < 5; ++i) {  // by definition, whichever axis is longer
      const Matrix inner = product(y, transposed(y));
      const Matrix factor = sum(scaled(inner, -4.775), scaled(product(inner, inner), 2.0315));
      y = sum(scaled(y, 3.4445), product(factor, y));
    }
    return scaled(y, 0.2 * std::sqrt(static_cast<double>(std::max(g.rows, g.columns))));
  });
}

TEST_CASE("matrix optimizers: five iterations bring singular values near 1", "[matrix_optimizer]") {
  RandomGenerator generator(5);
  const GeneratorScope random(generator);
  for (const Shape& shape : {Shape{8, 20}, Shape{20, 8}, Shape{12, 40}}) {
    const std::vector<double> values = singular_values(Matrix::of(orthogonalized(randn(shape))));
    INFO(shape[0] << " x " << shape[1] << ": from " << values.back() << " to " << values.front());
    CHECK((values.back() > 0.68 && values.front() < 1.14));
  }
}

TEST_CASE("matrix optimizers: a direction does not depend on the size of its matrix", "[matrix_optimizer]") {
  RandomGenerator generator(6);
  const GeneratorScope random(generator);
  const Tensor x = randn({6, 15});
  const std::vector<double> expected = to_host<double>(orthogonalized(x));
  for (const double factor : {1e-3, 1e20, 1e30}) {  // the squares of the last two are beyond f32
    const std::vector<double> values = to_host<double>(orthogonalized(x * factor));
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == Approx(expected[i]).margin(1e-3));
  }
}

TEST_CASE("matrix optimizers: APOLLO-Mini against plain loops in f64", "[matrix_optimizer]") {
  RandomGenerator generator(9);
  const GeneratorScope random(generator);
  const std::vector<Named> list = make_parameters();
  ApolloMini apollo(list, {.matrix = common, .scale = 2, .period = 2});
  std::vector<AdamState> states(matrices);
  std::vector<double> before(matrices);
  int shortened = 0;
  check_against(apollo, list, 5, 1e-4, [&](std::size_t k, const Matrix& g, int step) {
    const Matrix p = Matrix::of(apollo.projection(k, step));
    const Matrix r = g.rows <= g.columns ? product(p, g) : product(p, transposed(g));
    Matrix u = r;
    u.v = states[k].direction(r.v, step);
    Matrix d = scaled(g, 2 * u.norm() / (r.norm() + 1e-8));
    const double norm = d.norm();
    if (step > 1 && norm > 1.01 * before[k]) d = scaled(d, 1.01 * before[k] / norm), ++shortened;
    before[k] = d.norm();
    return d;
  });
  CHECK(shortened > 2);
  CHECK(shortened < 12);
}

TEST_CASE("matrix optimizers: APOLLO-Mini's projections are normal, and drawn anew every period",
          "[matrix_optimizer]") {
  RandomGenerator generator(9), other(10);
  const std::vector<Named> list{{"w", zeros({4000, 4001}).require_grad()}, {"x", zeros({4000, 4001}).require_grad()}};
  std::unique_ptr<ApolloMini> apollo;
  std::vector<std::vector<double>> drawn;
  {
    const GeneratorScope random(generator);
    apollo = std::make_unique<ApolloMini>(list, ApolloOptions{.period = 3});
    for (const std::int64_t step : {1, 2, 3, 4}) drawn.push_back(to_host<double>(apollo->projection(0, step)));
    drawn.push_back(to_host<double>(apollo->projection(1, 1)));
  }
  const GeneratorScope random(other);
  drawn.push_back(to_host<double>(apollo->projection(0, 1)));
  CHECK(drawn[0] == drawn[1]);
  CHECK(drawn[0] == drawn[2]);
  for (const std::size_t k : {3, 4, 5}) CHECK(drawn[0] != drawn[k]);
  double mean = 0, square = 0;
  REQUIRE(drawn[0].size() == 4000);
  for (const double x : drawn[0]) mean += x / 4000, square += x * x / 4000;
  CHECK(std::fabs(mean) < 4 / std::sqrt(4000.0));
  CHECK(std::fabs(square - 1) < 4 * std::sqrt(2 / 4000.0));
}

TEST_CASE("matrix optimizers: leading vectors are those of a decomposition", "[matrix_optimizer]") {
  RandomGenerator generator(7);
  const GeneratorScope random(generator);
  const Tensor a = randn({9, 30}), begin = randn({9, 4});
  // Singular values far apart: a matrix whose rows have very different lengths.
  Matrix x = Matrix::of(a);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t c = 0; c < x.columns; ++c) x.at(r, c) *= std::pow(0.4, static_cast<double>(r));
  }
  std::vector<float> narrow(x.v.begin(), x.v.end());
  Matrix expected(0, 0);
  singular_values(x, &expected);
  const Matrix found = Matrix::of(leading_vectors(from_host(narrow, {9, 30}), begin, 8));
  const Matrix both = product(transposed(found), found);
  for (std::int64_t i = 0; i < 4; ++i) {
    double along = 0;
    for (std::int64_t r = 0; r < 9; ++r) along += found.at(r, i) * expected.at(r, i);
    CHECK(std::fabs(along) > 0.9999);
    for (std::int64_t j = 0; j < 4; ++j) CHECK(std::fabs(both.at(i, j) - (i == j)) < 1e-5);
  }
  // Rank 2 has only two vectors.
  const Tensor thin = matmul(randn({9, 2}), randn({2, 30}));
  const Matrix few = Matrix::of(leading_vectors(thin, begin));
  const Matrix rest = sum(Matrix::of(thin), scaled(product(few, product(transposed(few), Matrix::of(thin))), -1));
  CHECK(rest.norm() < 1e-4 * Matrix::of(thin).norm());
  for (std::int64_t r = 0; r < 9; ++r) CHECK((few.at(r, 2) == 0 && few.at(r, 3) == 0));
}

TEST_CASE("matrix optimizers: GaLore against plain loops in f64", "[matrix_optimizer]") {
  RandomGenerator generator(9);
  const GeneratorScope random(generator);
  const std::vector<Named> list = make_parameters();
  Galore galore(list, {.matrix = common, .rank = 3, .period = 2, .scale = 0.7});
  std::vector<AdamState> states(matrices);
  std::vector<Matrix> projections(matrices, Matrix(0, 0));
  check_against(galore, list, 5, 1e-4, [&](std::size_t k, const Matrix& g, int step) {
    const Matrix p = Matrix::of(state_of(galore, list[k].name + ".projection"));
    const bool is_wide = g.rows <= g.columns;
    const Matrix wide = is_wide ? g : transposed(g);
    REQUIRE((p.rows == wide.rows && p.columns == 3));
    if (step % 2 == 1) {
      // Four iterations do not reach the decomposition where values are close, but capture nearly as much.
      const std::vector<double> values = singular_values(wide);
      const double most = std::sqrt(values[0] * values[0] + values[1] * values[1] + values[2] * values[2]);
      CHECK(product(transposed(p), wide).norm() > 0.97 * most);
    } else {
      CHECK(p.v == projections[k].v);
    }
    projections[k] = p;
    Matrix r = product(transposed(p), wide);
    r.v = states[k].direction(r.v, step);
    const Matrix d = scaled(product(p, r), 0.7);
    return is_wide ? d : transposed(d);
  });
}

TEST_CASE("matrix optimizers: GaLore draws its directions anew every period", "[matrix_optimizer]") {
  RandomGenerator generator(4);
  const GeneratorScope random(generator);
  const std::vector<Named> list{{"w", zeros({6, 9}).require_grad()}};
  const Tensor gradient = randn({6, 9});
  Galore galore(list, {.rank = 2, .period = 2});
  std::vector<std::vector<double>> seen;
  for (int step = 0; step < 3; ++step) {
    list[0].tensor.grad() = clone(gradient);
    galore.step();
    seen.push_back(to_host<double>(state_of(galore, "w.projection")));
  }
  CHECK(seen[0] == seen[1]);
  CHECK(seen[0] != seen[2]);  // four iterations from another start
}

TEST_CASE("matrix optimizers: all but matrices has the bits of AdamW", "[matrix_optimizer]") {
  for (const char* const name : names) {
    const std::vector<Named> list = make_parameters(), other = make_parameters();
    const std::unique_ptr<MatrixOptimizer> optimizer = make(name, list);
    Adam adam(other, {.rate = common.rate,
                      .beta1 = common.beta1,
                      .beta2 = common.beta2,
                      .epsilon = common.epsilon,
                      .weight_decay = common.weight_decay,
                      .smallest_decayed_rank = 2});
    for (int step = 1; step <= 3; ++step) {
      set_gradients(list, step), set_gradients(other, step);
      optimizer->step(), adam.step();
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      INFO(name << ", " << list[k].name);
      CHECK((to_host<float>(list[k].tensor) == to_host<float>(other[k].tensor)) == (k >= matrices));
    }
  }
}

TEST_CASE("matrix optimizers: a factor has the bits of gradients that it multiplied", "[matrix_optimizer]") {
  enum class By { factor, gradient, nothing };
  for (const std::string name : names) {
    INFO(name);
    const auto trained = [&](By by) {
      const std::vector<Named> list = make_parameters();
      const auto optimizer = make(name, list);
      for (int step = 0; step < 3; ++step) {
        set_gradients(list, step);
        const double factor = 1.0 / (1 << (4 * step));  // a different power of two in each step
        if (by == By::factor) optimizer->set_gradient_factor(factor);
        for (const Named& p : list) {
          if (by == By::gradient) p.tensor.grad() = mul(p.tensor.grad(), factor);
        }
        optimizer->step();
      }
      std::vector<std::vector<float>> values;
      for (const Named& p : list) values.push_back(to_host<float>(p.tensor));
      return values;
    };
    const auto by_factor = trained(By::factor), plain = trained(By::nothing);
    CHECK(by_factor == trained(By::gradient));
    for (std::size_t i = 0; i < matrices; ++i) CHECK(by_factor[i] != plain[i]);
  }
}

TEST_CASE("matrix optimizers: bytes of state", "[matrix_optimizer]") {
  const std::size_t others = 8 * (7 * 4 + 9);
  const auto bytes = [](const char* name) { return make(name, make_parameters())->state_bytes(); };
  CHECK(bytes("muon") == 4 * (6 * 10 + 12 * 5 + 4 * 12) + others);
  CHECK(bytes("apollo-mini") == 8 * (10 + 12 + 12) + 3 * 4 + others);
  CHECK(bytes("galore") == 4 * ((2 * 10 + 6) * 3 + (2 * 12 + 5) * 3 + (2 * 12 + 4) * 3) + others);
  // A rank above the shorter axis is reduced to it.
  CHECK(Galore(make_parameters(), {.matrix = common, .rank = 100}).state_bytes() ==
        4 * ((2 * 10 + 6) * 6 + (2 * 12 + 5) * 5 + (2 * 12 + 4) * 4) + others);
}

TEST_CASE("matrix optimizers: the same bits away, resumed, and with more threads", "[matrix_optimizer]") {
  const optim8_test::Restore restore;
  for (const char* const name : names) {
    INFO(name);
    RandomGenerator generator(9);
    const GeneratorScope random(generator);
    const std::vector<Named> list = make_parameters(), away = make_parameters(), resumed = make_parameters();
    MatrixOptions options = common;
    options.tier = std::make_shared<store_test::MemoryTier>();
    const auto one = make(name, list), other = make(name, away, options);
    std::unique_ptr<MatrixOptimizer> third;
    for (int step = 1; step <= 6; ++step) {
      set_thread_count(1);
      set_gradients(list, step), one->step();
      set_thread_count(3);
      set_gradients(away, step), other->step();
      if (third != nullptr) set_gradients(resumed, step), third->step();
      if (step != 3) continue;
      third = make(name, resumed);
      for (std::size_t k = 0; k < list.size(); ++k) copy_into(resumed[k].tensor.detach(), list[k].tensor.detach());
      for (const Named& s : one->state()) copy_into(state_of(*third, s.name), s.tensor);
      third->set_step_count(3);
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      CHECK(to_host<float>(list[k].tensor) == to_host<float>(away[k].tensor));
      CHECK(to_host<float>(list[k].tensor) == to_host<float>(resumed[k].tensor));
    }
  }
}

TEST_CASE("matrix optimizers: a dry update takes the bytes of a real one", "[matrix_optimizer]") {
  for (const char* const name : names) {
    std::size_t peaks[2];
    for (const bool is_dry : {false, true}) {
      const memory::Device device = is_dry ? dry(cpu) : cpu;
      const memory::Stack stack = memory::make_resource(device);
      const ResourceScope scope(stack.top);
      RandomGenerator generator(9);
      const GeneratorScope random(generator);
      const std::vector<Named> list = make_parameters(DType::bf16, device);
      MatrixOptions options = common;
      options.narrow = NarrowUpdate::master;
      const auto optimizer = make(name, list, options);
      for (int step = 1; step <= 3; ++step) set_gradients(list, step), optimizer->step();
      peaks[is_dry] = stack.ledger->max_allocated();
    }
    INFO(name);
    CHECK(peaks[0] == peaks[1]);
  }
}

TEST_CASE("matrix optimizers: what is refused", "[matrix_optimizer]") {
  const std::vector<Named> list = make_parameters();
  CHECK_THROWS_WITH(Muon(list, {.momentum = 1}), Catch::Contains("muon: expected momentum in (0, 1), got 1"));
  CHECK_THROWS_WITH(Muon(list, {.iterations = 0}), Catch::Contains("muon: expected iterations >= 1"));
  CHECK_THROWS_WITH(Galore(list, {.rank = 0}), Catch::Contains("galore: expected rank >= 1, got 0"));
  CHECK_NOTHROW(Galore(list, {.rank = 1, .period = 1}));
  CHECK_THROWS_WITH(Galore(list, {.period = 0}), Catch::Contains("galore: expected period >= 1, got 0"));
  CHECK_THROWS_WITH(ApolloMini(list, {.scale = -1}), Catch::Contains("apollo-mini: expected scale > 0, got -1"));
  CHECK_NOTHROW(ApolloMini(list, {.growth = 1}));
  CHECK_THROWS_WITH(ApolloMini(list, {.growth = 0.5}), Catch::Contains("apollo-mini: expected growth >= 1"));
  CHECK_THROWS_WITH(Muon(list, {.matrix = {.elementwise = {"em"}}}),
                    Catch::Contains("muon: no parameter is named 'em' or begins with 'em.'"));
  CHECK_THROWS_WITH(Muon(list, {.matrix = {.beta2 = 1}}), Catch::Contains("expected beta2 in [0, 1)"));
  constexpr double inf = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(Muon(list, {.matrix = {.epsilon = inf}}), Catch::Contains("epsilon >= 0 and finite, got inf"));
  CHECK_THROWS_WITH(ApolloMini(list, {.growth = inf}), Catch::Contains("growth >= 1 and finite, got inf"));
  CHECK_THROWS_AS(Adam(list, {.epsilon = inf}), ValueError);
  CHECK_THROWS_AS(AdamMini(list, {.weight_decay = inf}), ValueError);
  CHECK_THROWS_AS(Sgd(list, {.weight_decay = inf}), ValueError);
  CHECK_THROWS_AS(Adafactor(list, {.clip = inf}), ValueError);
  CHECK_THROWS_AS(Muon({{"w", zeros({2, 2}, DType::f64).require_grad()}}, {}), DTypeError);
}
