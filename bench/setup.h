#pragma once
// A model, an optimizer and their sizes, as the program's flags name them: what `plan`, `train` and the experiments
// share.

#include <cstdint>
#include <memory>
#include <string>

#include <thimble/models/model.h>
#include <thimble/nn/profile.h>
#include <thimble/optim/optimizer.h>

namespace thimble::bench {

struct Setup {
  std::string model;
  models::ModelOptions sizes;
  std::int64_t batch = 8;
  std::string optimizer;  ///< sgd, momentum, adam, adamw; empty: momentum for images, adamw for text
  DType dtype = DType::f32;
  double rate = -1;          ///< negative: 0.1 for sgd and momentum, 1e-3 or by width for adam and adamw
  double clip_norm = -1;     ///< negative: 1 for text, none for images
  double weight_decay = -1;  ///< negative: 0.1 for adamw (tensors of rank 2 and more), else none
  double beta2 = -1;         ///< of adam and adamw; negative: 0.999 for adam, 0.99 for adamw
  std::uint64_t seed = 1;
};

/// The optimizer's name with the default filled in. Throws ValueError listing the names.
std::string optimizer_name(const Setup& setup, bool is_text);

/// Throws ValueError for an unknown name or a rate out of range.
std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const models::Model& model);

/// The gradient norm that steps are clipped to; 0: none.
double clip_norm(const Setup& setup, bool is_text);

/// Makes runs that train `setup` on a batch of zeros: for dry runs, and to measure them.
nn::MakeRun training_run(const Setup& setup);

/// Makes runs whose step is a forward in evaluation mode, without a tape and without an optimizer.
nn::MakeRun inference_run(const Setup& setup);

}  // namespace thimble::bench
