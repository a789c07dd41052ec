#pragma once
// Small untrained nets for the tests of quantization.

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/models/model.h>
#include <thimble/nn/quant/calibrate.h>

namespace quant_nets {

using namespace thimble;
using namespace thimble::nn::quant;

inline Tensor images(const Shape& shape, unsigned seed, DType dtype = DType::f32) {
  std::mt19937 random(seed);
  std::vector<double> list;
  std::int64_t count = 1;
  for (int i = 0; i < shape.rank(); ++i) count *= shape[i];
  for (std::int64_t i = 0; i < count; ++i) list.push_back(static_cast<double>(random() % 2001) / 1000 - 1);
  return to_dtype(from_host(list, shape), dtype);
}

/// Gives batch norms statistics and weights other than 0 and 1.
inline void stir(nn::Module& model) {
  std::mt19937 random(11);
  const auto draw = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() % 1001) / 1000;
  };
  const auto set = [&](const nn::NamedTensor& t, double low, double high) {
    std::vector<double> list;
    for (std::int64_t i = 0; i < t.tensor.elements(); ++i) list.push_back(draw(low, high));
    copy_into(t.tensor, from_host(list, t.tensor.shape()));
  };
  for (const nn::NamedTensor& b : model.buffers()) {
    if (b.name.ends_with("running_mean")) set(b, -0.3, 0.3);
    if (b.name.ends_with("running_var")) set(b, 0.5, 2);
  }
  for (const nn::NamedTensor& p : model.parameters()) {
    if (p.tensor.rank() == 1 && p.name.ends_with("weight")) set(p, 0.6, 1.4);
    if (p.tensor.rank() == 1 && p.name.ends_with("bias")) set(p, -0.2, 0.4);
  }
}

struct Net {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<FoldedNet> folded;
  Tensor x;

  explicit Net(const std::string& name, models::ModelOptions options = {}, DType dtype = DType::f32,
               std::int64_t samples = 3) {
    options.image = options.image > 0 ? options.image : 16;
    options.channels = 3;
    RandomGenerator generator(1);  // the same net, whatever ran before
    const GeneratorScope scope(generator);
    model = models::make_model(name, options, {cpu, dtype});
    model->eval();
    stir(*model);
    x = images({samples, options.image, options.image, 3}, 5, dtype);
    folded = std::make_unique<FoldedNet>(
        *model, [this](const Tensor& t) { return model->forward(t); },
        images({1, options.image, options.image, 3}, 6, dtype));
  }
  Scales scales(const CalibrationOptions& options = {Calibrator::max}) {
    return calibrate(
        *folded, 1, [&](std::int64_t) { return x; }, options);
  }
};

}  // namespace quant_nets
