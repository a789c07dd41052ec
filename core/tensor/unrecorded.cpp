#include <thimble/core/tensor/unrecorded.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>

namespace thimble {

void check_unrecorded(const char* function, const Tensor& t, const char* instead) {
  if (!t.requires_grad() && t.origin() != tape::Origin::recorded) return;
  if (context().tape == nullptr) return;
  const std::string_view path = path_name(context().path);
  throw AutogradError(std::string(function) + (path.empty() ? "" : " in ") + std::string(path) + ": " + describe(t) +
                      " needs a gradient, which would end here, as this is not recorded; use " + instead +
                      ", or detach() to end it on purpose");
}

}  // namespace thimble
