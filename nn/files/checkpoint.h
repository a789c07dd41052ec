#pragma once
// Checkpoints: one safetensors file from which training resumes as if it had never stopped, bit by bit.

#include <string>
#include <vector>

#include <thimble/core/tensor/generator.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

/// The parameters of a checkpoint: all of a module, or only the unfrozen ones of a module with adapters
/// (nn/lora/lora.h), because the others are in their original file.
std::vector<NamedTensor> checkpoint_parameters(const Module& module);

/// Writes the module's parameters and buffers (`model.<name>`), the optimizer's state (`optimizer.<name>`), its name,
/// step count and rate, the generator's seed and step, the scaler's state, if any, and `metadata` (keys not beginning
/// with "thimble."). Tensors keep memory's layout and dtype: save_weights writes files for other programs. The file
/// appears whole or not at all: a crash leaves the old one. A state with a NaN or an infinity is not written, because
/// training cannot resume from it. Offloaded parameters and state are fetched one after the other
/// (core/tensor/parameter_store.h, Optimizer::each_state). Sharded parameters are whole in the file
/// (nn/files/cut_tensors.h) and take memory while they are assembled; otherwise saving needs only the staging
/// (nn/files/tensor_io.h). Replaces a checkpoint at `path`, a file of another kind only with `overwrites`. Throws
/// DeviceError (dry), ValueError (a file of another kind), ShapeError (a shard's state that fits no whole),
/// NotFiniteError, FileError, OutOfMemory (for whole parameters).
void save_checkpoint(const std::string& path, const Module& module, const optim::Optimizer& optimizer,
                     const RandomGenerator& generator, const Metadata& metadata = {},
                     const optim::GradScaler* scaler = nullptr, bool overwrites = false);

/// The modules and optimizers of a program. With several modules, tensors of module i are `model.<i>.<name>`; with
/// several optimizers, state of optimizer i is `optimizer.<i>.<name>`.
struct CheckpointParts {
  std::vector<Module*> modules;
  std::vector<optim::Optimizer*> optimizers;
};
/// One file for all modules and optimizers. Throw ValueError for several modules with sharded parameters
/// (nn/parallel/shards.h).
void save_checkpoint(const std::string& path, const CheckpointParts& parts, const RandomGenerator& generator,
                     const Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr, bool overwrites = false);
Metadata load_checkpoint(const std::string& path, const CheckpointParts& parts, RandomGenerator& generator,
                         optim::GradScaler* scaler = nullptr, const std::vector<NamedTensor>& whole_state = {});

CheckpointInfo checkpoint_info(const Module& module, const optim::Optimizer& optimizer,
                               const RandomGenerator& generator, const Metadata& metadata,
                               const optim::GradScaler* scaler);

/// Restores everything and returns the caller's metadata. Checks the whole file before the first value changes. Throws
/// FileError (unreadable, no checkpoint, a wrong checksum), ValueError (another optimizer; a scaler only in the file or
/// only here, or a scale that it rejects; a missing or unknown tensor; state out of range, check_state_numbers; another
/// recipe for FP8, if the file names one), ShapeError, DTypeError (naming the tensor and both sides; nothing is
/// converted). A disk error while values are read leaves some of them loaded. Offloaded tensors are fetched as in
/// save_checkpoint, also on a dry device, which only checks tensors. If the optimizer has shards of some parameters,
/// `whole_state` has names, shapes and dtypes of all parameters' state, and the optimizer gets its shards.
Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer,
                         RandomGenerator& generator, optim::GradScaler* scaler = nullptr,
                         const std::vector<NamedTensor>& whole_state = {});

/// For dry runs: the memory use of load_checkpoint and save_checkpoint without a file. Offloaded parameters and state
/// come and go, and shards of a parameter are assembled. Throw FileError, OutOfMemory.
void visit_state(const Module& module, const optim::Optimizer& optimizer);
void visit_save(const Module& module, const optim::Optimizer& optimizer);

}  // namespace thimble::nn
