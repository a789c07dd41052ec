// Updates of parameters narrower than f32 have the bits of element-by-element twins.

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/update_rule.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::optim;

namespace {

constexpr std::int64_t count = 9 * 1024 + 37;  // more than a thread's range, and no multiple of a vector or block
constexpr double rate = 1e-3, factor = 0.25;

float start_of(std::int64_t i) { return 1 + 0.5F * std::sin(0.37F * static_cast<float>(i)); }
float gradient_of(std::int64_t i, int step) {
  return std::cos(0.11F * static_cast<float>(i) + 0.9F * static_cast<float>(step));
}

std::vector<float> values_of(float (*value)(std::int64_t)) {
  std::vector<float> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = value(i);
  return values;
}

Named make_parameter(DType dtype, memory::Device device = cpu) {
  Tensor t = to_dtype(from_host(values_of(start_of), {count}, device), dtype);
  return {"net.w", t.require_grad()};
}

void set_gradient(const Named& p, int step, DType dtype) {
  std::vector<float> g(count);
  for (std::int64_t i = 0; i < count; ++i) g[static_cast<std::size_t>(i)] = gradient_of(i, step);
  p.tensor.grad() = to_dtype(from_host(g, {count}), dtype);
}

std::unique_ptr<Optimizer> make(bool is_adam, const Named& p, NarrowUpdate narrow, double decay = 0.1) {
  if (is_adam)
    return std::make_unique<Adam>(std::vector{p}, AdamOptions{.rate = rate, .weight_decay = decay, .narrow = narrow});
  return std::make_unique<Sgd>(std::vector{p},
                               SgdOptions{.rate = rate, .momentum = 0.9, .weight_decay = decay, .narrow = narrow});
}

/// One element's state, and its update in f32, operation by operation as in the kernels' documentation.
struct Twin {
  float m = 0, v = 0;

  float update(bool is_adam, float p, float g, int step) {
    if (!is_adam) {
      m = 0.9F * m + (g + 0.1F * p);
      return p - static_cast<float>(rate) * m;
    }
    const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.999, step);
    m = 0.9F * m + static_cast<float>(1 - 0.9) * g;
    v = 0.999F * v + static_cast<float>(1 - 0.999) * (g * g);
    const auto shrink = static_cast<float>(1 - rate * 0.1), step_rate = static_cast<float>(rate / c1);
    return p * shrink - step_rate * (m / (std::sqrt(v) * static_cast<float>(1 / std::sqrt(c2)) + 1e-8F));
  }
};

template <class T>
std::vector<T> bits_of(const Tensor& t) {
  const memory::Pin pin(t);
  const T* const data = pin.as<T>();
  return {data, data + t.elements()};
}

/// Stores an element as `narrow` demands; `extra` is its master or its compensation.
template <class T>
T store(NarrowUpdate narrow, float updated, float& extra, const RandomSite& site, std::int64_t i) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (narrow == NarrowUpdate::stochastic) {
      return kernels::round_stochastically(updated, kernels::rounding_bits(site, i));
    }
  }
  const T stored(updated);
  if (narrow == NarrowUpdate::master) extra = updated;
  if (narrow == NarrowUpdate::kahan) extra = static_cast<float>(T(updated - static_cast<float>(stored)));
  return stored;
}

template <class T>
void check_against_twin(bool is_adam, NarrowUpdate narrow) {
  INFO((is_adam ? "adam, " : "sgd, ") << to_string(narrow) << ", " << to_string(dtype_of<T>));
  RandomGenerator generator(77);
  const GeneratorScope scope(generator);
  const Named p = make_parameter(dtype_of<T>);
  const std::unique_ptr<Optimizer> optimizer = make(is_adam, p, narrow);
  optimizer->set_gradient_factor(factor);
  std::vector<T> expected = bits_of<T>(p.tensor);
  std::vector<Twin> twins(count);
  std::vector<float> extra(count);
  for (std::size_t i = 0; i < extra.size(); ++i) {
    extra[i] = narrow == NarrowUpdate::master ? static_cast<float>(expected[i]) : 0;
  }
  RandomSite site;
  site.seed = 77;
  std::uint32_t hash = 2166136261u;
  for (const char c : std::string("net.w#round")) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  site.site = hash;
  for (int step = 1; step <= 4; ++step) {
    set_gradient(p, step, dtype_of<T>);
    const std::vector<T> g = bits_of<T>(p.tensor.grad());
    set_thread_count(step % 2 + 1);
    optimizer->step();
    site.step = static_cast<std::uint64_t>(step);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      float value = static_cast<float>(expected[at]);
      if (narrow == NarrowUpdate::master) value = extra[at];
      if (narrow == NarrowUpdate::kahan) value += extra[at];
      const float updated = twins[at].update(is_adam, value, static_cast<float>(g[at]) * 0.25F, step);
      expected[at] = store<T>(narrow, updated, extra[at], site, i);
    }
    CHECK(std::memcmp(bits_of<T>(p.tensor).data(), expected.data(), expected.size() * sizeof(T)) == 0);
  }
  for (const Named& s : optimizer->state()) {
    if (s.name == "net.w.master") CHECK(to_host<float>(s.tensor) == extra);
    if (s.name == "net.w.compensation") CHECK(to_host<float>(s.tensor) == extra);
  }
}

}  // namespace

TEST_CASE("narrow updates: bit for bit those of their scalar twins", "[optim][precision]") {
  const int before = thread_count();
  for (const bool is_adam : {false, true}) {
    for (const NarrowUpdate narrow : {NarrowUpdate::rounded, NarrowUpdate::master, NarrowUpdate::kahan}) {
      check_against_twin<bf16>(is_adam, narrow);
      check_against_twin<f16>(is_adam, narrow);
    }
    check_against_twin<bf16>(is_adam, NarrowUpdate::stochastic);
  }
  set_thread_count(before);
}

TEST_CASE("narrow updates: parameters in f32 and f64 are updated where they lie", "[optim][precision]") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::vector<double> first;
    for (const NarrowUpdate narrow :
         {NarrowUpdate::rounded, NarrowUpdate::master, NarrowUpdate::stochastic, NarrowUpdate::kahan}) {
      const Named p = make_parameter(dtype);
      const auto optimizer = make(true, p, narrow);
      CHECK(optimizer->state().size() == 2);
      set_gradient(p, 1, dtype);
      optimizer->step();
      if (first.empty()) first = to_host<double>(p.tensor);
      CHECK(to_host<double>(p.tensor) == first);
    }
  }
}

TEST_CASE("narrow updates: state in bytes, names, and what is refused", "[optim][precision]") {
  struct Row {
    NarrowUpdate narrow;
    DType dtype;
    std::size_t bytes;  // per element, with Adam
    const char* name;
  };
  for (const memory::Device device : {cpu, dry(cpu)}) {
    for (const Row& row : {Row{NarrowUpdate::rounded, DType::bf16, 8, ""},
                           {NarrowUpdate::stochastic, DType::bf16, 8, ""},
                           {NarrowUpdate::master, DType::f16, 12, "net.w.master"},
                           {NarrowUpdate::master, DType::f8e4m3, 12, "net.w.master"},
                           {NarrowUpdate::kahan, DType::bf16, 10, "net.w.compensation"}}) {
      INFO(to_string(row.narrow));
      const memory::Stack stack = memory::make_resource(device);
      const ResourceScope on(stack.top);
      const Named p = make_parameter(row.dtype, device);
      const auto optimizer = make(true, p, row.narrow);
      CHECK(optimizer->state_bytes() == row.bytes * count);
      CHECK(stack.ledger->bytes(memory::Category::optimizer) == row.bytes * count);
      CHECK((optimizer->state().size() == 3) == (*row.name != 0));
      if (*row.name != 0) CHECK(optimizer->state()[2].name == row.name);
    }
  }
  CHECK_THROWS_AS(make(true, make_parameter(DType::f16), NarrowUpdate::stochastic), DTypeError);
  CHECK_THROWS_AS(make(false, make_parameter(DType::f8e5m2), NarrowUpdate::kahan), DTypeError);
}

TEST_CASE("narrow updates: small steps are lost by rounding, and by nothing else", "[optim][precision]") {
  // 100 steps of 2^-12 on 1, where bf16's numbers lie 2^-7 apart: 1 - 100 / 4096 = 0.9756.
  const double end = 1 - 100.0 / 4096;
  for (const NarrowUpdate narrow :
       {NarrowUpdate::rounded, NarrowUpdate::master, NarrowUpdate::stochastic, NarrowUpdate::kahan}) {
    INFO(to_string(narrow));
    Tensor t = full({4096}, 1, DType::bf16);
    const Named p{"w", t.require_grad()};
    Sgd sgd({p}, {.rate = 0x1p-12, .narrow = narrow});
    for (int step = 0; step < 100; ++step) {
      p.tensor.grad() = full({4096}, 1, DType::bf16);
      sgd.step();
    }
    double mean = 0, least = 2, most = 0;
    for (const double v : to_host<double>(p.tensor))
      mean += v / 4096, least = std::min(least, v), most = std::max(most, v);
    if (narrow == NarrowUpdate::rounded) {
      CHECK(mean == 1);
    } else if (narrow == NarrowUpdate::stochastic) {
      CHECK(std::abs(mean - end) < 5e-4);  // a step's deviation is 2^-8 sqrt(p (1 - p)); 4096 elements
      CHECK(most > least);
    } else {
      CHECK(std::abs(mean - end) < 0x1p-8);  // one rounding to bf16
      CHECK(most == least);
    }
  }
}

TEST_CASE("narrow updates: stochastic rounding at its corners", "[optim][precision]") {
  const auto rounded = [](float value, std::uint32_t random) {
    return static_cast<float>(kernels::round_stochastically(value, random));
  };
  for (const float exact : {0.0F, -0.0F, 1.0F, -2.5F, 0x1p-133F, 3.3895314e38F}) {
    for (const std::uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) CHECK(rounded(exact, random) == exact);
  }
  const float above = 1 + 0x1p-9F;  // a quarter of the way from 1 to 1 + 2^-7
  int up = 0;
  for (std::uint32_t random = 0; random < 0x10000u; ++random) up += rounded(above, random) > 1;
  CHECK(up == 0x4000);
  CHECK(rounded(-above, 0xFFFFu) == -(1 + 0x1p-7F));
  CHECK(std::isinf(rounded(INFINITY, 0xFFFFu)));
  CHECK(std::isnan(rounded(NAN, 0xFFFFu)));
  CHECK(std::isnan(rounded(std::bit_cast<float>(0x7FFFFFFFu), 0xFFFFu)));
  CHECK(std::isinf(rounded(3.4028234e38F, 0xFFFFu)));
  CHECK(rounded(3.4028234e38F, 0) == 3.3895314e38F);
}
