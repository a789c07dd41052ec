#pragma once
// The context that backward runs operators in.

#include <thimble/core/tensor/context.h>

namespace thimble::tape_detail {

/// Suspends recording, and restores path and flag at its end.
class BackwardScope {
 public:
  explicit BackwardScope(bool is_recomputing) : before_(context()) {
    context().tape = nullptr;
    context().is_recomputing = is_recomputing;
  }
  ~BackwardScope() {
    context().tape = before_.tape;
    context().path = before_.path;
    context().is_recomputing = before_.is_recomputing;
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  ThreadContext before_;
};

}  // namespace thimble::tape_detail
