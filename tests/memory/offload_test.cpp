// The offload tier: tensors come back from disk bit by bit, and memory use does not depend on timing. Failures are in
// offload_error_test.cpp.

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/offload_data.h"

using namespace thimble;
using namespace offload_test;
using memory::offload;
using memory::Offloaded;

TEST_CASE("offload: what comes back is what went, in every dtype and size", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  // Around the alignment (4096) and the chunk (16384), and large sizes that both workers share.
  const std::vector<std::int64_t> sizes{0, 1, 7, 4095, 4096, 4097, 16383, 16384, 16385, 50001, 1500000};
  for (const int workers : {1, 3}) {
    const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(folder, 16384, workers));
    for (int d = 0; d < dtype_count; ++d) {
      const auto dtype = static_cast<DType>(d);
      INFO(to_string(dtype) << ", " << workers << " workers");
      std::vector<Bytes> expected;
      std::vector<Offloaded> away;
      for (const std::int64_t n : sizes) {
        if (n == 1500000 && dtype != DType::bf16) continue;
        const Tensor t = pattern({n}, dtype, static_cast<std::uint32_t>(n + d));
        expected.push_back(bytes_of(t));
        away.push_back(offload(t, tier));
      }
      for (Offloaded& a : away) a.complete();
      for (std::size_t i = away.size(); i-- > 0;) {  // in backward's order, reading one ahead
        if (i > 0) away[i - 1].prefetch();
        const Tensor back = away[i].fetch();
        CHECK(back.dtype() == dtype);
        CHECK(back.shape() == Shape{sizes[i]});
        CHECK(back.is_contiguous());
        CHECK((bytes_of(back) == expected[i]));
        CHECK_FALSE(away[i].defined());
      }
    }
    CHECK(tier->statistics().live_bytes == 0);
    CHECK(tier->statistics().bytes_read == tier->statistics().bytes_written);
  }
}

TEST_CASE("offload: any order of complete, prefetch, fetch and drop", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(folder, 4096));
  std::vector<Bytes> expected(40);
  std::vector<Offloaded> away(40);
  std::uint32_t random = 7;
  const auto next = [&](std::uint32_t bound) {
    random = random * 1664525u + 1013904223u;
    return (random >> 8) % bound;
  };
  for (int step = 0; step < 1000; ++step) {
    const std::size_t i = next(65536) % away.size();
    if (!away[i].defined()) {
      const Tensor t = pattern({1 + next(65536) % 20, 1 + next(65536) % 200}, DType::f32, random);
      expected[i] = bytes_of(t);
      away[i] = offload(t, tier);
      continue;
    }
    switch (next(65536) % 4) {
      case 0:
        away[i].complete();
        break;
      case 1:
        away[i].prefetch();
        break;
      case 2:
        if (bytes_of(away[i].fetch()) != expected[i]) FAIL("step " << step << ": other bytes came back");
        break;
      default:
        away[i].drop();
        CHECK_FALSE(away[i].defined());
    }
  }
  away.clear();
  CHECK(tier->statistics().live_bytes == 0);
}

TEST_CASE("offload: layouts, labels and what else a tensor carries", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope on(stack.top);
  const auto options = options_at(folder);
  const auto tier = std::make_shared<memory::FileTier>(cpu, options);
  const std::size_t own = memory::FileTier::workspace_bytes(options);
  CHECK(stack.ledger->bytes() == own);
  CHECK(stack.ledger->bytes(memory::Category::workspace, "offload") == own);

  const Tensor whole = pattern({20, 30, 4}, DType::f32, 1);
  struct Row {
    const char* what;
    Tensor t;
  };
  for (const Row& row :
       {Row{"dense", whole}, Row{"transposed", view::transpose(whole, 0, 2)},
        Row{"rows of it", view::slice(whole, 0, 3, 9)}, Row{"every third", view::slice(whole, 1, 1, 30, 3)},
        Row{"repeated", view::expand(view::slice(whole, 0, 5, 6), {7, 30, 4})}, Row{"a scalar", full({}, 2.5)}}) {
    INFO(row.what);
    Offloaded away = offload(row.t, tier);
    CHECK(away.like().shape() == row.t.shape());
    CHECK(away.bytes() == row.t.bytes());
    away.complete();
    const Tensor back = away.fetch();
    CHECK(back.shape() == row.t.shape());
    CHECK(back.is_contiguous());
    CHECK((bytes_of(back) == bytes_of(row.t)));
  }
  const std::size_t before = stack.ledger->bytes();
  {
    const PathScope path("block3");
    Tensor t = pattern({1000}, DType::f32, 2, memory::Category::optimizer);
    t.require_grad();
    Offloaded away = offload(std::move(t), tier);
    CHECK(stack.ledger->bytes() == before + 4000);
    away.complete();
    CHECK(stack.ledger->bytes() == before);
    const PathScope elsewhere("elsewhere");
    away.prefetch();
    CHECK(stack.ledger->bytes(memory::Category::optimizer, "block3") == 4000);
    const Tensor back = away.fetch();
    CHECK_FALSE(back.requires_grad());
    CHECK(back.is_unshared());
    CHECK(stack.ledger->bytes(memory::Category::optimizer, "block3") == 4000);
  }
  {
    Tensor t = pattern({1000}, DType::f32, 2, memory::Category::activation);
    t.storage()->hold_for_backward();
    const std::size_t temporary = stack.ledger->bytes(memory::Category::temporary);
    Offloaded away = offload(t, tier);
    t.storage()->release_from_backward();
    t = Tensor();
    away.complete();
    away.prefetch();
    const Tensor back = away.fetch();
    CHECK(stack.ledger->bytes(memory::Category::temporary) == temporary + 4000);  // no longer an activation
    CHECK_FALSE(back.storage()->is_held_for_backward());
  }
  Tensor scaled = pattern({6}, DType::i8, 3);
  scaled.set_scale(full({1}, 0.25));
  for (const bool is_read_back : {false, true}) {
    Offloaded away = offload(scaled, tier);
    if (is_read_back) away.complete();
    const Tensor back = away.fetch();
    REQUIRE(back.scale());
    CHECK(item(*back.scale()) == 0.25);
    CHECK(stack.ledger->bytes() == before + 4 + (is_read_back ? 2 * 6 : 6));
  }
}

TEST_CASE("offload: a dry device allocates the same and moves nothing", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  struct Outcome {
    memory::Stack stack;
    std::vector<std::uint64_t> tier;
    int refusals = 0;
  };
  const auto run = [&](memory::Device device) {
    memory::Options with_trace;
    with_trace.trace = true;
    Outcome outcome{memory::make_resource(device, with_trace), {}};
    const ResourceScope on(outcome.stack.top);
    auto options = options_at(device.is_dry ? "/nowhere" : folder);  // a dry tier ignores the folder
    options.capacity_bytes = 400000;
    const auto tier = std::make_shared<memory::FileTier>(device, options);
    for (int step = 0; step < 3; ++step) {
      std::vector<Offloaded> away;
      for (const std::int64_t n : {5000, 1, 70000, 0, 5000, 12000, 40000}) {
        const PathScope path("layer" + std::to_string(away.size()));
        const Tensor t = zeros({2, n}, DType::f16, device);
        try {
          away.push_back(offload(n == 12000 ? view::transpose(t) : t, tier));
        } catch (const FileError&) {
          ++outcome.refusals;
        }
        if (away.size() > 2) away[away.size() - 3].complete();
      }
      for (std::size_t i = away.size(); i-- > 0;) {
        if (i > 1 && step != 1) away[i - 2].prefetch();
        if (i == 2) {
          away[i].drop();
        } else {
          const Tensor back = away[i].fetch();
        }
      }
    }
    outcome.tier = counts(tier->statistics());
    return outcome;
  };
  const Outcome real = run(cpu), imagined = run(dry(cpu));
  CHECK(real.stack.trace->events().size() > 40);
  CHECK(*real.stack.trace == *imagined.stack.trace);
  const memory::Arena::Statistics measured = real.stack.arena->statistics(),
                                  predicted = imagined.stack.arena->statistics();
  CHECK(measured.peak_committed_bytes == predicted.peak_committed_bytes);
  CHECK(measured.peak_height_bytes == predicted.peak_height_bytes);
  CHECK(measured.allocation_count == predicted.allocation_count);
  CHECK(real.stack.ledger->max_allocated() == imagined.stack.ledger->max_allocated());
  CHECK(real.stack.ledger->bytes() == 0);
  CHECK(real.tier == imagined.tier);
  CHECK(real.refusals == 3);
  CHECK(imagined.refusals == 3);
  // Again: the events do not depend on the disk's speed.
  CHECK(*run(cpu).stack.trace == *real.stack.trace);
}

TEST_CASE("offload: the file stops growing, and stays without a name", "[memory][offload]") {
  if (disk_folder().empty()) return;
  const std::filesystem::path home = std::filesystem::path(disk_folder()) / "thimble-offload-test";
  std::filesystem::create_directory(home);
  {
    const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(home.string()));
    std::uint64_t committed = 0;
    for (int step = 0; step < 4; ++step) {
      std::vector<Offloaded> away;
      for (const std::int64_t n : {1, 5000, 5001, 100000, 5000})
        away.push_back(offload(pattern({n}, DType::u8, 1), tier));
      CHECK(tier->statistics().live_bytes == 115002);
      if (step == 0) committed = tier->statistics().committed_bytes;
      CHECK(tier->statistics().committed_bytes == committed);
      CHECK(std::filesystem::is_empty(home));
    }
    CHECK(committed == 4096 + 3 * 8192 + 102400);
    CHECK(tier->statistics().writes == 20);
    CHECK(tier->statistics().reads == 0);
  }
  CHECK(std::filesystem::is_empty(home));
  std::filesystem::remove(home);
}

TEST_CASE("offload: threads share one tier", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(folder, 8192, 3));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t k = 0; k < wrong.size(); ++k) {
    threads.emplace_back([&, k] {
      for (std::uint32_t i = 0; i < 60; ++i) {
        const Tensor a = pattern({static_cast<std::int64_t>(1 + i * 977 % 50000)}, DType::u8, i),
                     b = pattern({300}, DType::f32, i);
        Offloaded first = offload(a, tier), second = offload(b, tier);
        if (i % 3 == 0) first.complete();
        if (i % 4 != 0) second.prefetch();
        if (i % 5 == 4) second.drop();
        if (bytes_of(first.fetch()) != bytes_of(a)) ++wrong[k];
        if (second.defined() && bytes_of(second.fetch()) != bytes_of(b)) ++wrong[k];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == std::vector<int>(4));
  CHECK(tier->statistics().live_bytes == 0);
}

TEST_CASE("offload: a tier that is let go of finishes first", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  const Tensor t = pattern({500000}, DType::u8, 5);
  for (int i = 0; i < 5; ++i) {
    Offloaded away =
        offload(t, std::make_shared<memory::FileTier>(cpu, options_at(folder)));  // `away` is the only owner
    if (i > 0) away.complete();
    if (i > 1) away.prefetch();
    if (i > 2) CHECK((bytes_of(away.fetch()) == bytes_of(t)));
    memory::FileTier alone(cpu, options_at(folder));
    const memory::Pin pin(t);
    alone.write(pin.data(), t.bytes());  // neither awaited nor dropped
  }
}

TEST_CASE("offload: speed, and what the page cache keeps", "[.benchmark]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  const auto cached_mib = [] {
    std::ifstream in("/proc/meminfo");
    std::string word;
    while (in >> word) {
      if (word == "Cached:") break;
    }
    double kib = 0;
    in >> kib;
    return kib / 1024;
  };
  for (const auto& [mib, workers] : {std::pair<std::int64_t, int>{1, 2}, {16, 1}, {16, 2}, {16, 4}, {64, 2}}) {
    memory::FileTier::Options options;
    options.folder = folder;
    options.workers = workers;
    const auto tier = std::make_shared<memory::FileTier>(cpu, options);
    const std::int64_t count = 256 / mib;
    const double cached = cached_mib();
    std::vector<Offloaded> away;
    auto seconds = [start = std::chrono::steady_clock::now()]() mutable {
      const auto now = std::chrono::steady_clock::now();
      return std::chrono::duration<double>(now - std::exchange(start, now)).count();
    };
    const Tensor t = pattern({mib << 20}, DType::u8, 1);
    seconds();
    for (std::int64_t i = 0; i < count; ++i) away.push_back(offload(t, tier));
    for (Offloaded& a : away) a.complete();
    const double first = seconds();
    away.clear();
    seconds();
    for (std::int64_t i = 0; i < count; ++i) away.push_back(offload(t, tier));  // into existing slots
    for (Offloaded& a : away) a.complete();
    const double write = seconds();
    for (std::size_t i = 0; i < away.size(); ++i) {
      if (i + 1 < away.size()) away[i + 1].prefetch();
      away[i].fetch();
    }
    const double read = seconds();
    std::printf(
        "%3d MiB x %3d, %d workers: write %6.0f MB/s (new slots %6.0f), read %6.0f MB/s, page cache %+.1f MiB\n",
        static_cast<int>(mib), static_cast<int>(count), workers, 256 * 1.048576 / write, 256 * 1.048576 / first,
        256 * 1.048576 / read, cached_mib() - cached);
    CHECK(read > 0);
  }
}
