#pragma once
// All ambient state that affects results or bytes is here, per thread, changed and restored by scopes, or in the
// process's Settings (core/settings.h).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <thimble/core/tensor/generator.h>
#include <thimble/core/tensor/resource.h>

namespace thimble {

class ParameterStore;
class ParameterUse;
class Tape;
namespace tape {
class Transaction;
}  // namespace tape
namespace kernels {
class StepBlock;
}

struct ThreadContext {
  Tape* tape = nullptr;                        ///< the recording tape (autograd/tape.h)
  PathId path = 0;                             ///< module path that labels allocations and nodes
  std::shared_ptr<memory::Resource> resource;  ///< for tensors on its device; defaults to default_resource
  RandomGenerator* generator = nullptr;        ///< defaults to a thread-local generator with seed 0
  tape::Transaction* transaction = nullptr;    ///< stages the side effects of a step (core/tensor/transaction.h)
  bool is_recomputing = false;                 ///< operators must have no side effects
  bool allows_tf32 = false;                    ///< for f32 products on a CUDA device (core/launch/compute_capability.h)
  int assumed_capability = 0;                  ///< of dry CUDA devices, unless 0 (core/launch/compute_capability.h)
  std::shared_ptr<ParameterStore> parameter_store;  ///< receives new parameters (core/tensor/parameter_store.h)
  ParameterUse* parameter_use = nullptr;            ///< the step or evaluation in progress
  kernels::StepBlock* step_block = nullptr;         ///< of a step being captured (core/kernels/shared/step_numbers.h)
};

/// This thread's context.
ThreadContext& context() noexcept;

/// The resource for new tensors on `device`.
std::shared_ptr<memory::Resource> current_resource(memory::Device device);

RandomGenerator& current_generator() noexcept;

/// Interns `parent`.`name` ("gpt" + "h" -> "gpt.h"); the same pair always gives the same id. Thread-safe.
PathId join_path(PathId parent, std::string_view name);
/// The dotted path of an id; the view stays valid for the life of the program.
std::string_view path_name(PathId id);

/// Appends `name` to the current path for a scope.
class PathScope {
 public:
  explicit PathScope(std::string_view name) : before_(context().path) { context().path = join_path(before_, name); }
  explicit PathScope(PathId path) : before_(context().path) { context().path = path; }
  ~PathScope() { context().path = before_; }
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  PathId before_;
};

/// Sets the resource for tensors of its device for a scope.
class ResourceScope {
 public:
  explicit ResourceScope(std::shared_ptr<memory::Resource> resource);
  ~ResourceScope();
  ResourceScope(const ResourceScope&) = delete;
  ResourceScope& operator=(const ResourceScope&) = delete;

 private:
  std::shared_ptr<memory::Resource> before_;
};

/// Sets the generator for a scope.
class GeneratorScope {
 public:
  explicit GeneratorScope(RandomGenerator& generator) : before_(context().generator) {
    context().generator = &generator;
  }
  ~GeneratorScope() { context().generator = before_; }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  RandomGenerator* before_;
};

/// Records nothing for a scope: `NoGrad off;`.
class NoGrad {
 public:
  NoGrad() : before_(context().tape) { context().tape = nullptr; }
  ~NoGrad() { context().tape = before_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Tape* before_;
};

// ---- Training or evaluation, for functions that differ between them (dropout, attention's dropout, batch norm).
// Layers open a scope by their mode (nn/layers/module.h), nn::Trainer around its evaluation, a hand-written loop so:
//
//   const EvaluationScope evaluating;
//   const NoGrad off;
//   const double loss = item(mse_loss(net(x), y));

/// Whether this thread evaluates; false outside scopes.
bool is_evaluating() noexcept;

/// Evaluates for a scope, or trains if `is_evaluating` is false.
class EvaluationScope {
 public:
  explicit EvaluationScope(bool is_evaluating = true) noexcept;
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  bool before_;
};

}  // namespace thimble
