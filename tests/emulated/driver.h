#pragma once
// cuda/runtime/backing.cpp over a driver emulated on the host: pages are ranges of a file in memory. Its calls are
// counted and can be refused, and it knows which granules have access.

#include <cstddef>
#include <memory>

#include <thimble/memory/arena/backing.h>

namespace thimble::emulated {

std::unique_ptr<memory::Backing> make_driver_backing();

struct DriverBooks {
  int fail_at = 0;                 ///< the cuMemCreate, cuMemMap or cuMemSetAccess this many calls from now fails, once
  bool is_behind = false;          ///< the device has not reached any event yet
  std::size_t handles = 0;         ///< live allocations
  std::size_t mapped = 0;          ///< granules with an allocation
  std::size_t ranges = 0;          ///< reserved
  std::size_t events = 0;          ///< live events
  std::size_t bad_copies = 0;      ///< copies and fills that touched a granule without access
  std::size_t reported_later = 0;  ///< failures that the next launch throws
  bool has_pending_error = false;  ///< cudaGetLastError would report an error to the next launch
};
DriverBooks& driver_books();

}  // namespace thimble::emulated
