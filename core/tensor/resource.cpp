#include <thimble/core/tensor/resource.h>

namespace thimble::memory {

std::string_view to_string(Category category) noexcept {
  switch (category) {
    case Category::parameter:
      return "parameter";
    case Category::gradient:
      return "gradient";
    case Category::optimizer:
      return "optimizer";
    case Category::activation:
      return "activation";
    case Category::temporary:
      return "temporary";
    case Category::workspace:
      return "workspace";
    case Category::input:
      return "input";
    case Category::communication:
      return "communication";
  }
  return "unknown";
}

}  // namespace thimble::memory
