#include <thimble/core/settings.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/threads/cpu_quota.h>

namespace thimble {
namespace {

/// The first number in OMP_NUM_THREADS, or 0.
int asked_threads() noexcept {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  int count = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), count);
  return std::max(0, count);
}

}  // namespace

Settings& settings() noexcept {
  const auto threads = [] {
    const int asked = asked_threads();
    return asked > 0 ? asked : available_processors();
  };
  static Settings instance{threads(), static_cast<int>(kernels::best_isa()), Settings::automatic_unit,
                           Settings::automatic_unit};
  return instance;
}

}  // namespace thimble
