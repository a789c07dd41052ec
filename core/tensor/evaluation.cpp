#include <thimble/core/tensor/evaluation.h>

#include <utility>

namespace thimble {
namespace evaluation_detail {

constinit thread_local bool is_on = false;

}  // namespace evaluation_detail

bool is_evaluating() noexcept { return evaluation_detail::is_on; }

EvaluationScope::EvaluationScope(bool is_evaluating) noexcept
    : before_(std::exchange(evaluation_detail::is_on, is_evaluating)) {}

EvaluationScope::~EvaluationScope() { evaluation_detail::is_on = before_; }

}  // namespace thimble
