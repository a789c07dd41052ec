#pragma once
// Messages of refusals.

#include <string>

namespace refusal_test {

/// The message of the Error that `f` throws; empty if it throws none.
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
