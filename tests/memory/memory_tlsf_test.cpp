#include <thimble/memory/arena/tlsf.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "support/catch.h"

namespace {

using thimble::memory::Tlsf;

constexpr std::size_t tlsf_unit = 64;

#if defined(__x86_64__) || defined(__aarch64__)
static_assert(sizeof(Tlsf::Span) == 64, "one cache line");
#endif

/// A slow, obvious model of the range: live spans by offset.
struct TlsfModel {
  std::map<std::size_t, std::size_t> live;  // offset -> size

  bool is_disjoint(std::size_t offset, std::size_t size) const {
    const auto after = live.lower_bound(offset);
    if (after != live.end() && after->first < offset + size) return false;
    return after == live.begin() || std::prev(after)->first + std::prev(after)->second <= offset;
  }
  std::size_t height() const { return live.empty() ? 0 : live.rbegin()->first + live.rbegin()->second; }

  /// The largest request that fits at `alignment` if the range ends at `limit`.
  std::size_t largest_fit(std::size_t alignment, std::size_t limit) const {
    std::size_t at = 0, largest = 0;
    const auto consider = [&](std::size_t end) {
      const std::size_t first = (at + alignment - 1) / alignment * alignment;
      if (end > first) largest = std::max(largest, end - first);
    };
    for (const auto& [offset, size] : live) {
      consider(offset);
      at = offset + size;
    }
    consider(limit);
    return largest;
  }
};

/// Checks that spans cover [0, height) without gap or overlap, no two free spans touch, and live spans match the model.
bool tlsf_agrees(const Tlsf& tlsf, const TlsfModel& model) {
  std::size_t at = 0, live_count = 0;
  bool was_free = false;
  for (const Tlsf::Span* span = tlsf.first(); span != nullptr; span = span->next) {
    if (span->offset != at || span->size == 0 || (was_free && span->is_free)) return false;
    if (!span->is_free) {
      const auto found = model.live.find(span->offset);
      if (found == model.live.end() || found->second != span->size) return false;
      ++live_count;
    }
    was_free = span->is_free;
    at = span->end();
  }
  return !was_free && at == tlsf.height() && at == model.height() && live_count == model.live.size();
}

struct TlsfRun {
  std::size_t errors = 0, refusals = 0, refusals_that_fit = 0, disagreements = 0;
  std::vector<std::size_t> offsets;
};

TlsfRun random_tlsf_run(std::uint32_t seed, int operations, std::size_t limit, std::size_t largest_request) {
  Tlsf tlsf(tlsf_unit, limit);
  TlsfModel model;
  std::vector<Tlsf::Span*> live;
  std::mt19937 random(seed);
  TlsfRun run;
  for (int i = 0; i < operations; ++i) {
    // The target population varies, so that the range fills, fragments and drains.
    const std::size_t target = 50 + (static_cast<std::size_t>(i) / 20000 % 4) * 150;
    if (live.size() < target ? random() % 8 != 0 : random() % 8 == 0) {
      const std::size_t bytes = 1 + static_cast<std::size_t>(random()) % (random() % 4 == 0 ? largest_request : 2000);
      const std::size_t alignment = random() % 16 == 0 ? tlsf_unit << random() % 8 : tlsf_unit;
      const Tlsf::Place place = tlsf.find(bytes, alignment);
      if (!place.is_found()) {
        ++run.refusals;
        if (model.largest_fit(alignment, limit) >= (bytes + tlsf_unit - 1) / tlsf_unit * tlsf_unit) {
          ++run.refusals_that_fit;
        }
        continue;
      }
      const bool is_right = place.offset % alignment == 0 && place.size >= bytes && place.size < bytes + tlsf_unit &&
                            place.end() <= limit && model.is_disjoint(place.offset, place.size);
      if (!is_right) ++run.errors;
      if (!tlsf.ready()) ++run.errors;
      // take_ready finds this place, too, or nothing if the place ends above its limit.
      Tlsf::Span* span = nullptr;
      if (alignment == tlsf_unit && i % 2 == 0) {
        if (tlsf.take_ready(bytes, place.end() - 1) != nullptr) ++run.errors;
        span = tlsf.take_ready(bytes, limit);
        if (span == nullptr) ++run.errors;
      }
      live.push_back(span != nullptr ? span : tlsf.take(place));
      if (live.back()->offset != place.offset || live.back()->size != place.size) ++run.errors;
      model.live[place.offset] = place.size;
      run.offsets.push_back(place.offset);
    } else if (!live.empty()) {
      const std::size_t which = random() % live.size();
      model.live.erase(live[which]->offset);
      tlsf.free(live[which]);
      live[which] = live.back();
      live.pop_back();
    }
    if (i % 1000 == 0 && !tlsf_agrees(tlsf, model)) ++run.disagreements;
  }
  while (!live.empty()) {
    model.live.erase(live.back()->offset);
    tlsf.free(live.back());
    live.pop_back();
  }
  if (!tlsf_agrees(tlsf, model) || tlsf.height() != 0 || tlsf.largest_free_bytes() != 0) ++run.disagreements;
  return run;
}

Tlsf::Span* tlsf_allocate(Tlsf& tlsf, std::size_t bytes, std::size_t alignment = tlsf_unit) {
  const Tlsf::Place place = tlsf.find(bytes, alignment);
  return place.is_found() && tlsf.ready() ? tlsf.take(place) : nullptr;
}

/// The digest after eight blocks of 1,024 bytes, some of them freed in this order.
std::uint64_t digest_after_freeing(const std::vector<std::size_t>& order) {
  Tlsf tlsf(64, std::size_t{1} << 30);
  std::vector<Tlsf::Span*> spans;
  for (int i = 0; i < 8; ++i) spans.push_back(tlsf_allocate(tlsf, 1024));
  for (const std::size_t i : order) tlsf.free(spans[i]);
  return tlsf.digest();
}

}  // namespace

TEST_CASE("memory tlsf: random requests against a model", "[memory][tlsf]") {
  struct Row {
    std::size_t limit, largest_request;
    bool refuses;
  };
  for (const Row row : {Row{std::size_t{1} << 40, 100000, false}, Row{std::size_t{4} << 20, 200000, true},
                        Row{std::size_t{256} << 10, 20000, true}}) {
    for (const std::uint32_t seed : {1u, 2u, 3u}) {
      const TlsfRun run = random_tlsf_run(seed, 120000, row.limit, row.largest_request);
      INFO("limit " << row.limit << ", seed " << seed << ", refusals " << run.refusals);
      CHECK(run.errors == 0);
      CHECK(run.disagreements == 0);
      CHECK((run.refusals > 0) == row.refuses);
      CHECK(run.refusals_that_fit == 0);  // a request is refused only when no hole fits it
    }
  }
}

TEST_CASE("memory tlsf: the same requests give the same offsets", "[memory][tlsf]") {
  const TlsfRun a = random_tlsf_run(7, 50000, std::size_t{4} << 20, 100000);
  const TlsfRun b = random_tlsf_run(7, 50000, std::size_t{4} << 20, 100000);
  CHECK(a.offsets.size() > 20000);
  CHECK(a.offsets == b.offsets);
}

TEST_CASE("memory tlsf: states share a digest where they answer every request alike", "[memory][tlsf]") {
  CHECK(digest_after_freeing({}) == digest_after_freeing({}));
  CHECK(digest_after_freeing({1, 3}) == digest_after_freeing({3, 1}));  // bins are sorted by address
  CHECK(digest_after_freeing({6, 7}) == digest_after_freeing({7, 6}));  // both merge into the top
  std::map<std::uint64_t, int> seen;
  for (std::size_t subset = 0; subset < 64; ++subset) {  // subsets of blocks 0 to 5, which do not touch the top
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < 6; ++i) {
      if (subset >> i & 1) order.push_back(i);
    }
    ++seen[digest_after_freeing(order)];
  }
  CHECK(seen.size() == 64);

  Tlsf tlsf(64, std::size_t{1} << 30);
  const std::uint64_t empty = tlsf.digest();
  Tlsf::Span* const span = tlsf_allocate(tlsf, 1024);
  const std::uint64_t small = tlsf.digest();
  CHECK(small != empty);
  tlsf.free(span);
  CHECK(tlsf.digest() == empty);
  tlsf_allocate(tlsf, 1088);  // another size at the same offset
  CHECK(tlsf.digest() != small);
}

TEST_CASE("memory tlsf: holes are filled from below before the top is extended", "[memory][tlsf]") {
  Tlsf tlsf(64, std::size_t{1} << 30);
  std::vector<Tlsf::Span*> spans;
  for (int i = 0; i < 8; ++i) spans.push_back(tlsf_allocate(tlsf, 1024));
  for (const int i : {5, 1, 3}) tlsf.free(spans[static_cast<std::size_t>(i)]);
  CHECK(tlsf_allocate(tlsf, 1000)->offset == 1 * 1024);
  CHECK(tlsf_allocate(tlsf, 1024)->offset == 3 * 1024);
  CHECK(tlsf_allocate(tlsf, 64)->offset == 5 * 1024);
  CHECK(tlsf_allocate(tlsf, 960)->offset == 5 * 1024 + 64);
  CHECK(tlsf.height() == 8 * 1024);
  CHECK(tlsf_allocate(tlsf, 64)->offset == 8 * 1024);
}

TEST_CASE("memory tlsf: the top sinks past free neighbours and is extended from there", "[memory][tlsf]") {
  Tlsf tlsf(64, 4096);
  Tlsf::Span* const a = tlsf_allocate(tlsf, 1024);
  Tlsf::Span* const b = tlsf_allocate(tlsf, 1024);
  Tlsf::Span* const c = tlsf_allocate(tlsf, 1024);
  CHECK(tlsf_allocate(tlsf, 1025) == nullptr);
  tlsf.free(b);
  CHECK(tlsf.height() == 3072);
  CHECK(tlsf.largest_free_bytes() == 1024);
  tlsf.free(c);
  CHECK(tlsf.height() == 1024);
  CHECK(tlsf.largest_free_bytes() == 0);
  Tlsf::Span* const d = tlsf_allocate(tlsf, 3072);
  REQUIRE(d != nullptr);
  CHECK(d->offset == 1024);
  tlsf.free(a);
  tlsf.free(d);
  CHECK(tlsf.first() == nullptr);
}

TEST_CASE("memory tlsf: alignment leaves a hole that serves later requests", "[memory][tlsf]") {
  Tlsf tlsf(64, std::size_t{1} << 30);
  CHECK(tlsf_allocate(tlsf, 64)->offset == 0);
  CHECK(tlsf_allocate(tlsf, 64, 4096)->offset == 4096);
  CHECK(tlsf_allocate(tlsf, 4096 - 64)->offset == 64);
  CHECK(tlsf_allocate(tlsf, 64)->offset == 4096 + 64);
}

TEST_CASE("memory tlsf: the largest free span, where several share its bin", "[memory][tlsf]") {
  // Sizes of 64 and 65 units share a bin, which sorts its spans by address.
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{64, 65, 64}, std::vector<std::size_t>{65, 64, 64},
        std::vector<std::size_t>{64, 64, 65}}) {
    Tlsf tlsf(64, std::size_t{1} << 30);
    std::vector<Tlsf::Span*> spans;
    for (const std::size_t units : sizes) {
      spans.push_back(tlsf_allocate(tlsf, units * 64));
      tlsf_allocate(tlsf, 64);  // between them
    }
    for (Tlsf::Span* const span : spans) tlsf.free(span);
    CHECK(tlsf.largest_free_bytes() == 65 * 64);
  }
}
