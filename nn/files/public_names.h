#pragma once
// What public files call a module's tensors, where that differs from the module's own names.

#include <string>
#include <vector>

namespace thimble::nn {

/// A module that is one reads such files with nn::load_weights (nn/files/weights.h).
class PublicNames {
 public:
  /// Other names of the tensor that is `name` in the module. Each is a list of tensors of the file that lie one behind
  /// the other in it, along its first axis: of one tensor, or of several (queries, keys and values).
  virtual std::vector<std::vector<std::string>> names_in_files(const std::string& name) const = 0;
  /// Last dotted parts of names of tensors that files hold for other purposes: they are passed over.
  virtual std::vector<std::string> passed_over() const { return {}; }

 protected:
  ~PublicNames() = default;
};

}  // namespace thimble::nn
