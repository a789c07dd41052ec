#pragma once
// Tensors of a module that are shards of whole tensors in files (nn/parallel/shards.h). So a sharded model writes the
// file of the whole model, and any number of shards can read it.
//
//   module, shard 1 of 2                  file
//   h.0.attn.c_attn.1.weight  (C, 3C/2)   h.0.attn.c_attn.weight  (C, 3C)
//   ... .1.weight.first_moment            ... .weight.first_moment
//
// Optimizer state with an element for each of the parameter's is sharded like its parameter.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/threads/parallel.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/layers/init.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// A parameter that is a shard of a file's parameter.
struct CutParameter {
  std::string whole;  ///< the file's name
  init::ShardOf shard;
};

/// A tensor of a file, and its local shard.
struct FileTensor {
  NamedTensor whole;  ///< as in the file; without bytes if `here` is a shard
  Tensor here;
  std::optional<init::ShardOf> shard = {};  ///< nullopt if `here` is the whole or a range of it
  std::int64_t first = 0;                   ///< element of the shard that `here` begins with
};

/// The sharded parameters of a module.
class CutParameters {
 public:
  CutParameters() = default;
  /// Throws ValueError for a shard whose module is not named by its number.
  explicit CutParameters(const Module& module);

  bool empty() const noexcept { return by_name_.empty(); }
  auto begin() const noexcept { return by_name_.begin(); }  ///< of pairs of a name in the module and a CutParameter
  auto end() const noexcept { return by_name_.end(); }
  /// The shard with this name in the module, or null if the parameter is whole.
  const CutParameter* find(std::string_view name) const;
  /// A parameter's tensor in a file, where its name begins with `prefix`.
  FileTensor of_parameter(const NamedTensor& parameter, const std::string& prefix = {}) const;
  /// A state tensor in a checkpoint, named "optimizer.<parameter>.<kind>". Throws ShapeError if the state of a shard
  /// does not have an element for each of the shard's.
  FileTensor of_state(const Named& state) const;

 private:
  std::map<std::string, CutParameter, std::less<>> by_name_;
};

/// A tensor of this shape and dtype without bytes.
Tensor outline(const Shape& shape, DType dtype);

/// The file's whole tensors, each once.
std::vector<NamedTensor> wholes_of(const std::vector<FileTensor>& tensors);

/// Assembles shards in any order. A whole tensor takes memory from its first shard until its last, counted as
/// `communication`, on a dry device as well. If the shards of each tensor come in a row, only one whole is in memory.
class Assembly {
 public:
  /// `append` gets each tensor once it is complete, whole ones directly, and must outlive the assembly.
  explicit Assembly(FunctionRef<void(const NamedTensor&)> append) : append_(append) {}
  /// `t.here` must be dense. Throws OutOfMemory, and rethrows errors of `append`.
  void put(const FileTensor& t);

 private:
  struct Open {
    Tensor tensor;
    std::int64_t missing;  // elements
  };
  FunctionRef<void(const NamedTensor&)> append_;
  std::map<std::string, Open> open_;
};

/// read_file_tensor() of the local shard of `entry`, which has passed check_file_tensor(). Reads only the pieces of the
/// file that overlap the shard, through the staging.
void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const FileTensor& target,
                      FileStaging& staging);

}  // namespace thimble::nn
