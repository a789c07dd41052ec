// One gradient whose square f32 does not hold, as optim/adam.h and adafactor.h tell: which elements stop, which go on.

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>

#include "support/catch.h"

using namespace thimble;

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
    std::function<bool(std::int64_t)> stops;  // of an element, where number 5 has the gradient
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
