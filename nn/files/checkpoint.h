#pragma once
// Checkpoints of training: one safetensors file from which training resumes as if it had never stopped, bit by bit.

#include <string>
#include <vector>

#include <thimble/core/tensor/generator.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

/// Parameters that a checkpoint has: all of a module, or the unfrozen ones of a module with adapters (nn/lora/lora.h),
/// because the others are in their original file.
std::vector<NamedTensor> checkpoint_parameters(const Module& module);

/// Writes the module's parameters and buffers (`model.<name>`), the optimizer's state (`optimizer.<name>`), its name,
/// step count and rate, the generator's seed and step, the scaler's state, if any, and `metadata` (keys not beginning
/// with "thimble."). Tensors are in memory's layout and dtype: save_weights writes files for other programs. The file
/// appears whole or not at all: a crash leaves the old one. A state with a NaN or an infinity is not written: training
/// cannot resume from it, and the old file is better. Parameters and state that are away are fetched one after the
/// other (core/tensor/parameter_store.h, Optimizer::each_state). Sharded parameters are whole in the file
/// (nn/files/cut_tensors.h), and take room while they are assembled. Only a staging of a stated size needs other memory
/// (nn/files/tensor_io.h). Replaces a checkpoint at `path`, a file of another kind only with `overwrites`. Throws
/// DeviceError (dry), ValueError (a file of another kind), ShapeError (state of a part that is in no whole),
/// NotFiniteError, FileError, OutOfMemory (room for whole parameters).
void save_checkpoint(const std::string& path, const Module& module, const optim::Optimizer& optimizer,
                     const RandomGenerator& generator, const Metadata& metadata = {},
                     const optim::GradScaler* scaler = nullptr, bool overwrites = false);

/// The modules and optimizers of a program that has several of one of them. Tensors of module i are then
/// `model.<i>.<name>`, state of optimizer i is `optimizer.<i>.<name>`; a single one has no number.
struct CheckpointParts {
  std::vector<Module*> modules;
  std::vector<optim::Optimizer*> optimizers;
};
/// One file of all of them, as above and below. Modules with parts of parameters (nn/parallel/shards.h) are ValueErrors
/// where there are several.
void save_checkpoint(const std::string& path, const CheckpointParts& parts, const RandomGenerator& generator,
                     const Metadata& metadata = {}, const optim::GradScaler* scaler = nullptr, bool overwrites = false);
Metadata load_checkpoint(const std::string& path, const CheckpointParts& parts, RandomGenerator& generator,
                         optim::GradScaler* scaler = nullptr, const std::vector<NamedTensor>& whole_state = {});

/// The metadata of a checkpoint of these.
CheckpointInfo checkpoint_info(const Module& module, const optim::Optimizer& optimizer,
                               const RandomGenerator& generator, const Metadata& metadata,
                               const optim::GradScaler* scaler);

/// Restores everything and returns the caller's metadata. All of it is checked before the first value changes. Throws
/// FileError (unreadable, no checkpoint, bytes with a wrong sum), ValueError (of another optimizer; with a scaler and
/// without one, or a scale that it does not allow; a tensor is missing or unknown; state has a number that it cannot
/// have, check_state_numbers; of a model with another recipe for FP8, if the file names one), ShapeError, DTypeError
/// (naming the tensor and both sides; nothing is converted). A disk that fails while values are read leaves some of
/// them loaded. Tensors that are away are fetched as in save_checkpoint, also on a dry device, which only checks
/// tensors. `whole_state`: if the optimizer has shards of some parameters, names, shapes and dtypes of the state of
/// all; it then gets its shards. Empty: it has all of them.
Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer,
                         RandomGenerator& generator, optim::GradScaler* scaler = nullptr,
                         const std::vector<NamedTensor>& whole_state = {});

/// The memory use of load_checkpoint and save_checkpoint, without a file: parameters and state that are away come and
/// go, and shards of a parameter are assembled. For dry runs. Throw FileError, OutOfMemory.
void visit_state(const Module& module, const optim::Optimizer& optimizer);
void visit_save(const Module& module, const optim::Optimizer& optimizer);

}  // namespace thimble::nn
