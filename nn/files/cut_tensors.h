#pragma once
// Tensors of a module that are parts of whole tensors in files (nn/parallel/shards.h): so the file of a model in parts
// is that of the whole model, and can be read in any number of parts.
//
//   module, part 1 of 2                   file
//   h.0.attn.c_attn.1.weight  (C, 3C/2)   h.0.attn.c_attn.weight  (C, 3C)
//   ... .1.weight.first_moment            ... .weight.first_moment
//
// Optimizer state with an element for each of the parameter's has the same place in the whole as its parameter.

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

/// A parameter that is a part of a whole one in files.
struct CutParameter {
  std::string whole;  ///< the whole's name
  init::PartOf part;
};

/// A tensor of a file, and its local part.
struct FileTensor {
  NamedTensor whole;  ///< as the file has it; of a part a name, a shape and a dtype, without bytes
  Tensor here;
  std::optional<init::PartOf> part = {};  ///< none: `here` is all of it, or elements of all of it
  std::int64_t first = 0;                 ///< element of the part that `here` begins with
};

/// The parameters of a module that are parts.
class CutParameters {
 public:
  CutParameters() = default;
  /// Throws ValueError for a part whose module is not named by its number.
  explicit CutParameters(const Module& module);

  bool empty() const noexcept { return by_name_.empty(); }
  auto begin() const noexcept { return by_name_.begin(); }  ///< of pairs of a name in the module and a CutParameter
  auto end() const noexcept { return by_name_.end(); }
  /// That of a parameter, by its name in the module; null: it is whole.
  const CutParameter* find(std::string_view name) const;
  /// A parameter's tensor in a file, where its name begins with `prefix`.
  FileTensor of_parameter(const NamedTensor& parameter, const std::string& prefix = {}) const;
  /// The tensor in a checkpoint of a state tensor, "optimizer", its parameter and its kind with dots between them. For
  /// a part of a parameter it has an element for each element of the part; otherwise throws ShapeError: it is in no
  /// whole.
  FileTensor of_state(const Named& state) const;

 private:
  std::map<std::string, CutParameter, std::less<>> by_name_;
};

/// Only shape and dtype: a tensor of this shape without bytes.
Tensor outline(const Shape& shape, DType dtype);

/// The tensors of a file that these are, or are parts of, each once.
std::vector<NamedTensor> wholes_of(const std::vector<FileTensor>& tensors);

/// Assembles parts. A whole tensor takes room from its first part until its last; so order is free, and if parts of a
/// tensor come one after the other, only one whole is here. That room counts as `communication`, on a dry device as
/// well.
class Assembly {
 public:
  /// `append` gets each whole tensor, once complete, and must live as long. Whole tensors go there directly.
  explicit Assembly(FunctionRef<void(const NamedTensor&)> append) : append_(append) {}
  /// `t.here` is dense. Throws OutOfMemory, and what `append` throws.
  void put(const FileTensor& t);

 private:
  struct Open {
    Tensor tensor;
    std::int64_t missing;  // elements
  };
  FunctionRef<void(const NamedTensor&)> append_;
  std::map<std::string, Open> open_;
};

/// read_file_tensor() of the local part of `entry`. A part is read from the whole, which has passed
/// check_file_tensor(), through the staging, in those pieces of the file that overlap it.
void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const FileTensor& target,
                      FileStaging& staging);

}  // namespace thimble::nn
