#pragma once
// Names of parameters in options: "wte", or "gpt.h0" for all that begin with "gpt.h0.".

#include <string>

namespace thimble::optim {

inline bool is_named(const std::string& parameter, const std::string& name) {
  return parameter == name || parameter.starts_with(name + ".");
}

}  // namespace thimble::optim
