#pragma once
// Weights of a model in safetensors files, with the names and layouts of other programs.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {

/// Writes the parameters and buffers of a module under their dotted names, in their dtypes, convolutions as
/// (O, I, KH, KW). Sharded parameters are assembled, which takes memory (nn/files/cut_tensors.h). The file appears
/// whole or not at all. Throws as write_tensor_file; OutOfMemory.
void save_weights(const Module& module, const std::string& path, const Metadata& metadata = {});

/// Writes weights to a folder and makes the folder if needed: `model.safetensors` if all tensors fit into `most_bytes`,
/// otherwise files of at most `most_bytes` (more for a larger tensor) and an index. Removes an older index first and
/// writes the new one last. Throws as save_weights; FileError if the folder also has a `model.safetensors`, which
/// readers would prefer; ValueError for 0 bytes and for sharded parameters.
void save_weight_folder(const Module& module, const std::string& folder, std::uint64_t most_bytes,
                        const Metadata& metadata = {});

struct LoadOptions {
  /// Last dotted parts of names. Such tensors are skipped if the model lacks them: files of GPT-2 contain causal masks,
  /// files of FP8 training scales. "attn.bias" matches `h.0.attn.bias`, not `h.0.c_attn.bias`.
  std::vector<std::string> skipped_suffixes{"attn.bias", "attn.masked_bias", "fp8_amax", "fp8_scale", "fp8_steps"};
  /// Model and file must have the same tensors. Otherwise matching tensors are loaded, and the result names the others.
  bool is_strict = true;
  /// Prefix of every name in the file; tensors without it are skipped. "model." loads the model of a checkpoint.
  std::string prefix = {};
};

struct LoadedWeights {
  Metadata metadata;
  std::vector<std::string> missing;  ///< tensors of the model that the file lacks; they keep their values
  std::vector<std::string> unused;   ///< tensors of the file that the model lacks, except skipped ones
};

/// Reads weights of save_weights, save_weight_folder or another program: `path` is a file, an index or a folder.
/// Tensors may have public names (PublicNames) or the prefix `transformer.`; two names of one tensor must have equal
/// values. Floating types are converted. A file of save_weights that is loaded and saved again with its metadata keeps
/// its bytes. Everything is checked before the first value changes. Throws FileError (unreadable, not safetensors),
/// ValueError (names that do not match, the first five listed; state of FP8 out of range, check_state_numbers),
/// ShapeError, DTypeError (naming the tensor and both sides). A disk error while values are read leaves some of them
/// loaded. On a dry device the file is only checked. Sharded parameters get their shard of the file's tensor.
LoadedWeights load_weights(Module& module, const std::string& path, const LoadOptions& options = {});

/// For dry runs: the memory use of save_weights() without a file. Throws as ParameterStore::fetch; OutOfMemory.
void visit_save_weights(const Module& module);

/// For dry runs: the memory use of load_weights() without a file. Offloaded parameters are fetched one after the other
/// and count as written. Throws as ParameterStore::fetch does.
void visit_weights(const Module& module);

/// Identifies files of weights without reading them whole: a checksum, in hexadecimal, of names, dtypes, shapes and up
/// to 4 KiB from either end of each tensor. Throws FileError.
std::string weights_sum(const std::string& path);

}  // namespace thimble::nn
