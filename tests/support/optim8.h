#pragma once
// Parameters, gradients and optimizers for the tests of narrow state.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

namespace optim8_test {

using namespace thimble;
using namespace thimble::optim;

// A matrix of several blocks with a short last one, a vector, and one below the limit for narrow state.
inline const std::vector<Shape> shapes{{3, 411}, {1000}, {7}};

inline std::vector<Named> make_parameters(DType dtype = DType::f32, memory::Device device = cpu) {
  RandomGenerator generator(3);
  const GeneratorScope random(generator);
  std::vector<Named> list;
  for (const Shape& shape : shapes) {
    Tensor t = device.is_dry ? Tensor::empty(shape, dtype, device) : to_dtype(randn(shape), dtype);
    t.storage()->set_category(memory::Category::parameter);
    list.push_back({"p" + std::to_string(list.size()), t.require_grad()});
  }
  return list;
}

// Gradients of many magnitudes; in the first steps a whole block is zero.
inline void set_gradients(const std::vector<Named>& list, int step) {
  RandomGenerator generator(static_cast<std::uint64_t>(10 + step));
  const GeneratorScope random(generator);
  for (const Named& p : list) {
    std::vector<float> g = to_host<float>(randn(p.tensor.shape()));
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = std::ldexp(g[i], -static_cast<int>(i % 19));
      if (step < 3 && i >= 256 && i < 512) g[i] = 0;
    }
    p.tensor.grad() = to_dtype(from_host(g, p.tensor.shape()), p.tensor.dtype());
  }
}

inline MomentFormat narrow(DType dtype = DType::u8) { return {dtype, 100, {}}; }

inline const AdamOptions adam_options{0.02, 0.8, 0.95, 1e-6, 0.1, true, 0};

// An optimizer with moments in a given format.
inline Adam make_adam(const std::vector<Named>& list, AdamOptions options, const MomentFormat& moments) {
  options.moments = moments;
  return {list, options};
}
inline Sgd make_momentum(const std::vector<Named>& list, SgdOptions options, const MomentFormat& moments) {
  options.moments = moments;
  return {list, options};
}

struct Restore {
  kernels::Isa isa = kernels::isa();
  int threads = thread_count();
  ~Restore() {
    kernels::set_isa(isa);
    set_thread_count(threads);
  }
};

inline std::unique_ptr<Optimizer> make(const std::string& name, const std::vector<Named>& list,
                                       std::shared_ptr<memory::Tier> tier = nullptr,
                                       NarrowUpdate update = NarrowUpdate::rounded) {
  const MomentFormat moments = narrow(name.ends_with("8") ? DType::u8 : DType::bf16);
  if (name.starts_with("adamw")) {
    AdamOptions adam = adam_options;
    adam.tier = tier, adam.narrow = update, adam.moments = moments;
    return std::make_unique<Adam>(list, adam);
  }
  if (name.starts_with("momentum")) {
    return std::make_unique<Sgd>(
        list, SgdOptions{.rate = 0.02, .momentum = 0.9, .tier = tier, .narrow = update, .moments = moments});
  }
  return std::make_unique<Adafactor>(list,
                                     AdafactorOptions{.rate = 0.02, .beta1 = 0.5, .tier = tier, .narrow = update});
}
inline const char* const names[] = {"adamw8", "adamw_bf16", "momentum8", "momentum_bf16", "adafactor"};

inline std::vector<std::vector<float>> values(const std::vector<Named>& list) {
  std::vector<std::vector<float>> all;
  for (const Named& n : list) all.push_back(to_host<float>(n.tensor));
  return all;
}

}  // namespace optim8_test
