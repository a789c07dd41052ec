// Parameters without a gradient in some micro-batches or in a whole step, frozen or unused, against a loop in f64:
// updates, clipping, and steps that a dynamic loss scale skips.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/nn/trainer/trainer.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/hand_loops.h"
#include "support/model_runs.h"

using namespace thimble;
using hand_loops::Values;

namespace {

constexpr std::int64_t size = 4, steps = 7, micro_batches = 3;
constexpr double rate = 0.05, momentum = 0.9, decay = 0.1, beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8;

/// Terms of a micro-batch: step 3 lacks a, micro-batch 1 lacks b, and micro-batch 0 freezes c.
bool has_a(std::int64_t step) { return step != 3; }
bool has_b(std::int64_t micro_batch) { return micro_batch != 1; }
bool has_c_frozen(std::int64_t micro_batch) { return micro_batch == 0; }
bool overflows(std::int64_t step, std::int64_t micro_batch) { return step % 4 == 1 && micro_batch == 2; }

double x_at(std::int64_t step, std::int64_t micro_batch, std::int64_t i) {
  return std::sin(static_cast<double>(1 + i + 5 * micro_batch + 11 * step));
}
double y_at(std::int64_t step, std::int64_t micro_batch, std::int64_t i) {
  return 2 * std::cos(static_cast<double>(2 + 3 * i + micro_batch + 7 * step));
}

struct Net final : nn::Module {
  explicit Net(memory::Device device) {
    const auto add = [&](const char* name, double start) {
      return add_parameter(name, full({size}, start, DType::f64, device, memory::Category::parameter));
    };
    a = add("a", 0.5), b = add("b", -0.3), c = add("c", 0.2);
  }
  nn::Parameter a, b, c;
};

struct Batch {
  Tensor x, y;  // (micro-batches, size)
  std::int64_t step = 0, micro_batch = 0;
};

Batch batch_of(std::int64_t step, memory::Device device) {
  const auto rows = [&](double (*at)(std::int64_t, std::int64_t, std::int64_t)) {
    Tensor all = Tensor::empty({micro_batches, size}, DType::f64, device, memory::Category::input);
    Values values;
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      for (std::int64_t i = 0; i < size; ++i) values.push_back(at(step, m, i));
    }
    if (!device.is_dry) copy_into(all, from_host(values, all.shape()));
    return all;
  };
  return {rows(x_at), rows(y_at), step, 0};
}

Batch micro_batch_of(const Batch& batch, std::int64_t i, std::int64_t) {
  return {slice(batch.x, 0, i, i + 1), slice(batch.y, 0, i, i + 1), batch.step, i};
}

/// mean((a x + b x^2 + c - y)^2), with only the terms of this micro-batch.
Tensor loss_of(Net& net, const Batch& batch, bool skips) {
  net.c.set_requires_grad(!has_c_frozen(batch.micro_batch));
  Tensor sum = net.c - batch.y;  // (1, size)
  if (has_a(batch.step)) sum = sum + net.a * batch.x;
  if (has_b(batch.micro_batch)) sum = sum + net.b * square(batch.x);
  const Tensor loss = mean(square(sum));
  return skips && overflows(batch.step, batch.micro_batch) ? loss * std::numeric_limits<double>::infinity() : loss;
}

struct Row {
  std::string optimizer;
  double clip_norm = 0;
  bool is_scaled = false;
};

/// Parameters a, b, c after all steps.
std::vector<Values> by_hand(const Row& row) {
  struct Parameter {
    Values value, first = Values(size), second = Values(size);
    std::optional<Values> gradient = std::nullopt;
  };
  std::vector<Parameter> all{{Values(size, 0.5)}, {Values(size, -0.3)}, {Values(size, 0.2)}};
  std::int64_t updates = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    bool is_skipped = false;
    for (Parameter& p : all) p.gradient.reset();
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      is_skipped = is_skipped || (row.is_scaled && overflows(step, m));
      const bool used[] = {has_a(step), has_b(m), true}, trained[] = {has_a(step), has_b(m), !has_c_frozen(m)};
      for (std::int64_t i = 0; i < size; ++i) {
        const double x = x_at(step, m, i), of[] = {x, x * x, 1};
        const auto at = static_cast<std::size_t>(i);
        double sum = -y_at(step, m, i);
        for (std::size_t p = 0; p < 3; ++p) sum += used[p] ? all[p].value[at] * of[p] : 0;
        for (std::size_t p = 0; p < 3; ++p) {
          if (!trained[p]) continue;
          if (!all[p].gradient) all[p].gradient = Values(size);
          (*all[p].gradient)[at] += 2 * sum * of[p] / static_cast<double>(size * micro_batches);
        }
      }
    }
    if (is_skipped) continue;
    double squares = 0;
    for (const Parameter& p : all) {
      for (const double g : p.gradient.value_or(Values())) squares += g * g;
    }
    const double factor = row.clip_norm > 0 ? std::min(1.0, row.clip_norm / (std::sqrt(squares) + 1e-6)) : 1;
    const auto t = static_cast<double>(++updates);
    for (Parameter& p : all) {
      for (std::size_t i = 0; p.gradient && i < p.value.size(); ++i) {
        double g = factor * (*p.gradient)[i];
        if (row.optimizer == "adamw") {
          p.first[i] = beta1 * p.first[i] + (1 - beta1) * g;
          p.second[i] = beta2 * p.second[i] + (1 - beta2) * g * g;
          const double mean = p.first[i] / (1 - std::pow(beta1, t)), square = p.second[i] / (1 - std::pow(beta2, t));
          p.value[i] -= rate * (decay * p.value[i] + mean / (std::sqrt(square) + epsilon));
          continue;
        }
        g += decay * p.value[i];
        p.first[i] = (row.optimizer == "momentum" ? momentum * p.first[i] : 0) + g;
        p.value[i] -= rate * p.first[i];
      }
    }
  }
  std::vector<Values> values;
  for (const Parameter& p : all) values.push_back(p.value);
  return values;
}

std::unique_ptr<optim::Optimizer> optimizer_of(const Row& row, Net& net) {
  if (row.optimizer == "adamw") {
    optim::AdamOptions options{.rate = rate, .beta1 = beta1, .beta2 = beta2, .epsilon = epsilon};
    options.weight_decay = decay;
    return std::make_unique<optim::Adam>(net.trainable(), options);
  }
  return std::make_unique<optim::Sgd>(
      net.trainable(),
      optim::SgdOptions{.rate = rate, .momentum = row.optimizer == "sgd" ? 0 : momentum, .weight_decay = decay});
}

std::vector<Values> values_of(const Net& net) {
  return {to_host<double>(net.a), to_host<double>(net.b), to_host<double>(net.c)};
}

}  // namespace

TEST_CASE("missing gradients: frozen or unused in some micro-batches, as by hand", "[step][trainer]") {
  const testing::Threads alone;
  const optim::GradScalerOptions scale{.scale = 1024, .interval = 2};
  std::vector<Row> rows;
  for (const char* const optimizer : {"sgd", "momentum", "adamw"}) {
    for (const double clip_norm : {0.0, 0.5}) {
      for (const bool is_scaled : {false, true}) rows.push_back({optimizer, clip_norm, is_scaled});
    }
  }
  for (const Row& row : rows) {
    INFO(row.optimizer << ", clipped to " << row.clip_norm << (row.is_scaled ? ", scaled" : ""));
    const std::vector<Values> expected = by_hand(row);
    const auto check = [&](const char* name, const std::vector<Values>& values) {
      INFO(name);
      for (std::size_t p = 0; p < expected.size(); ++p) {
        INFO("parameter " << p);
        for (std::size_t i = 0; i < size; ++i) CHECK(std::abs(values[p][i] - expected[p][i]) < 1e-6);  // state in f32
      }
    };
    {
      Net net(cpu);
      const auto optimizer = optimizer_of(row, net);
      optim::GradScaler scaler(scale);
      nn::StepOptions options{.clip_norm = row.clip_norm, .micro_batches = micro_batches};
      options.micro_samples = 1;
      if (row.is_scaled) options.scaler = &scaler;
      for (std::int64_t step = 0; step < steps; ++step) {
        const Batch batch = batch_of(step, cpu);
        nn::training_step(
            *optimizer,
            [&](std::int64_t m) { return loss_of(net, micro_batch_of(batch, m, micro_batches), row.is_scaled); },
            options);
      }
      CHECK(scaler.state().skipped_steps == (row.is_scaled ? 2 : 0));
      check("a step", values_of(net));
    }
    nn::TrainedProgram<Net, Batch> own{
        .model = [](memory::Device device) { return std::make_unique<Net>(device); },
        .optimizer = [&](Net& net) { return optimizer_of(row, net); },
        .loss = [&](Net& net, const Batch& batch) { return loss_of(net, batch, row.is_scaled); },
        .batch = batch_of,
        .micro_batch = micro_batch_of,
        .key = [](const Batch& batch) { return has_a(batch.step) ? "all" : "without a"; }};
    nn::TrainerOptions options{.steps = steps};
    options.step.clip_norm = row.clip_norm;
    options.step.micro_batches = micro_batches;
    if (row.is_scaled) options.loss_scale = scale;
    nn::Trainer<Net, Batch> trainer(own, options);
    const nn::RunReport report = trainer.run();
    CHECK(report.skipped_steps == (row.is_scaled ? 2 : 0));
    check("a trainer", values_of(trainer.model()));
  }
}
