// The pages of a GPU (cuda/runtime/backing.cpp) over the driver of tests/emulated: contents after every kind of move,
// refusals of every call, no leaks, and the device's time.

#include <cstdint>
#include <cstring>
#include <memory>

#include "emulated/driver.h"
#include "support/catch.h"

using namespace thimble;
using emulated::driver_books;

namespace driver_backing_test {

constexpr std::size_t granule = std::size_t{2} << 20, range = 8 * granule;

/// Granules in which each word encodes its original place.
struct Pages {
  std::unique_ptr<memory::Backing> backing = emulated::make_driver_backing();
  std::byte* base = backing->reserve(range);

  explicit Pages(std::size_t committed = 0) {
    driver_books().bad_copies = 0;
    REQUIRE(base != nullptr);
    if (committed > 0) REQUIRE(backing->commit(0, committed * granule) == std::errc{});
    for (std::size_t i = 0; i < committed * granule / sizeof(std::uint32_t); ++i) words()[i] = word(i);
  }
  ~Pages() { driver_books().fail_at = 0; }
  std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(base); }
  static std::uint32_t word(std::size_t i) { return static_cast<std::uint32_t>(i * 2654435761u); }
  /// Whether the `bytes` at offset `at` were written at offset `from`.
  bool holds(std::size_t at, std::size_t from, std::size_t bytes) const {
    for (std::size_t i = 0; i < bytes / sizeof(std::uint32_t); ++i) {
      if (words()[at / sizeof(std::uint32_t) + i] != word(from / sizeof(std::uint32_t) + i)) return false;
    }
    return true;
  }
};

bool is_empty() {
  const emulated::DriverBooks& books = driver_books();
  return books.handles == 0 && books.mapped == 0 && books.ranges == 0 && books.events == 0;
}

}  // namespace driver_backing_test

using namespace driver_backing_test;

TEST_CASE("driver backing: a move keeps what it moves, near and far", "[cuda][driver]") {
  for (const std::size_t distance : {std::size_t{512}, granule / 2, granule, granule + 512, 4 * granule}) {
    for (const bool is_upwards : {false, true}) {
      INFO(distance << (is_upwards ? " upwards" : " downwards"));
      Pages pages(8);
      const std::size_t bytes = 3 * granule + 4096, low = 4096, high = low + distance;
      const std::size_t from = is_upwards ? low : high, to = is_upwards ? high : low;
      pages.backing->move(from, to, bytes, nullptr);
      CHECK(pages.holds(to, from, bytes));
      CHECK(driver_books().bad_copies == 0);
      CHECK(driver_books().handles == (distance < granule ? 9 : 8));  // with the bounce
    }
  }
  CHECK(is_empty());
}

TEST_CASE("driver backing: a move or a fill that fails is said by the next launch", "[cuda][driver]") {
  Pages pages(2);
  driver_books().reported_later = 0;
  pages.backing->fill(0, granule, std::byte{1}, nullptr);
  CHECK(driver_books().reported_later == 0);
  pages.backing->fill(4 * granule, granule, std::byte{1}, nullptr);  // no pages there
  CHECK(driver_books().reported_later == 1);
  pages.backing->move(0, 5 * granule, granule, nullptr);
  CHECK(driver_books().reported_later == 2);
}

TEST_CASE("driver backing: a refused bounce is given back, and asked for again", "[cuda][driver]") {
  for (const int call : {1, 2, 3}) {  // cuMemCreate, cuMemMap, cuMemSetAccess
    INFO("call " << call);
    Pages pages(4);
    driver_books().fail_at = call;
    pages.backing->move(granule / 2, 0, granule, nullptr);  // in steps of half a granule
    CHECK(driver_books().fail_at == 0);
    CHECK(pages.holds(0, granule / 2, granule));
    CHECK(driver_books().handles == 4);
    CHECK(driver_books().mapped == 4);
    pages.backing->move(2 * granule + 512, 2 * granule, granule, nullptr);
    CHECK(pages.holds(2 * granule, 2 * granule + 512, granule));
    CHECK(driver_books().handles == 5);
    CHECK(driver_books().bad_copies == 0);
  }
  CHECK(is_empty());
}

TEST_CASE("driver backing: a refused commit changes nothing", "[cuda][driver]") {
  int refused = 0;
  for (int call = 1;; ++call) {
    INFO("call " << call);
    Pages pages(2);
    driver_books().fail_at = call;
    const std::errc error = pages.backing->commit(3 * granule, 3 * granule);
    if (driver_books().fail_at > 0) {
      CHECK(error == std::errc{});
      break;
    }
    ++refused;
    CHECK(error != std::errc{});
    CHECK(pages.backing->refusal_text(error).find("cuMem") == 0);
    CHECK(driver_books().handles == 2);
    CHECK(driver_books().mapped == 2);
    CHECK(pages.backing->commit(3 * granule, 3 * granule) == std::errc{});
    std::memset(pages.base + 3 * granule, 1, 3 * granule);
    pages.backing->decommit(4 * granule, granule);
    CHECK(driver_books().handles == 4);
    CHECK(pages.holds(0, 0, 2 * granule));
  }
  CHECK(refused == 7);  // two calls per granule, and one for their access
  CHECK(is_empty());
}

TEST_CASE("driver backing: a refused remap changes nothing", "[cuda][driver]") {
  int refused = 0;
  for (int call = 1;; ++call) {
    INFO("call " << call);
    Pages pages(5);
    driver_books().fail_at = call;
    const bool is_moved = pages.backing->remap(2 * granule, granule, 3 * granule);
    const bool is_asked = driver_books().fail_at == 0;
    driver_books().fail_at = 0;
    CHECK(is_moved == !is_asked);
    CHECK(driver_books().handles == 5);
    CHECK(driver_books().mapped == 5);
    if (is_moved) {
      CHECK(pages.holds(granule, 2 * granule, 3 * granule));
      CHECK(pages.holds(4 * granule, granule, granule));
      break;
    }
    ++refused;
    CHECK(pages.holds(0, 0, 5 * granule));
  }
  CHECK(refused == 5);  // a call for each of the four granules, and one for their access
  CHECK(is_empty());
}

TEST_CASE("driver backing: the device's time of moves is read when it is known", "[cuda][driver]") {
  {
    Pages pages(4);
    memory::Backing& backing = *pages.backing;
    backing.move(2 * granule, 0, granule, nullptr);  // outside a compaction
    CHECK(driver_books().events == 0);
    for (int i = 1; i <= 2; ++i) {
      driver_books().is_behind = true;
      backing.begin_moves();
      backing.move(2 * granule, 0, granule, nullptr);
      backing.move(3 * granule, granule, granule, nullptr);
      backing.end_moves();
      memory::MoveTime time = backing.move_time();
      CHECK(time.unknown_moves == 1);
      CHECK(time.ms == i - 1);
      CHECK_FALSE(driver_books().has_pending_error);  // the next launch would throw it
      driver_books().is_behind = false;
      time = backing.move_time();
      CHECK(time.unknown_moves == 0);
      CHECK(time.ms == i);
      CHECK(driver_books().events == 2);  // reuses the pair
    }
    backing.begin_moves();
    backing.move(3 * granule, 0, granule, nullptr);
    CHECK(backing.remap(2 * granule, granule, granule));  // done by the host, between the copies
    backing.move(3 * granule, 0, granule, nullptr);
    backing.end_moves();
    CHECK(backing.move_time().ms == 4);
  }
  CHECK(is_empty());
}
