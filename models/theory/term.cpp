#include <thimble/models/theory/term.h>

#include <thimble/core/error.h>

namespace thimble::models::theory {

std::int64_t bytes_of(const std::vector<Term>& terms, Category category, std::int64_t batch) {
  std::int64_t bytes = 0;
  for (const Term& term : terms) bytes += term.category == category ? term.bytes(batch) : 0;
  return bytes;
}

ModelState state_of(const char* model, std::int64_t elements, std::int64_t moments, DType dtype,
                    std::int64_t norm_channels, std::int64_t norms) {
  if (moments < 0) {
    throw ValueError(std::string(model) + ": " + std::to_string(moments) + " moments of the optimizer; at least 0");
  }
  const auto statistic = static_cast<std::int64_t>(size_of(statistic_of(dtype)));
  ModelState state;
  state.parameter_elements = elements;
  state.parameters = elements * static_cast<std::int64_t>(size_of(dtype));
  state.gradients = state.parameters;
  state.buffers = 2 * norm_channels * statistic + norms * static_cast<std::int64_t>(size_of(DType::i64));
  state.optimizer = moments * elements * statistic;
  return state;
}

}  // namespace thimble::models::theory
