#pragma once
// Names of a module's tensors in public files, if they differ from the module's names.

#include <string>
#include <vector>

namespace thimble::nn {

/// nn::load_weights (nn/files/weights.h) reads public files into modules with this base.
class PublicNames {
 public:
  /// Other names of the module's tensor `name`. Each is a list of tensors of the file, concatenated along the first
  /// axis: one tensor, or several (queries, keys and values).
  virtual std::vector<std::vector<std::string>> names_in_files(const std::string& name) const = 0;
  /// Last dotted parts of names. load_weights skips these tensors.
  virtual std::vector<std::string> passed_over() const { return {}; }

 protected:
  ~PublicNames() = default;
};

}  // namespace thimble::nn
