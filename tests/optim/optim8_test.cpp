// Updates of optimizers with narrow state against plain loops.

#include <cmath>
#include <string>
#include <vector>

#include <thimble/core/ops/quant/quantize.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/optim8.h"

using namespace optim8_test;

namespace {

// A moment in a plain loop, rounded by the library's quantization after every step.
struct PlainMoment {
  PlainMoment(const Shape& shape, DType dtype, bool is_signed)
      : dtype_(dtype),
        how_{DType::u8, ScaleBlocks::flat(256), DType::f32, is_signed},
        kept_(dtype == DType::u8 ? quantize(zeros(shape), how_) : zeros(shape, dtype)) {}
  std::vector<float> values() const { return to_host<float>(dtype_ == DType::u8 ? dequantize(kept_, how_) : kept_); }
  void set(const std::vector<float>& values) {
    const Tensor t = from_host(values, kept_.shape());
    if (dtype_ != DType::u8) return void(kept_ = to_dtype(t, dtype_));
    kept_ = quantize(t, how_);
    if (how_.is_signed) return;
    const WritePin pin(kept_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto& code = static_cast<std::uint8_t*>(pin.data())[i];
      if (code == 0 && values[i] > 0) code = 1;
    }
  }

 private:
  DType dtype_;
  Quantization how_;
  Tensor kept_;
};

constexpr float b1 = 0.8f, b2 = 0.95f;

// The update of Adam with decoupled decay, in f32 in the order of its formula.
void plain_adamw(std::vector<float>& p, const std::vector<float>& g, PlainMoment& first, PlainMoment& second,
                 int step) {
  std::vector<float> m = first.values(), v = second.values();
  const auto r1 = static_cast<float>(1 - 0.8), r2 = static_cast<float>(1 - 0.95);
  const auto shrink = static_cast<float>(1 - 0.02 * 0.1);
  const auto rate = static_cast<float>(0.02 / (1 - std::pow(0.8, step)));
  const auto correction = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, step)));
  for (std::size_t i = 0; i < p.size(); ++i) {
    m[i] = b1 * m[i] + r1 * g[i];
    v[i] = b2 * v[i] + r2 * (g[i] * g[i]);
    p[i] = p[i] * shrink - rate * (m[i] / (std::sqrt(v[i]) * correction + 1e-6f));
  }
  first.set(m), second.set(v);
}

}  // namespace

TEST_CASE("optim8: ten steps are those of a plain loop, in every variant and on any number of threads", "[optim8]") {
  const Restore restore;
  for (const DType state : {DType::u8, DType::bf16}) {
    for (const kernels::Isa isa : kernel_test::supported()) {
      kernels::set_isa(isa);
      set_thread_count(isa == kernels::Isa::avx2 ? 3 : 1);
      const std::vector<Named> list = make_parameters(), sgd_list = make_parameters();
      Adam adam = make_adam(list, adam_options, narrow(state));
      Sgd momentum = make_momentum(sgd_list, {0.02, 0.9, 0.1, true}, narrow(state));
      std::vector<std::vector<float>> p = values(list), q = values(sgd_list);
      std::vector<PlainMoment> first, second, buffer;
      for (const Shape& shape : shapes) {
        const DType dtype = shape.elements() < 100 ? DType::f32 : state;
        first.emplace_back(shape, dtype, true), second.emplace_back(shape, dtype, false);
        buffer.emplace_back(shape, dtype, true);
      }
      for (int step = 1; step <= 10; ++step) {
        set_gradients(list, step), set_gradients(sgd_list, step);
        adam.step(), momentum.step();
        for (std::size_t k = 0; k < list.size(); ++k) {
          const std::vector<float> g = to_host<float>(list[k].tensor.grad());
          plain_adamw(p[k], g, first[k], second[k], step);
          std::vector<float> m = buffer[k].values();
          for (std::size_t i = 0; i < g.size(); ++i) {
            const float d = g[i] + 0.1f * q[k][i];
            m[i] = 0.9f * m[i] + d;
            q[k][i] -= 0.02f * (d + 0.9f * m[i]);
          }
          buffer[k].set(m);
        }
      }
      CHECK(values(list) == p);
      CHECK(values(sgd_list) == q);
      CHECK(adam.kept_full() == std::vector<std::string>{"p2"});
      CHECK(momentum.kept_full() == std::vector<std::string>{"p2"});
    }
  }
}

TEST_CASE("optim8: updates stay near those of f32 state", "[optim8]") {
  // A block of like magnitudes, as real gradients have: the state's error is a few per cent, the update's no more.
  RandomGenerator generator(5);
  const GeneratorScope random(generator);
  for (const DType state : {DType::u8, DType::bf16}) {
    Tensor a = zeros({4096}), b = zeros({4096});
    a.require_grad(), b.require_grad();
    Adam narrow_one = make_adam({{"p", a}}, {0.01, 0.9, 0.99}, {state, 0, {}});
    Adam full({{"p", b}}, {0.01, 0.9, 0.99});
    for (int step = 0; step < 30; ++step) {
      const Tensor g = randn({4096});
      a.grad() = g, b.grad() = clone(g);
      narrow_one.step(), full.step();
    }
    const auto x = to_host<double>(a), y = to_host<double>(b);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) difference += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    INFO(to_string(state) << " " << std::sqrt(difference / size));
    CHECK(std::sqrt(difference / size) < (state == DType::u8 ? 0.05 : 0.02));
    CHECK(difference > 0);
  }
}

TEST_CASE("optim8: a second moment is never rounded to zero", "[optim8]") {
  Tensor p = zeros({256});
  p.require_grad();
  Adam adam = make_adam({{"p", p}}, {0.01, 0.9, 0.9, 1e-12}, {DType::u8, 0, {}});
  std::vector<float> g(256, 1e-6f);  // its square is 1e-12 of the block's largest
  g[0] = 1;
  g[1] = 0;
  for (int step = 0; step < 5; ++step) {
    p.grad() = from_host(g, {256});
    adam.step();
  }
  const auto second = to_host<std::int64_t>(adam.state()[2].tensor);
  CHECK(adam.state()[2].name == "p.second_moment");
  CHECK(second[0] == 255);
  CHECK(second[1] == 0);
  CHECK(second[2] == 1);
  const auto moved = to_host<float>(p);
  CHECK(moved[1] == 0);
  CHECK(std::fabs(moved[2]) <= std::fabs(moved[0]));  // with a second moment of zero it would be many times larger
}

TEST_CASE("optim8: narrow parameters, gradients that are not finite", "[optim8]") {
  for (const char* const name : names) {
    INFO(name);
    // Parameters in bf16 are updated in f32 and rounded once.
    const std::vector<Named> half = make_parameters(DType::bf16);
    std::vector<Named> wide;
    for (const Named& p : half) {
      Tensor t = to_dtype(p.tensor.detach(), DType::f32);
      wide.push_back({p.name, t.require_grad()});
    }
    const auto a = make(name, half), b = make(name, wide);
    set_gradients(half, 1);
    for (std::size_t i = 0; i < half.size(); ++i) {
      wide[i].tensor.grad() = to_dtype(half[i].tensor.grad(), DType::f32);
    }
    a->step(), b->step();
    for (std::size_t i = 0; i < half.size(); ++i) {
      CHECK(to_host<float>(half[i].tensor) == to_host<float>(to_dtype(wide[i].tensor.detach(), DType::bf16)));
    }
  }
  // One NaN: its block is NaN from then on, the next block is not.
  const std::vector<Named> list = make_parameters();
  Adam adam = make_adam(list, adam_options, narrow());
  for (int step = 1; step <= 2; ++step) {
    set_gradients(list, step);
    if (step == 1) {
      const WritePin pin(list[0].tensor.grad());
      pin.as<float>()[5] = std::nanf("");
    }
    adam.step();
  }
  const auto v = to_host<float>(list[0].tensor);
  for (std::size_t i = 0; i < v.size(); ++i) CHECK(std::isnan(v[i]) == (i < 256));
}

TEST_CASE("optim8: gradients are multiplied by their factor as they are read", "[optim8]") {
  for (const char* const name : names) {
    INFO(name);
    const std::vector<Named> plain = make_parameters(), scaled = make_parameters();
    const auto a = make(name, plain), b = make(name, scaled);
    b->set_gradient_factor(1.0 / 1024);
    for (int step = 1; step <= 3; ++step) {
      set_gradients(plain, step), set_gradients(scaled, step);
      for (const Named& p : scaled) {  // exact: a power of two
        std::vector<float> g = to_host<float>(p.tensor.grad());
        for (float& v : g) v *= 1024;
        p.tensor.grad() = from_host(g, p.tensor.shape());
      }
      a->step(), b->step();
    }
    CHECK(values(scaled) == values(plain));
    CHECK(values(b->state()) == values(a->state()));
  }
}
