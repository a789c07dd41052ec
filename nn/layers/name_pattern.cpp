#include <thimble/nn/layers/name_pattern.h>

#include <cstddef>

namespace thimble::nn {

bool matches(std::string_view name, std::string_view pattern) noexcept {
  constexpr std::size_t none = std::string_view::npos;
  std::size_t n = 0, p = 0, star = none, tried = 0;  // tried: what the last star stands for ends there
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != none) {
      p = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_at_or_below(std::string_view name, std::string_view pattern) noexcept {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (matches(name.substr(0, dot), pattern)) return true;
  }
  return matches(name, pattern);
}

bool ends_as(std::string_view name, std::string_view pattern) noexcept {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (matches(name.substr(dot + 1), pattern)) return true;
  }
  return matches(name, pattern);
}

}  // namespace thimble::nn
