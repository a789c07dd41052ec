#pragma once
// cuda/runtime/backing.cpp over a driver that is made of the host: pages are stretches of a file in memory. Its calls
// are counted and can be refused, and it knows which granule has access.

#include <cstddef>
#include <memory>

#include <thimble/memory/arena/backing.h>

namespace thimble::emulated {

std::unique_ptr<Backing> make_driver_backing();

struct DriverBooks {
  int fail_at = 0;                 ///< this many calls from now cuMemCreate, cuMemMap or cuMemSetAccess fails, once
  bool is_behind = false;          ///< the device has not reached any event yet
  std::size_t handles = 0;         ///< allocations that live
  std::size_t mapped = 0;          ///< granules that have one
  std::size_t ranges = 0;          ///< reserved
  std::size_t events = 0;          ///< that live
  std::size_t bad_copies = 0;      ///< copies and fills that touched a granule without access
  std::size_t reported_later = 0;  ///< failures that the next launch throws
  bool has_pending_error = false;  ///< what cudaGetLastError would report to the next launch
};
DriverBooks& driver_books();

}  // namespace thimble::emulated
