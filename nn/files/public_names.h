#pragma once
// Names of a module's tensors in public files, if they differ from the module's own.

#include <string>
#include <vector>

namespace thimble::nn {

/// A module with this base reads such files with nn::load_weights (nn/files/weights.h).
class PublicNames {
 public:
  /// Other names of the tensor that is `name` in the module. Each is a list of tensors of the file, concatenated along
  /// the first axis: one tensor, or several (queries, keys and values).
  virtual std::vector<std::vector<std::string>> names_in_files(const std::string& name) const = 0;
  /// Last dotted parts of names of tensors that files hold for other purposes: they are skipped.
  virtual std::vector<std::string> passed_over() const { return {}; }

 protected:
  ~PublicNames() = default;
};

}  // namespace thimble::nn
