// Planning in bounded memory.

#include <thimble/memory/process/process.h>

#include <new>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/sanitizer.h"

using namespace thimble;

TEST_CASE("heap room: what the smallest limit leaves beside half of the code", "[heap_bound]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const std::vector<memory::HostLimit> limits = {{"large", 5000 * MiB}, {"small", 4000 * MiB}};
  const std::size_t room = memory::heap_room(limits);
  CHECK(room < 4000 * MiB);
  CHECK(room >= 4000 * MiB - process::file_mapped_bytes() - 2 * MiB);
  CHECK(memory::heap_room({{"tiny", 1}}) == 0);
  CHECK(memory::heap_room({}) == ~std::size_t{0});
}

#if !defined(THIMBLE_TEST_HAS_SANITIZER)
TEST_CASE("heap bound: more is refused while it lasts, not before and not after", "[heap_bound]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const auto grow = [] {
    try {
      return std::vector<char>(64 * MiB).size() == 64 * MiB;
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  CHECK(grow());
  {
    const memory::HeapBound bound(process::data_bytes() + 8 * MiB);
    CHECK_FALSE(grow());
    const memory::HeapBound inner(bound.bytes() + 512 * MiB);  // no way out of the outer one
    CHECK(inner.bytes() == bound.bytes());
    CHECK_FALSE(grow());
    CHECK(std::vector<char>(2 * MiB).size() == 2 * MiB);
  }
  CHECK(grow());
}
#endif
