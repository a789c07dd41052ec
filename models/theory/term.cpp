#include <thimble/models/theory/term.h>

namespace thimble::models::theory {

std::int64_t bytes_of(const std::vector<Term>& terms, Category category, std::int64_t batch) {
  std::int64_t bytes = 0;
  for (const Term& term : terms) bytes += term.category == category ? term.bytes(batch) : 0;
  return bytes;
}

}  // namespace thimble::models::theory
