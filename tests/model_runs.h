#pragma once
// Runs of reference models that their tests share: passes, training steps, dry and real traces, what the ledger books.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/copy.h>
#include <thimble/core/parallel.h>
#include <thimble/core/random.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "catch.h"
#include "files.h"

namespace thimble::testing {

/// A number of threads for a scope: small models are quicker without others to wait for.
class Threads {
 public:
  explicit Threads(int threads = 1) : before_(thread_count()) { set_thread_count(threads); }
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

/// The same initial values for the same seed, whatever the build.
inline std::unique_ptr<models::Model> make_seeded(std::string_view name, const models::ModelOptions& options,
                                                  const nn::Placement& on = {}, std::uint64_t seed = 1) {
  Generator generator(seed);
  const GeneratorScope scope(generator);
  return models::make_model(name, options, on);
}

/// Normal images with the classes 0, 1, 2, ...; or ids and, for every third position of a masked model (every position
/// of others), targets.
inline models::Batch make_batch(const models::Model& model, std::int64_t samples, std::uint64_t seed = 3) {
  Generator generator(seed);
  const GeneratorScope scope(generator);
  models::Batch batch = model.empty_batch(samples, cpu);
  std::vector<std::int64_t> classes;
  if (!model.is_text()) {
    fill_normal(batch.input, 0, 1);
    for (std::int64_t i = 0; i < samples; ++i) classes.push_back(i % model.options().classes);
  } else {
    std::vector<std::int64_t> ids;
    const std::int64_t vocabulary = model.options().vocabulary;
    for (std::int64_t i = 0; i < samples * model.options().sequence; ++i) {
      const std::int64_t id = (i * i + 3 * i + 7 * (i / model.options().sequence)) % vocabulary;
      const bool is_target = !model.is_masked() || i % 3 == 0;
      ids.push_back(is_target && model.is_masked() ? vocabulary - 1 : id);
      classes.push_back(is_target ? id : -100);
    }
    copy_into(batch.input, from_host(ids, batch.input.shape()));
  }
  copy_into(batch.target, from_host(classes, batch.target.shape()));
  return batch;
}

/// A name and values.
struct NamedValues {
  std::string name;
  std::vector<double> values;
  friend bool operator==(const NamedValues&, const NamedValues&) = default;
};

/// Loss, gradients of all parameters and buffers after one pass. Gradients are freed.
inline std::vector<NamedValues> run_pass(models::Model& model, const models::Batch& batch, std::uint64_t seed = 5) {
  Generator generator(seed);
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
  double most = 0, scale = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
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

/// Two steps of SGD with momentum on a device; the stack remembers what happened.
inline memory::Stack run_two_steps(std::string_view name, const models::ModelOptions& options, std::int64_t samples,
                                   Device device) {
  const Threads alone;
  memory::Stack stack = memory::make_resource(device, {.trace = true});
  const ResourceScope resource(stack.top);
  Generator generator(3);
  const GeneratorScope draws(generator);
  const auto model = models::make_model(name, options, {device});
  optim::Sgd sgd(model->trainable(), {.rate = 0.01, .momentum = 0.9});
  const models::Batch batch = model->empty_batch(samples, device);
  for (int step = 0; step < 2; ++step) {
    nn::training_step(sgd, [&](std::int64_t) { return model->loss(batch); });
  }
  return stack;
}

/// Holds a dry run against the real one, event by event.
inline void check_dry_run(std::string_view name, const models::ModelOptions& options, std::int64_t samples) {
  const memory::Stack real = run_two_steps(name, options, samples, cpu);
  const memory::Stack dried = run_two_steps(name, options, samples, dry(cpu));
  CHECK(real.trace->events().size() > 100);
  CHECK(*real.trace == *dried.trace);
  CHECK(real.arena->statistics().peak_committed_bytes == dried.arena->statistics().peak_committed_bytes);
  CHECK(real.ledger->max_allocated() == dried.ledger->max_allocated());
  CHECK(real.ledger->bytes() == 0);
}

/// What a dry training forward books for backward, by category and path; then its backward's gradients.
struct Booked {
  memory::Stack stack;
  std::unique_ptr<models::Model> model;
  Tape tape;
  Tensor loss;

  std::int64_t bytes(Category category, const std::string& path = "") const {
    return static_cast<std::int64_t>(stack.ledger->bytes(category, path));
  }
};

/// Runs `check(booked)` between forward and backward of a dry pass; `prepare(model)` before.
template <class Prepare, class Check>
void with_booked_forward(std::string_view name, const models::ModelOptions& options, DType dtype, std::int64_t samples,
                         Prepare&& prepare, Check&& check) {
  Booked booked{memory::make_resource(dry(cpu)), nullptr, {}, {}};
  const ResourceScope scope(booked.stack.top);
  booked.model = make_seeded(name, options, {dry(cpu), dtype});
  prepare(*booked.model);
  const models::Batch batch = booked.model->empty_batch(samples, dry(cpu));
  {
    const Recording on(booked.tape);
    booked.loss = booked.model->loss(batch);
  }
  CHECK(booked.bytes(Category::temporary) == static_cast<std::int64_t>(booked.loss.bytes()));  // nothing else is left
  CHECK(booked.bytes(Category::workspace) == 0);
  check(booked);
  booked.tape.backward(booked.loss);
  CHECK(booked.bytes(Category::activation) == 0);
  check.gradients(booked);
  booked.loss = Tensor();
  booked.model.reset();
}

/// Saving, loading into another model and saving again gives the same bytes.
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

/// The shape a parameter or buffer has in a file; empty when there is none of that name.
inline std::string file_shape_of(const models::Model& model, const std::string& name) {
  std::vector<nn::NamedTensor> entries = model.parameters();
  for (const nn::NamedTensor& b : model.buffers()) entries.push_back(b);
  for (const nn::NamedTensor& e : entries) {
    if (e.name == name) return to_string(nn::file_shape(e.tensor.shape(), e.layout));
  }
  return {};
}

}  // namespace thimble::testing
