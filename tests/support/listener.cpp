// The listener of the tests' program: obeys THIMBLE_ISA and THIMBLE_UNITS, prints the hardware in use, and ends the
// program on an assertion outside the main thread.

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include <thimble/core/kernels/cpu/base/units.h>

#include "catch.h"

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

class Listener : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    try {
      thimble::kernels::set_from_environment();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thimble_tests: %s\n", error.what());
      std::exit(2);
    }
    std::printf("On %s\n", thimble::kernels::describe_compute().c_str());
    std::fflush(stdout);
  }
  /// Catch counts assertions without a lock: other threads must leave checks to the main thread.
  void assertionStarting(const Catch::AssertionInfo& info) override {
    if (std::this_thread::get_id() == main_) return;
    std::fprintf(stderr, "%s:%zu: %s outside of the main thread\n", info.lineInfo.file, info.lineInfo.line,
                 std::string(info.macroName).c_str());
    std::abort();
  }

 private:
  const std::thread::id main_ = std::this_thread::get_id();
};

CATCH_REGISTER_LISTENER(Listener)

}  // namespace
