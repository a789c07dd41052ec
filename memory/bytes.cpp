#include <thimble/memory/bytes.h>

#include <cstdio>

namespace thimble::memory {

std::string human_bytes(std::size_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // A value that would print as 1024.00 moves to the next unit.
  while (value >= 1023.995 && unit + 1 < sizeof units / sizeof *units) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, units[unit]);
  return text;
}

std::string exact_bytes(std::size_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  return human_bytes(bytes) + " (" + std::to_string(bytes) + " B)";
}

}  // namespace thimble::memory
