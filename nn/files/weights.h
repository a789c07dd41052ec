#pragma once
// Weights of a model in safetensors files, with the names and layouts that other programs use.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {

/// Writes the parameters and buffers of a module under their dotted names, convolutions as (O, I, KH, KW), with their
/// dtypes; sharded parameters are whole there, which takes room (nn/files/cut_tensors.h). The file appears whole or not
/// at all. Throws as write_tensor_file; OutOfMemory.
void save_weights(const Module& module, const std::string& path, const Metadata& metadata = {});

/// The same in a folder, which is made if needed: `model.safetensors` if `most_bytes` hold all tensors, else shards of
/// at most so many bytes (more if one tensor has more), written after the removal of an older index and before theirs.
/// Throws as save_weights, and FileError if shards would be beside a `model.safetensors`,
/// which readers take first; ValueError for 0 bytes and for sharded parameters.
void save_weight_folder(const Module& module, const std::string& folder, std::uint64_t most_bytes,
                        const Metadata& metadata = {});

struct LoadOptions {
  /// Tensors of the file with these last parts of a name, and unknown to the model, are skipped: GPT-2's files contain
  /// its causal masks, those of FP8 training its scales. "attn.bias" is `h.0.attn.bias`, not `h.0.c_attn.bias`.
  std::vector<std::string> skipped_suffixes{"attn.bias", "attn.masked_bias", "fp8_amax", "fp8_scale", "fp8_steps"};
  /// Every tensor of the model must be in the file, and every tensor of the file in the model. If not, matching ones
  /// are loaded and the result names the others.
  bool is_strict = true;
  /// Prefix of every name in the file; tensors without it are skipped. "model.": the model of a checkpoint.
  std::string prefix = {};
};

struct LoadedWeights {
  Metadata metadata;
  std::vector<std::string> missing;  ///< tensors of the model that the file lacks; they keep their values
  std::vector<std::string> unused;   ///< tensors of the file that the model lacks, without skipped ones
};

/// Reads weights of save_weights, save_weight_folder or another program: `path` is a file, an index or a folder.
/// Names may begin with `transformer.`, or be those of public files (PublicNames); a tensor
/// under two names must have one value. Floating types are converted; a file of ours that is loaded and saved again
/// (with its metadata) has the same bytes. Everything is checked before the first value changes. Throws FileError
/// (unreadable, not safetensors), ValueError (names that do not match, all of them listed up to eight; state of FP8
/// with a number that it cannot have: check_state_numbers), ShapeError, DTypeError (naming the tensor and both sides).
/// A disk that fails while values are read leaves some of them loaded. On a dry device the file is only checked.
/// Sharded parameters get their part of the file's whole ones.
LoadedWeights load_weights(Module& module, const std::string& path, const LoadOptions& options = {});

/// The memory use of save_weights(), without a file. For dry runs. Throws as ParameterStore::fetch; OutOfMemory.
void visit_save_weights(const Module& module);

/// The memory use of load_weights(), without a file: parameters that are away are fetched one after the other, and
/// count as written. For dry runs. Throws as ParameterStore::fetch does.
void visit_weights(const Module& module);

/// Identifies files of weights without reading them whole: a sum, in hexadecimal, over the names, dtypes and shapes of
/// all tensors and up to 4 KiB from either end of each. Throws FileError.
std::string weights_sum(const std::string& path);

}  // namespace thimble::nn
