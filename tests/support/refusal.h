#pragma once
// How code refuses.

#include <string>

namespace refusal_test {

/// The message of the Error that `f` ends with; empty: it ends without one.
template <class Error, class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace refusal_test
