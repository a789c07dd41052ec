#pragma once
// Helpers of the tests of reference models: passes, training steps, and checks for every model: its builds against each
// other, dry against real runs, theory against the ledger, its names and sizes in files.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/models/theory.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "catch.h"
#include "files.h"
#include "near.h"

namespace thimble::testing {

inline models::ModelOptions tiny_text_model(models::Build build, double dropout = 0) {
  models::ModelOptions options;
  options.layers = 2, options.width = 32, options.heads = 4, options.sequence = 16, options.vocabulary = 17;
  options.dropout = dropout;
  options.build = build;
  return options;
}

/// Sets the number of threads for a scope: small models are quicker on one thread.
class Threads {
 public:
  explicit Threads(int threads = 1) : before_(thread_count()) { set_thread_count(threads); }
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

/// Equal initial values for equal seeds, in any build.
template <class M = models::Model>
std::unique_ptr<M> make_seeded(std::string_view name, const models::ModelOptions& options,
                               const nn::TensorOptions& on = {}, std::uint64_t seed = 1) {
  RandomGenerator generator(seed);
  const GeneratorScope scope(generator);
  std::unique_ptr<models::Model> model = models::make_model(name, options, on);
  return std::unique_ptr<M>(&dynamic_cast<M&>(*model.release()));
}

/// Normal images with the classes 0, 1, 2, ...; or ids from the position and `seed`, with the next ids as targets, or
/// in a masked model the hidden ids (every third position).
inline models::Batch make_batch(const models::Model& model, std::int64_t samples, std::uint64_t seed = 3) {
  models::Batch batch = model.empty_batch(samples, cpu);
  std::vector<std::int64_t> targets;
  if (!model.is_text()) {
    RandomGenerator generator(seed);
    const GeneratorScope scope(generator);
    fill_normal(batch.input, 0, 1);
    for (std::int64_t i = 0; i < samples; ++i) targets.push_back(i % model.options().classes);
  } else {
    std::vector<std::int64_t> ids;
    const std::int64_t vocabulary = model.options().vocabulary, length = model.options().sequence;
    for (std::int64_t i = 0; i < samples * length; ++i) {
      const auto id_at = [&](std::int64_t t) {
        return (t * t + 3 * (i / length) + 5 * static_cast<std::int64_t>(seed)) % vocabulary;
      };
      const bool is_hidden = model.is_masked() && i % 3 == 0;
      ids.push_back(is_hidden ? vocabulary - 1 : id_at(i % length));
      targets.push_back(is_hidden ? id_at(i % length) : model.is_masked() ? -100 : id_at(i % length + 1));
    }
    copy_into(batch.input, from_host(ids, batch.input.shape()));
  }
  copy_into(batch.target, from_host(targets, batch.target.shape()));
  return batch;
}

/// Sizes of a named model with one of them replaced.
template <class Member, class Value>
models::ModelOptions options_with(Member models::ModelOptions::*member, Value value) {
  models::ModelOptions options;
  options.*member = value;
  return options;
}

struct NamedValues {
  std::string name;
  std::vector<double> values;
  friend bool operator==(const NamedValues&, const NamedValues&) = default;
};

/// Loss, gradients of all parameters and buffers after one pass. Gradients are freed.
inline std::vector<NamedValues> run_pass(models::Model& model, const models::Batch& batch, std::uint64_t seed = 5) {
  RandomGenerator generator(seed);
  const GeneratorScope scope(generator);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = model.loss(batch);
  }
  std::vector<NamedValues> list{{"loss", to_host<double>(loss)}};
  tape.backward(loss);
  for (const nn::NamedTensor& p : model.parameters()) {
    REQUIRE(p.tensor.grad().defined());
    list.push_back({p.name, to_host<double>(p.tensor.grad())});
    Tensor(p.tensor).grad() = Tensor();
  }
  for (const nn::NamedTensor& b : model.buffers()) list.push_back({b.name, to_host<double>(b.tensor)});
  return list;
}

/// The largest |a - b|, relative to the largest |b|.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  const double scale = thimble_test::largest_of(b), most = thimble_test::largest_difference(a, b);
  return scale > 0 ? most / scale : most;
}

/// Losses of `steps` training steps on one batch.
inline std::vector<double> train_on(models::Model& model, optim::Optimizer& optimizer, const models::Batch& batch,
                                    int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    nn::StepOptions options;
    options.clip_norm = 1;
    losses.push_back(item(nn::training_step(
        optimizer, [&](std::int64_t) { return model.loss(batch); }, options)));
  }
  return losses;
}

/// For runs without preparation: see `prepare` below.
inline constexpr auto as_made = [](auto&) {};

/// Both builds of a transformer give loss and gradients that are equal up to rounding, with dropout too: a mask is a
/// function of the path, the call's ordinal under it and the element, and both builds draw at equal places. Recomputed
/// blocks give equal bits. `sizes_of(build, dropout)`; `prepare(model)` runs first. Parameters whose name ends with
/// `without_gradient` are left out: their gradient is only rounding.
template <class M, class SizesOf, class Prepare = decltype(as_made)>
void check_builds_agree(std::string_view name, SizesOf&& sizes_of, const Prepare& prepare = as_made,
                        std::string_view without_gradient = {}) {
  const Threads alone;
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const double dropout : {0.0, 0.2}) {
      INFO(to_string(dtype) << " " << dropout);
      const auto a = make_seeded<M>(name, sizes_of(models::Build::fused, dropout), {cpu, dtype});
      const auto b = make_seeded<M>(name, sizes_of(models::Build::textbook, dropout), {cpu, dtype});
      prepare(*a), prepare(*b);
      const models::Batch batch = make_batch(*a, 3);
      const auto fused = run_pass(*a, batch), textbook = run_pass(*b, batch);
      const double tolerance = dtype == DType::f64 ? 1e-12 : 2e-5;
      REQUIRE(fused.size() == textbook.size());
      for (std::size_t i = 0; i < fused.size(); ++i) {
        INFO(fused[i].name);
        if (!without_gradient.empty() && fused[i].name.ends_with(without_gradient)) continue;
        CHECK(distance(fused[i].values, textbook[i].values) < tolerance);
      }
      CHECK((run_pass(*a, batch, 6)[0] == fused[0]) == (a->options().dropout == 0));  // other masks, another loss
      for (const bool is_recomputed : {true, false}) {
        a->recompute_blocks(is_recomputed), b->recompute_blocks(is_recomputed);
        CHECK(run_pass(*a, batch) == fused);
        CHECK(run_pass(*b, batch) == textbook);
      }
    }
  }
}

/// Two steps on a device: Adam with clipping for text, SGD with momentum for images. Returns the stack with its trace.
template <class M = models::Model, class Prepare = decltype(as_made)>
memory::Stack run_two_steps(std::string_view name, const models::ModelOptions& options, std::int64_t samples,
                            memory::Device device, const Prepare& prepare = as_made) {
  const Threads alone;
  memory::Stack stack = memory::make_resource(device, {.trace = true});
  const ResourceScope resource(stack.top);
  RandomGenerator generator(3);
  const GeneratorScope draws(generator);
  const auto model = make_seeded<M>(name, options, {device});
  prepare(*model);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (model->is_text()) {
    optimizer = std::make_unique<optim::Adam>(model->trainable(), optim::AdamOptions{});
  } else {
    optimizer = std::make_unique<optim::Sgd>(model->trainable(), optim::SgdOptions{.rate = 0.01, .momentum = 0.9});
  }
  nn::StepOptions step_options;
  step_options.clip_norm = model->is_text() ? 1 : 0;
  const models::Batch batch = model->empty_batch(samples, device);
  for (int step = 0; step < 2; ++step) {
    nn::training_step(
        *optimizer, [&](std::int64_t) { return model->loss(batch); }, step_options);
  }
  return stack;
}

/// Compares a dry run with the real one, event by event.
template <class M = models::Model, class Prepare = decltype(as_made)>
void check_dry_run(std::string_view name, const models::ModelOptions& options, std::int64_t samples,
                   const Prepare& prepare = as_made) {
  const memory::Stack real = run_two_steps<M>(name, options, samples, cpu, prepare);
  const memory::Stack dried = run_two_steps<M>(name, options, samples, dry(cpu), prepare);
  CHECK(real.trace->events().size() > 100);
  CHECK(*real.trace == *dried.trace);
  CHECK(real.arena->statistics() == dried.arena->statistics());
  CHECK(real.ledger->max_allocated() == dried.ledger->max_allocated());
  CHECK(real.ledger->bytes() == 0);
}

/// The dry run of a full-size model takes less than a second, and its peak is where state and activations put it.
inline void check_planned_within_a_second(std::string_view name, std::int64_t samples, std::int64_t moments,
                                          const models::Theory& theory) {
  const auto start = std::chrono::steady_clock::now();
  const memory::Stack stack = run_two_steps(name, {}, samples, dry(cpu));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const auto peak = static_cast<std::int64_t>(stack.arena->statistics().peak_committed_bytes);
  const models::ModelState state = theory.state(moments);
  const std::int64_t kept_bytes = theory.kept_bytes(memory::Category::activation, samples);
  CHECK(peak > state.parameters + state.optimizer + kept_bytes);
  CHECK(peak < state.total() + kept_bytes);
  CHECK(elapsed.count() < 1);
}

/// The literature's bytes that a transformer layer keeps in its textbook build, without the statistics of norms
/// (Korthikanti et al. 2022, equation 1): e = `element_bytes`.
constexpr std::int64_t transformer_layer_bytes(std::int64_t s, std::int64_t b, std::int64_t h, std::int64_t a,
                                               std::int64_t element_bytes, bool has_dropout) noexcept {
  const std::int64_t e = element_bytes;
  return has_dropout ? s * b * h * (16 * e + 2) + (2 * e + 1) * a * s * s * b : 16 * e * s * b * h + e * a * s * s * b;
}

/// Compares theory with the ledger in a dry pass: between forward and backward, after backward, and with an Adam
/// optimizer. `is_recomputed`: every layer runs under checkpoint(). `more_in_layer`: additional bytes per layer that a
/// pass without a Transaction keeps.
template <class M = models::Model>
void check_theory(const models::Theory& theory, std::string_view name, const models::ModelOptions& options,
                  std::int64_t samples, bool is_recomputed = false, std::int64_t more_in_layer = 0) {
  const nn::Precision& precision = theory.precision;
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  const auto booked = [&](memory::Category category, const std::string& path = "") {
    return static_cast<std::int64_t>(stack.ledger->bytes(category, path));
  };
  const auto model = make_seeded<M>(name, options, precision.on(dry(cpu)));
  if constexpr (requires { model->recompute_blocks(true); }) model->recompute_blocks(is_recomputed);
  const models::Batch batch = model->empty_batch(samples, dry(cpu));
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = model->loss(batch);
  }
  for (const models::LayerTheory& layer : theory.layers) {
    INFO(layer.path);
    const std::vector<models::Term> kept = is_recomputed ? models::recomputed(layer) : layer.kept;
    CHECK(booked(memory::Category::activation, layer.path) ==
          models::bytes_of(kept, memory::Category::activation, samples) + more_in_layer);
  }
  const models::ModelState state = theory.state(2);
  CHECK(loss.dtype() == (precision.parameters == DType::f64 ? DType::f64 : DType::f32));
  CHECK(booked(memory::Category::activation) ==
        theory.kept_bytes(memory::Category::activation, samples, is_recomputed) +
            static_cast<std::int64_t>(theory.layers.size()) * more_in_layer);
  CHECK(booked(memory::Category::input) == theory.kept_bytes(memory::Category::input, samples, is_recomputed));
  CHECK(booked(memory::Category::parameter) == state.parameters + state.buffers);
  CHECK(booked(memory::Category::temporary) == static_cast<std::int64_t>(loss.bytes()));  // nothing else is left
  CHECK(booked(memory::Category::workspace) == 0);
  tape.backward(loss, full({}, precision.scales_loss ? 65536 : 1, loss.dtype(), dry(cpu)));
  CHECK(booked(memory::Category::activation) == 0);
  CHECK(booked(memory::Category::gradient) == state.gradients);
  const optim::Adam optimizer(model->trainable(), {.narrow = precision.update});
  CHECK(booked(memory::Category::optimizer) == state.optimizer);
  CHECK(static_cast<std::int64_t>(optimizer.state_bytes()) == state.optimizer);
  CHECK(model->parameter_count() == state.parameter_elements);
}

/// Calls check(build, dropout, dtype) for both builds, with and without dropout, in three dtypes.
template <class Check>
void for_each_form(double dropout, Check&& check) {
  for (const models::Build build : {models::Build::fused, models::Build::textbook}) {
    for (const double p : {0.0, dropout}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) check(build, p, dtype);
    }
  }
}

/// Batch, tokens of a sequence (pixels of an image's side), width, heads, layers, tokens of a vocabulary (classes).
struct TheorySizes {
  std::int64_t b, s, h, a, layers, classes;
};

/// check_theory() in every form, also recomputed.
template <class M>
void check_theories(std::string_view name, std::initializer_list<TheorySizes> rows) {
  for (const TheorySizes& row : rows) {
    for_each_form(0.1, [&](models::Build build, double dropout, DType dtype) {
      models::ModelOptions options;
      const bool is_text = !name.starts_with("vit");
      (is_text ? options.sequence : options.image) = row.s, options.width = row.h, options.heads = row.a;
      (is_text ? options.vocabulary : options.classes) = row.classes, options.layers = row.layers;
      options.dropout = dropout, options.build = build;
      for (const bool is_recomputed : {false, true}) {
        CAPTURE(row.s, row.h, static_cast<int>(build), dropout, to_string(dtype), is_recomputed);
        const models::Theory theory = models::make_theory(name, options, dtype);
        CHECK(theory.layers.size() == static_cast<std::size_t>(row.layers));
        check_theory<M>(theory, name, options, row.b, is_recomputed);
      }
    });
  }
}

/// Saving, loading into another model and saving again gives equal bytes.
inline void check_weights_round_trip(std::string_view name, const models::ModelOptions& options) {
  const files_test::TemporaryFolder folder;
  const auto a = make_seeded(name, options), b = make_seeded(name, options, {}, 2);
  nn::save_weights(*a, folder / "first");
  nn::save_weights(*b, folder / "other");
  CHECK(files_test::read_text_file(folder / "first") != files_test::read_text_file(folder / "other"));
  nn::load_weights(*b, folder / "first");
  nn::save_weights(*b, folder / "second");
  CHECK(files_test::read_text_file(folder / "first") == files_test::read_text_file(folder / "second"));
}

/// The shape of a parameter or buffer in a file; empty if none has that name.
inline std::string file_shape_of(const models::Model& model, const std::string& name) {
  std::vector<nn::NamedTensor> entries = model.parameters();
  for (const nn::NamedTensor& b : model.buffers()) entries.push_back(b);
  for (const nn::NamedTensor& e : entries) {
    if (e.name == name) return to_string(nn::file_shape(e.tensor.shape(), e.layout));
  }
  return {};
}

struct FileShape {
  const char *name, *shape;
};
inline void check_file_shapes(const models::Model& model, const std::vector<FileShape>& rows) {
  for (const FileShape& row : rows) {
    INFO(row.name);
    CHECK(file_shape_of(model, row.name) == row.shape);
  }
}

}  // namespace thimble::testing
