// Optimizers against plain loops in f64, and learning-rate schedules against their formulas.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/schedule.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/near.h"
#include "support/optim8.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::optim;

namespace {

using Values = std::vector<double>;

constexpr int steps = 20;

// The parameters of every test: a matrix longer than a kernel's chunk, a vector, and one without a gradient.
const std::vector<Shape> shapes{{3, 411}, {7}, {5, 2}};
constexpr std::size_t with_gradient = 2;

double start_value(std::size_t p, std::size_t i) { return std::sin(0.37 * double(i) + double(p)); }
// Changes sign over steps and elements; the first step of every seventh element has no gradient at all.
double gradient_value(std::size_t p, std::size_t i, int step) {
  return i % 7 == 3 && step == 1 ? 0 : 0.5 * std::cos(0.11 * double(i) + 0.9 * step + double(p));
}
double rate_at(int step) { return 0.02 / (1 + 0.1 * step); }

// One element's state in a plain loop.
struct Scalar {
  double p = 0, m = 0, v = 0;
};
using Update = void (*)(Scalar&, double gradient, double rate, double decay, int step);

void sgd_plain(Scalar& s, double g, double rate, double decay, int) { s.p -= rate * (g + decay * s.p); }
void sgd_momentum(Scalar& s, double g, double rate, double decay, int) {
  s.m = 0.9 * s.m + g + decay * s.p;
  s.p -= rate * s.m;
}
void sgd_nesterov(Scalar& s, double g, double rate, double decay, int) {
  const double d = g + decay * s.p;
  s.m = 0.9 * s.m + d;
  s.p -= rate * (d + 0.9 * s.m);
}
// Kingma & Ba 2015, algorithm 1: both moments corrected for their start at zero.
void adam_step(Scalar& s, double d, double rate, int step) {
  s.m = 0.8 * s.m + (1 - 0.8) * d;
  s.v = 0.95 * s.v + (1 - 0.95) * d * d;
  const double m = s.m / (1 - std::pow(0.8, step)), v = s.v / (1 - std::pow(0.95, step));
  s.p -= rate * m / (std::sqrt(v) + 1e-6);
}
void adam_l2(Scalar& s, double g, double rate, double decay, int step) { adam_step(s, g + decay * s.p, rate, step); }
void adamw(Scalar& s, double g, double rate, double decay, int step) {
  s.p -= rate * decay * s.p;
  adam_step(s, g, rate, step);
}

std::unique_ptr<Optimizer> make_sgd(const std::vector<Named>& list, double momentum, double decay, bool nesterov) {
  return std::make_unique<Sgd>(list, SgdOptions{0.1, momentum, decay, nesterov});
}
std::unique_ptr<Optimizer> make_adam(const std::vector<Named>& list, double decay, bool is_decoupled, int rank) {
  return std::make_unique<Adam>(list, AdamOptions{0.1, 0.8, 0.95, 1e-6, decay, is_decoupled, rank});
}

struct Row {
  const char* what;
  std::unique_ptr<Optimizer> (*make)(const std::vector<Named>&);
  Update update;
  double decay;
  int smallest_decayed_rank;
  std::size_t state_values;  // per element of every parameter
  const char* name;
};

using List = const std::vector<Named>&;
template <class Rule, class Options>
std::unique_ptr<Optimizer> made(List list, double rate, double decay, int rank) {
  return std::make_unique<Rule>(list, Options{.rate = rate, .weight_decay = decay, .smallest_decayed_rank = rank});
}
const std::vector<Row> rows{
    {"sgd", [](List l) { return make_sgd(l, 0, 0, false); }, sgd_plain, 0, 0, 0, "sgd"},
    {"sgd, decay", [](List l) { return make_sgd(l, 0, 0.1, false); }, sgd_plain, 0.1, 0, 0, "sgd"},
    {"momentum", [](List l) { return make_sgd(l, 0.9, 0, false); }, sgd_momentum, 0, 0, 1, "sgd"},
    {"momentum, decay", [](List l) { return make_sgd(l, 0.9, 0.1, false); }, sgd_momentum, 0.1, 0, 1, "sgd"},
    {"nesterov", [](List l) { return make_sgd(l, 0.9, 0, true); }, sgd_nesterov, 0, 0, 1, "sgd"},
    {"nesterov, decay", [](List l) { return make_sgd(l, 0.9, 0.1, true); }, sgd_nesterov, 0.1, 0, 1, "sgd"},
    {"adam", [](List l) { return make_adam(l, 0, false, 0); }, adam_l2, 0, 0, 2, "adam"},
    {"adam, L2", [](List l) { return make_adam(l, 0.1, false, 0); }, adam_l2, 0.1, 0, 2, "adam"},
    {"adamw", [](List l) { return make_adam(l, 0.1, true, 0); }, adamw, 0.1, 0, 2, "adamw"},
    {"adamw, matrices decayed", [](List l) { return make_adam(l, 0.1, true, 2); }, adamw, 0.1, 2, 2, "adamw"},
};

std::vector<Named> make_parameters(DType dtype, memory::Device device = cpu) {
  std::vector<Named> list;
  for (std::size_t p = 0; p < shapes.size(); ++p) {
    Values values(static_cast<std::size_t>(shapes[p].elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = start_value(p, i);
    Tensor t = to_dtype(from_host(values, shapes[p], device), dtype);
    if (t.storage()) t.storage()->set_category(memory::Category::parameter);
    list.push_back({"p" + std::to_string(p), t.require_grad()});
  }
  return list;
}

void set_gradients(const std::vector<Named>& list, int step, DType dtype) {
  for (std::size_t p = 0; p < with_gradient; ++p) {
    Values g(static_cast<std::size_t>(shapes[p].elements()));
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = gradient_value(p, i, step);
    list[p].tensor.grad() = to_dtype(from_host(g, shapes[p]), dtype);
  }
}

}  // namespace

TEST_CASE("optim: twenty steps against plain loops in f64", "[optim]") {
  for (const Row& row : rows) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      INFO(row.what << ", " << to_string(dtype));
      const std::vector<Named> list = make_parameters(dtype);
      const std::unique_ptr<Optimizer> optimizer = row.make(list);
      CHECK(std::string(optimizer->name()) == row.name);
      std::vector<std::vector<Scalar>> expected(with_gradient);
      for (std::size_t p = 0; p < with_gradient; ++p) {
        for (const double v : to_host<double>(list[p].tensor)) expected[p].push_back({v});
      }
      for (int step = 1; step <= steps; ++step) {
        set_gradients(list, step, dtype);
        optimizer->set_rate(rate_at(step));
        optimizer->step();
        for (std::size_t p = 0; p < with_gradient; ++p) {
          const double decay = shapes[p].rank() >= row.smallest_decayed_rank ? row.decay : 0;
          const Values g = to_host<double>(list[p].tensor.grad());  // rounded to the dtype
          for (std::size_t i = 0; i < g.size(); ++i) row.update(expected[p][i], g[i], rate_at(step), decay, step);
        }
      }
      CHECK(optimizer->step_count() == steps);
      // Values stay below 2 and every step moves them by less than 0.2 (the rate times a momentum sum of 10 gradients):
      // a step rounds the parameter once or twice (half a unit of 2 each) and the move by a few units of 0.2.
      const double unit = dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
      const double tolerance = steps * (2 * unit + 5 * 0.2 * unit);
      for (std::size_t p = 0; p < with_gradient; ++p) {
        const Values got = to_host<double>(list[p].tensor);
        double worst = 0, moved = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          worst = thimble_test::worse(worst, std::abs(got[i] - expected[p][i].p));
          moved = thimble_test::worse(moved, std::abs(got[i] - start_value(p, i)));
        }
        INFO("largest error " << worst << ", allowed " << tolerance << ", largest move " << moved);
        CHECK(worst <= tolerance);
        CHECK(moved > 0.005);
        CHECK(moved < 2);
      }
    }
  }
}

TEST_CASE("optim: parameters without a gradient are left alone", "[optim]") {
  for (const Row& row : rows) {
    INFO(row.what);
    const std::vector<Named> list = make_parameters(DType::f32);
    const std::unique_ptr<Optimizer> optimizer = row.make(list);
    const Values before = to_host<double>(list[with_gradient].tensor);
    // A step changes the version of each tensor that it writes, so that backward notices.
    std::vector<Named> written = optimizer->state();
    written.insert(written.end(), list.begin(), list.end());
    std::vector<std::uint32_t> versions;
    for (const Named& t : written) versions.push_back(t.tensor.storage()->version());
    for (int step = 1; step <= 3; ++step) {
      set_gradients(list, step, DType::f32);
      optimizer->step();
    }
    CHECK(to_host<double>(list[with_gradient].tensor) == before);
    const std::string without = "p" + std::to_string(with_gradient);
    for (std::size_t i = 0; i < written.size(); ++i) {
      INFO(written[i].name);
      CHECK((written[i].tensor.storage()->version() == versions[i]) == written[i].name.starts_with(without));
    }
    for (const Named& s : optimizer->state()) {
      const Values values = to_host<double>(s.tensor);
      CHECK((values == Values(values.size())) == s.name.starts_with(without + "."));
    }
    optimizer->zero_grad();
    const Values at_rest = to_host<double>(list[0].tensor);
    optimizer->step();  // no gradients at all
    CHECK(to_host<double>(list[0].tensor) == at_rest);
  }
}

TEST_CASE("optim: groups have a rate and a decay, as optimizers of their parameters would", "[optim]") {
  struct Maker {
    const char* name;
    double decay_of_vector;
    std::unique_ptr<Optimizer> (*make)(List list, double rate, double decay, int smallest_decayed_rank);
  };
  const Maker makers[] = {{"sgd", 0,
                           [](List list, double rate, double decay, int) -> std::unique_ptr<Optimizer> {
                             return std::make_unique<Sgd>(
                                 list, SgdOptions{.rate = rate, .momentum = 0.9, .weight_decay = decay});
                           }},
                          {"adamw", 0.05, made<Adam, AdamOptions>},
                          {"adafactor", 0.05, made<Adafactor, AdafactorOptions>},
                          {"adam-mini", 0.05, made<AdamMini, AdamMiniOptions>}};
  for (const Maker& maker : makers) {
    INFO(maker.name);
    const double own = maker.decay_of_vector;  // though the rule decays matrices only
    const std::vector<ParameterGroup> groups{
        {.has = [](const Named& p) { return p.tensor.rank() == 1; }, .rate_factor = 0.25, .weight_decay = own},
        {.has = [](const Named& p) { return p.name == "p0"; }, .rate_factor = 3}};
    const std::vector<Named> list = make_parameters(DType::f32), apart = make_parameters(DType::f32);
    const auto together = maker.make(list, 0.02, 0.1, 2);
    together->set_groups(groups);
    const auto of_vector = maker.make({apart[1]}, 0.02 * 0.25, own, 0);
    const auto of_matrix = maker.make({apart[0]}, 0.02 * 3, 0.1, 0);
    const auto unlike = make_parameters(DType::f32);
    const auto plain = maker.make(unlike, 0.02, 0.1, 2);
    for (int step = 1; step <= 3; ++step) {
      for (const auto* of : {&list, &apart, &unlike}) set_gradients(*of, step, DType::f32);
      for (Optimizer* const optimizer : {together.get(), of_vector.get(), of_matrix.get(), plain.get()}) {
        optimizer->step();
      }
    }
    for (std::size_t p = 0; p < with_gradient; ++p) {
      CHECK(to_host<double>(list[p].tensor) == to_host<double>(apart[p].tensor));
      CHECK(to_host<double>(list[p].tensor) != to_host<double>(unlike[p].tensor));
    }
    const std::vector<Setting> expected{{"p0.rate_factor", 3}, {"p1.rate_factor", 0.25}, {"p1.weight_decay", own}};
    CHECK((together->group_settings() == expected));
    together->set_groups({});
    CHECK(together->group_settings().empty());
    const auto refused = [&](const std::vector<ParameterGroup>& given) {
      CHECK_THROWS_AS(together->set_groups(given), ValueError);
    };
    refused({{.has = nullptr}});
    if (maker.name == std::string("adafactor")) {
      Adafactor relative(make_parameters(DType::f32), {.has_relative_step = true});
      CHECK_THROWS_AS(relative.set_groups(groups), ValueError);
    }
    refused({{.has = [](const Named& p) { return p.name == "other"; }}});
    refused({{.has = [](const Named&) { return true; }}, {.has = [](const Named& p) { return p.name == "p1"; }}});
    refused({{.has = [](const Named&) { return true; }, .rate_factor = -1}});
    refused({{.has = [](const Named&) { return true; }, .weight_decay = std::numeric_limits<double>::infinity()}});
  }
}

TEST_CASE("optim: state_bytes is what the ledger books", "[optim]") {
  std::size_t elements = 0;
  for (const Shape& shape : shapes) elements += static_cast<std::size_t>(shape.elements());
  for (const Row& row : rows) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const memory::Device device : {cpu, dry(cpu)}) {
        INFO(row.what << ", " << to_string(dtype) << " on " << to_string(device));
        const memory::Stack stack = memory::make_resource(device);
        const ResourceScope on(stack.top);
        const std::vector<Named> list = make_parameters(dtype, device);
        const std::unique_ptr<Optimizer> optimizer = row.make(list);
        const std::size_t expected = elements * row.state_values * (dtype == DType::f64 ? 8 : 4);
        CHECK(optimizer->state_bytes() == expected);
        CHECK(stack.ledger->bytes(memory::Category::optimizer) == expected);
        CHECK(optimizer->state().size() == row.state_values * shapes.size());
        const std::size_t all = stack.ledger->bytes();
        if (!device.is_dry) set_gradients(list, 1, dtype);
        stack.ledger->reset_peak();
        const std::size_t peak = stack.ledger->max_allocated();
        optimizer->step();  // allocates nothing
        CHECK(stack.ledger->max_allocated() == peak);
        optimizer->zero_grad();
        CHECK(stack.ledger->bytes() == all);
      }
    }
  }
}

TEST_CASE("optim: narrow parameters are updated in f32 and rounded once", "[optim]") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Row& row : rows) {
      INFO(row.what << ", " << to_string(dtype));
      const std::vector<Named> narrow = make_parameters(dtype);
      std::vector<Named> wide;
      for (const Named& p : narrow) {
        Tensor t = to_dtype(p.tensor.detach(), DType::f32);
        wide.push_back({p.name, t.require_grad()});
      }
      const std::unique_ptr<Optimizer> a = row.make(narrow), b = row.make(wide);
      set_gradients(narrow, 1, dtype);
      for (std::size_t p = 0; p < with_gradient; ++p) {
        wide[p].tensor.grad() = to_dtype(narrow[p].tensor.grad(), DType::f32);
      }
      a->step(), b->step();
      for (std::size_t p = 0; p < shapes.size(); ++p) {
        CHECK(to_host<float>(narrow[p].tensor) == to_host<float>(to_dtype(wide[p].tensor.detach(), dtype)));
      }
    }
  }
}

TEST_CASE("optim: options that make no sense are refused", "[optim]") {
  const std::vector<Named> list = make_parameters(DType::f32);
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const SgdOptions& options :
       {SgdOptions{-1}, SgdOptions{nan}, SgdOptions{infinity}, SgdOptions{0.1, -0.1}, SgdOptions{0.1, 1},
        SgdOptions{0.1, nan}, SgdOptions{0.1, 0, -1}, SgdOptions{0.1, 0, nan}, SgdOptions{0.1, 0, 0, true}}) {
    CHECK_THROWS_AS(Sgd(list, options), ValueError);
  }
  for (const double momentum : {0.0, 1.0, nan}) {  // 8-bit moments need a valid momentum
    CHECK_THROWS_AS(Sgd(list, {.momentum = momentum, .moments = {.dtype = DType::u8}}), ValueError);
  }
  for (const AdamOptions& options :
       {AdamOptions{-1}, AdamOptions{nan}, AdamOptions{0.1, -0.1}, AdamOptions{0.1, 1}, AdamOptions{0.1, nan},
        AdamOptions{0.1, 0.9, 1}, AdamOptions{0.1, 0.9, nan}, AdamOptions{0.1, 0.9, 0.999, -1},
        AdamOptions{0.1, 0.9, 0.999, nan}, AdamOptions{0.1, 0.9, 0.999, 1e-8, -1}}) {
    CHECK_THROWS_AS(Adam(list, options), ValueError);
  }
  Sgd sgd(list, {});
  for (const double rate : {-1.0, nan, infinity}) CHECK_THROWS_AS(sgd.set_rate(rate), ValueError);
  CHECK_THROWS_WITH(sgd.set_rate(-1), "optimizer: learning rate -1.000000 is not a finite number >= 0");
  CHECK(sgd.rate() == 0.1);
  CHECK_THROWS_WITH(sgd.set_step_count(-5), "optimizer: step count -5; expected at least 0");
  CHECK(sgd.step_count() == 0);
  CHECK_THROWS_AS(Sgd({{"constant", zeros({2})}}, {}), AutogradError);
}

TEST_CASE("optim: gradients that are not dense, of the parameter's shape and on its device are refused", "[optim]") {
  const memory::Device away = dry(cpu);
  const memory::Stack stack = memory::make_resource(away);
  const ResourceScope scope(stack.top);
  Tensor p = full({2, 3}, 1);
  p.require_grad();
  const std::vector<Named> list{{"w", p}};
  Sgd sgd(list, {});
  using refusal_test::refusal;
  const std::string begin = ": the gradient of w is f32 ", strided = "; expected a dense one, as contiguous() makes";
  const auto check = [&](const Tensor& gradient, const std::string& text) {
    p.grad() = gradient;
    INFO(text);
    CHECK(refusal<Error>([&] { sgd.step(); }) == "optimizer" + begin + text);
    CHECK(refusal<Error>([&] { sgd.step_one(0); }) == "optimizer" + begin + text);
    CHECK(refusal<Error>([&] { clip_grad_norm(list, 1); }) == "clip_grad_norm" + begin + text);
    CHECK(sgd.step_count() == 0);
    CHECK(to_host<float>(p) == std::vector<float>(6, 1));
  };
  check(view::transpose(full({3, 2}, 1)), "(2, 3) on cpu with strides (1, 2)" + strided);
  check(view::expand(full({1, 3}, 1), {2, 3}), "(2, 3) on cpu with strides (0, 1)" + strided);
  check(view::slice(full({2, 6}, 1), 1, 0, 6, 2), "(2, 3) on cpu with strides (6, 2)" + strided);
  check(full({3, 2}, 1), "(3, 2) on cpu; expected (2, 3)");
  check(full({2, 0}, 1), "(2, 0) on cpu; expected (2, 3)");
  check(Tensor::empty({2, 3}, DType::f32, away), "(2, 3) on " + to_string(away) + "; expected one on cpu");
  p.grad() = view::slice(full({4, 3}, 1), 0, 1, 3);  // dense, in the middle of its storage
  sgd.step();
  CHECK(to_host<float>(p) == std::vector<float>(6, 0.9f));
}

TEST_CASE("optim: schedules at their corners", "[optim]") {
  const double pi = std::numbers::pi;
  for (const std::int64_t step : {0, 1, 1000000}) CHECK(constant_rate(0.3, step) == 0.3);

  for (const std::int64_t step : {0, 1, 9, 10, 19, 20, 99, 100}) {
    const auto drops = static_cast<int>(step / 10);
    CHECK(step_rate(2, step, 10, 0.5) == 2 * std::pow(0.5, drops));
  }
  CHECK(step_rate(1, 9, 10) == 1);
  CHECK(step_rate(1, 10, 10) == 0.1);
  CHECK_THROWS_AS(step_rate(1, 5, 0), ValueError);
  CHECK_THROWS_AS(step_rate(1, 5, -3), ValueError);

  struct Row {
    std::int64_t step, warmup, total;
    double lowest, expected;
  };
  for (const Row& row : {
           Row{0, 10, 110, 0.1, 0.2},                                     // the first step already learns
           Row{8, 10, 110, 0.1, 1.8},                                     //
           Row{9, 10, 110, 0.1, 2},                                       // the end of the warm-up: the full rate
           Row{10, 10, 110, 0.1, 2},                                      // the cosine's top
           Row{11, 10, 110, 0.1, 0.1 + 0.95 * (1 + std::cos(pi / 100))},  //
           Row{60, 10, 110, 0.1, 1.05},                                   // half way: the mean
           Row{109, 10, 110, 0.1, 0.1 + 0.95 * (1 + std::cos(0.99 * pi))},
           Row{110, 10, 110, 0.1, 0.1},  // the end
           Row{100000, 10, 110, 0.1, 0.1},
           Row{0, 0, 4, 0, 2},  // without a warm-up
           Row{1, 0, 4, 0, 1 + std::cos(pi / 4)},
           Row{2, 0, 4, 0, 1},
           Row{4, 0, 4, 0, 0},
           Row{0, 4, 4, 0.5, 0.5},  // a warm-up and nothing else
           Row{3, 4, 4, 0.5, 2},
           Row{4, 4, 4, 0.5, 0.5},
           Row{0, 0, 0, 0.5, 0.5},
       }) {
    INFO("step " << row.step << " of " << row.total << ", warm-up " << row.warmup);
    CHECK(std::abs(cosine_rate(2, row.step, row.warmup, row.total, row.lowest) - row.expected) <= 4 * 0x1p-52);
  }
  for (std::int64_t step = 10; step < 110; ++step)
    CHECK(cosine_rate(2, step + 1, 10, 110) < cosine_rate(2, step, 10, 110));
  CHECK_THROWS_AS(cosine_rate(1, 0, -1, 10), ValueError);
  CHECK_THROWS_AS(cosine_rate(1, 0, 11, 10), ValueError);
  // torch.optim.lr_scheduler.OneCycleLR, PyTorch 2.
  struct Cycle {
    std::int64_t total;
    double rise, start, end;
    std::vector<double> rates;
  };
  const Cycle cycles[] = {
      {10,
       0.3,
       25,
       1e4,
       {0.080000000000000071, 1.04, 2, 1.9009692640269473, 1.6234913078995261, 1.2225240438725786, 0.77748395612742149,
        0.37651669210047395, 0.099038735973052572, 7.9999999999999996e-06}},
      {7,
       0.45,
       10,
       100,
       {0.2, 1.0015659124599128, 1.9784682898003343, 1.7691815748140227, 1.062100499161021, 0.31654342674712371,
        0.002}},
      {2, 0.3, 25, 1e4, {1.6234913078995259, 8e-06}},
      {1, 0.3, 25, 1e4, {8e-06}},
      {2, 0.75, 25, 1e4, {0.08, 8e-06}},  // it would rise until step 0.5
  };
  for (const Cycle& c : cycles) {
    for (std::int64_t step = 0; step < c.total + 2; ++step) {
      const double expected = c.rates[static_cast<std::size_t>(std::min(step, c.total - 1))];
      CHECK(std::abs(one_cycle_rate(2, step, c.total, c.rise, c.start, c.end) - expected) < 1e-15 * c.start);
    }
  }
  CHECK_THROWS_AS(one_cycle_rate(1, 0, 0), ValueError);
  CHECK_THROWS_AS(one_cycle_rate(1, 0, 10, 1), ValueError);
  CHECK_THROWS_AS(one_cycle_rate(1, 0, 10, 0.3, 0.5), ValueError);
  CHECK(one_cycle_rate(3, 9, 10, 0.3, 1, 1) == 3);
}

TEST_CASE("schedules: a rate falls on a plateau as PyTorch's ReduceLROnPlateau", "[optim]") {
  optim::Plateau plateau({.factor = 0.3, .patience = 1, .threshold = 0.02, .least_factor = 0.05});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> losses{1.0, 0.9, 0.95, 0.8999, 0.91, 0.92, 0.5,  0.495, 0.6,
                                   nan, 0.6, 0.48, 0.3,    0.31, 0.32, 0.33, 0.34};
  // torch 2.15, ReduceLROnPlateau(SGD with lr 1, factor 0.3, patience 1, threshold 0.02, min_lr 0.05)
  const std::vector<double> expected{1.0,  1.0,  1.0,  0.3,  0.3,  0.09, 0.09, 0.09, 0.05,
                                     0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    INFO("evaluation " << i);
    plateau.add(losses[i]);
    CHECK(plateau.state().factor == Approx(expected[i]));
  }
  CHECK(plateau.state().least_loss == 0.3);
  optim::Plateau below_zero({.factor = 0.5, .patience = 0, .threshold = 0.1});  // for a log-likelihood
  for (const double loss : {-10.0, -10.5, -11.5}) below_zero.add(loss);
  CHECK(below_zero.state().factor == 0.5);  // -10.5 is not below -11
  CHECK(below_zero.state().least_loss == -11.5);
  CHECK_THROWS_WITH(optim::Plateau({.factor = 1}), Catch::Contains("0 < factor < 1, got 1"));
  CHECK_THROWS_AS(optim::Plateau({.patience = -1}), ValueError);
  CHECK_THROWS_AS(optim::Plateau({.threshold = 1}), ValueError);
  CHECK_THROWS_AS(optim::Plateau({.least_factor = 2}), ValueError);
  const optim::Plateau::State before = plateau.state();
  for (const optim::Plateau::State& state : {optim::Plateau::State{nan, 0, 1}, {1, -1, 1}, {1, 0, nan}, {1, 0, 1.5}}) {
    CHECK_THROWS_AS(plateau.set_state(state), ValueError);
  }
  CHECK_THROWS_WITH(plateau.set_state({1, 0, 1.5}), Catch::Contains("got 1.5"));
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
    const std::string end = dtype == DType::u8 ? "8" : dtype == DType::bf16 ? "_bf16" : "";
    const auto name_of = [&](bool is_decoupled) {
      return optim::Adam(make_parameters(DType::f32), {.is_decoupled = is_decoupled, .moments = {dtype}}).name();
    };
    CHECK(name_of(true) == "adamw" + end);
    CHECK(name_of(false) == "adam" + end);
  }
  CHECK(plateau.state() == before);
}

// ---- Invalid options of a step, and clipping with nothing to clip.

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

// ---- One gradient whose square overflows f32, as optim/adam.h and adafactor.h describe: some elements stop, others go
// on.

TEST_CASE("optim: a gradient whose square overflows stops what shares its second moment", "[optim]") {
  using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<optim::Named>)>;
  const auto adam = [](DType moments) -> Make {
    return [=](std::vector<optim::Named> p) {
      return std::make_unique<optim::Adam>(std::move(p), optim::AdamOptions{.rate = 1e-3, .moments = {moments, 1, {}}});
    };
  };
  const Make adafactor = [](std::vector<optim::Named> p) {
    return std::make_unique<optim::Adafactor>(std::move(p), optim::AdafactorOptions{.scales_by_parameter = false});
  };
  struct Row {
    const char* name;
    Make make;
    Shape shape;
    std::function<bool(std::int64_t)> stops;  // whether an element stops when number 5 has the gradient
    std::function<bool(std::int64_t)> is_lost = [](std::int64_t) { return false; };  // NaN from the next step on
  };
  const Row rows[] = {
      {"adam", adam(DType::f32), {600}, [](std::int64_t i) { return i == 5; }},
      {"adam in bf16", adam(DType::bf16), {600}, [](std::int64_t i) { return i == 5; }},
      {"adam in u8", adam(DType::u8), {600}, [](std::int64_t i) { return i == 5; }, [](auto i) { return i < 256; }},
      {"adafactor", adafactor, {4, 150}, [](std::int64_t i) { return i < 150 || i % 150 == 5; }},
      {"adafactor, the mean of a row too",
       adafactor,
       {150, 4},
       [](std::int64_t i) { return i / 4 == 1 || i % 4 == 1; }},
  };
  for (const Row& row : rows) {
    for (const bool clips : {false, true}) {
      Tensor p = full(row.shape, 0.5);
      p.require_grad();
      const std::unique_ptr<optim::Optimizer> optimizer = row.make({{"p", p}});
      for (int step = 0; step < 3; ++step) {
        std::vector<float> gradient(600, 1.0f);
        if (step == 0) gradient[5] = 1e20f;
        p.grad() = from_host(gradient, row.shape);
        if (clips) optim::clip_grad_norm({{"p", p}}, 1.0);
        const std::vector<float> before = to_host<float>(p);
        optimizer->step();
        const std::vector<float> after = to_host<float>(p);
        for (std::int64_t i = 0; i < 600; ++i) {
          const auto at = static_cast<std::size_t>(i);
          INFO(row.name << (clips ? ", clipped" : "") << ": element " << i << ", gradient " << gradient[at] << ": "
                        << before[at] << " -> " << after[at]);
          const bool is_lost = !clips && step > 0 && row.is_lost(i);
          CHECK(std::isfinite(after[at]) != is_lost);
          if (!clips && !is_lost) CHECK((after[at] == before[at]) == row.stops(i));
        }
      }
      if (clips) CHECK(to_host<float>(p)[5] < 0.5f);  // it goes on
    }
  }
}

// ---- Adam-mini against plain loops in f64.

using namespace thimble::optim;

namespace {

AdamMiniOptions options_of(NarrowUpdate narrow = NarrowUpdate::rounded) {
  AdamMiniOptions options;
  options.rate = 0.02, options.beta1 = 0.8, options.beta2 = 0.95, options.epsilon = 1e-6;
  options.weight_decay = 0.1, options.smallest_decayed_rank = 2, options.narrow = narrow;
  return options;
}

// The second is longer than the range of one update.
const std::vector<Shape> mini_shapes{{5, 3, 4}, {20, 131080}, {9}};

std::vector<Named> mini_parameters(DType dtype = DType::f32) {
  RandomGenerator generator(3);
  const GeneratorScope random(generator);
  std::vector<Named> list;
  for (const Shape& shape : mini_shapes) {
    list.push_back({"p" + std::to_string(list.size()), to_dtype(randn(shape), dtype).require_grad()});
  }
  return list;
}

void set_factored_gradients(const std::vector<Named>& list, int step) {
  RandomGenerator generator(static_cast<std::uint64_t>(10 + step));
  const GeneratorScope random(generator);
  for (const Named& p : list) p.tensor.grad() = to_dtype(randn(p.tensor.shape()), p.tensor.dtype());
}

}  // namespace

TEST_CASE("adam-mini: against plain loops in f64", "[adam_mini]") {
  const std::vector<Named> list = mini_parameters();
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
    set_factored_gradients(list, step);
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
  CHECK(AdamMini(mini_parameters(), options_of()).state_bytes() ==
        4 * (5 * 12 + 5 + std::size_t{20} * 131080 + 20 + 9 + 1));
}

TEST_CASE("adam-mini: narrow parameters, part after part", "[adam_mini]") {
  // Each part of a parameter is rounded separately: compared with a run in f32.
  for (const NarrowUpdate narrow : {NarrowUpdate::master, NarrowUpdate::kahan, NarrowUpdate::stochastic}) {
    RandomGenerator generator(1);
    const GeneratorScope random(generator);
    const std::vector<Named> list = mini_parameters(DType::bf16);
    std::vector<Named> wide;
    for (const Named& p : list) wide.push_back({p.name, to_dtype(p.tensor.detach(), DType::f32).require_grad()});
    AdamMini optimizer(list, options_of(narrow)), other(wide, options_of());
    for (int step = 1; step <= 2; ++step) {
      set_factored_gradients(list, step);
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
      CHECK(worst < (narrow == NarrowUpdate::stochastic ? 0.017f : 0.004f));  // two steps of 2^-7, or half a step
      if (narrow == NarrowUpdate::master) CHECK((to_host<float>(to_dtype(wide[k].tensor.detach(), DType::bf16)) == a));
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
  for (const std::int64_t other : {1, 8, 16}) {  // in the same part, and at the same place in later parts
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
  CHECK_THROWS_WITH(AdamMini(mini_parameters(), options),
                    Catch::Contains("adam-mini: expected beta1 in [0, 1), got 1"));
  CHECK_THROWS_AS(AdamMini({{"w", zeros({2, 2}, DType::f64).require_grad()}}, {}), DTypeError);
}
