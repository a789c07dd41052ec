// Adafactor against plain loops in f64.

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.h"
#include "support/near.h"
#include "support/optim8.h"

using namespace optim8_test;

TEST_CASE("optim8: Adafactor against plain loops in f64", "[optim8]") {
  for (const AdafactorOptions& options :
       {AdafactorOptions{.rate = 0.05}, AdafactorOptions{.rate = 0.05, .has_relative_step = true},
        AdafactorOptions{
            .rate = 0.05, .scales_by_parameter = false, .beta1 = 0.9, .weight_decay = 0.1, .smallest_decayed_rank = 2},
        AdafactorOptions{.rate = 0.05, .clip = 0.3}}) {
    const std::vector<Named> list = make_parameters();
    Adafactor adafactor(list, options);
    struct State {
      std::vector<double> p, r, c, m;
    };
    std::vector<State> expected;
    for (const Named& p : list) {
      const bool is_matrix = p.tensor.rank() == 2;
      const auto n = static_cast<std::size_t>(p.tensor.elements());
      expected.push_back({to_host<double>(p.tensor), std::vector<double>(is_matrix ? 3 : 0),
                          std::vector<double>(is_matrix ? 411 : n), std::vector<double>(n)});
    }
    for (int step = 1; step <= 8; ++step) {
      set_gradients(list, step);
      adafactor.step();
      for (std::size_t k = 0; k < list.size(); ++k) {
        State& s = expected[k];
        const std::vector<double> g = to_host<double>(list[k].tensor.grad());
        const double b = 1 - std::pow(step, -0.8);
        std::vector<double> u(g.size());
        const auto rms = [](const std::vector<double>& x) {
          double sum = 0;
          for (const double v : x) sum += v * v;
          return std::sqrt(sum / static_cast<double>(x.size()));
        };
        if (s.r.empty()) {
          for (std::size_t i = 0; i < g.size(); ++i) {
            s.c[i] = b * s.c[i] + (1 - b) * (g[i] * g[i] + 1e-30);
            u[i] = g[i] / std::sqrt(s.c[i]);
          }
        } else {
          for (double& v : s.r) v *= b;
          for (double& v : s.c) v *= b;
          for (std::size_t i = 0; i < g.size(); ++i) {
            s.r[i / 411] += (1 - b) * (g[i] * g[i] + 1e-30) / 411;
            s.c[i % 411] += (1 - b) * (g[i] * g[i] + 1e-30) / 3;
          }
          const double mean = (s.r[0] + s.r[1] + s.r[2]) / 3;
          for (std::size_t i = 0; i < g.size(); ++i) u[i] = g[i] / std::sqrt(s.r[i / 411] * s.c[i % 411] / mean);
        }
        const double clip = 1 / std::max(1.0, rms(u) / options.clip);
        const double base = options.has_relative_step ? std::min(1e-2, 1 / std::sqrt(step)) : 0.05;
        const double rate = options.scales_by_parameter ? base * std::max(1e-3, rms(s.p)) : base;
        const double decay = list[k].tensor.rank() >= options.smallest_decayed_rank ? options.weight_decay : 0;
        for (std::size_t i = 0; i < g.size(); ++i) {
          s.m[i] = options.beta1 * s.m[i] + (1 - options.beta1) * u[i] * clip;
          s.p[i] = s.p[i] * (1 - base * decay) - rate * (options.beta1 > 0 ? s.m[i] : u[i] * clip);
        }
      }
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto got = to_host<double>(list[k].tensor);
      double worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        worst = thimble_test::worse(worst, std::abs(got[i] - expected[k].p[i]));
      INFO("largest error " << worst);
      CHECK(worst <= 8 * 10 * 0x1p-23);
    }
  }
  const Restore restore;
  std::vector<std::vector<float>> one;
  for (const int threads : {1, 4}) {
    set_thread_count(threads);
    const std::vector<Named> list = make_parameters();
    Adafactor adafactor(list, {});
    set_gradients(list, 1);
    adafactor.step();
    if (one.empty()) one = values(list);
    CHECK(values(list) == one);
  }
}

TEST_CASE("optim8: Adafactor's settings are its options", "[optim8]") {
  CHECK_NOTHROW(Adafactor(make_parameters(), {.decay = 1}));
  const Adafactor adafactor(make_parameters(), {.has_relative_step = true,
                                                .scales_by_parameter = false,
                                                .beta1 = 0.1,
                                                .decay = 0.2,
                                                .epsilon1 = 0.3,
                                                .epsilon2 = 0.4,
                                                .clip = 0.5,
                                                .weight_decay = 0.6,
                                                .smallest_decayed_rank = 7});
  const std::vector<std::pair<std::string, double>> expected{
      {"has_relative_step", 1},    {"scales_by_parameter", 0}, {"beta1", 0.1}, {"decay", 0.2},
      {"epsilon1", 0.3},           {"epsilon2", 0.4},          {"clip", 0.5},  {"weight_decay", 0.6},
      {"smallest_decayed_rank", 7}};
  std::vector<std::pair<std::string, double>> found;
  for (const Setting& s : adafactor.settings()) found.emplace_back(s.name, s.value);
  CHECK(found == expected);
}
