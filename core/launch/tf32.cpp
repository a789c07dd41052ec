#include <thimble/core/launch/tf32.h>

#include <thimble/core/tensor/context.h>

namespace thimble {

bool allows_tf32() noexcept { return context().allows_tf32; }

Tf32Scope::Tf32Scope(bool is_allowed) noexcept : before_(context().allows_tf32) { context().allows_tf32 = is_allowed; }

Tf32Scope::~Tf32Scope() { context().allows_tf32 = before_; }

}  // namespace thimble
