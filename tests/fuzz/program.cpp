// A fuzzing program: -DTARGET=npy builds the one for fuzz::npy.

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
