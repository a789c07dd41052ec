#include <thimble/core/launch/tf32.h>

namespace thimble {
namespace tf32_detail {

constinit thread_local bool is_allowed = false;

}  // namespace tf32_detail

bool allows_tf32() noexcept { return tf32_detail::is_allowed; }

Tf32Scope::Tf32Scope(bool is_allowed) noexcept : before_(tf32_detail::is_allowed) {
  tf32_detail::is_allowed = is_allowed;
}

Tf32Scope::~Tf32Scope() { tf32_detail::is_allowed = before_; }

}  // namespace thimble
