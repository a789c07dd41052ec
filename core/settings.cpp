#include <thimble/core/settings.h>

#include <charconv>
#include <cstdlib>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/threads/cpu_quota.h>

namespace thimble {
namespace {

constexpr const char* variable = "OMP_NUM_THREADS";

int initial_threads() noexcept {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return available_processors();
  return read_thread_count(text).value_or(Settings::unreadable_threads);
}

}  // namespace

std::optional<int> read_thread_count(std::string_view text) {
  std::optional<int> first;
  for (std::string_view part : split(text, ',')) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    int count = 0;
    const char* const end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, count);
    if (error != std::errc() || stop != end || count < 1 || count > Settings::max_threads) return std::nullopt;
    if (!first) first = count;
  }
  return first;
}

void check_environment() {
  if (settings().threads != Settings::unreadable_threads) return;
  const char* const text = std::getenv(variable);
  throw ValueError(std::string(variable) + ": expected a number of threads from 1 to " +
                   std::to_string(Settings::max_threads) + ", or a list of them, got " +
                   quote(text != nullptr ? text : ""));
}

Settings& settings() noexcept {
  static Settings instance{initial_threads(), static_cast<int>(kernels::best_isa()), Settings::automatic_unit,
                           Settings::automatic_unit};
  return instance;
}

}  // namespace thimble
