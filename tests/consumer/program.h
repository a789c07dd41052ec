// What every consumer does with the library, however it got it. Included after the library's own header.
#pragma once

#include <cstdio>

inline int consumer_main() {
  std::printf("thimble %s, %d threads\n", THIMBLE_VERSION, thimble::thread_count());
  return thimble::Shape{2, 3}.elements() == 6 ? 0 : 1;
}
