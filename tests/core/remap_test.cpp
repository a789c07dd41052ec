// Moving blocks by their pages gives the contents, places and books of copies. On a GPU if there is one; in a build
// without CUDA on tests/emulated, where pages do get other addresses.

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/arena/granules.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/summary.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace remap_test {

constexpr std::size_t mib = std::size_t{1} << 20, granule = 2 * mib;

const kernels::DeviceRuntime& runtime() { return kernels::device_runtime(cuda()); }

/// The contents of the block with this number.
std::vector<std::uint32_t> pattern(std::size_t bytes, std::uint32_t number) {
  std::vector<std::uint32_t> values(bytes / sizeof(std::uint32_t));
  std::iota(values.begin(), values.end(), number << 22);
  return values;
}

void write(const memory::Block& block, std::uint32_t number) {
  const std::vector<std::uint32_t> values = pattern(block.bytes, number);
  launch(cuda(), [&](const Addresses&) {
    runtime().upload(block.address, values.data(), values.size() * sizeof(std::uint32_t));
  });
}

bool holds(const memory::Block& block, std::uint32_t number) {
  const std::vector<std::uint32_t> values = pattern(block.bytes, number);
  std::vector<std::uint32_t> found(values.size());
  launch(cuda(), [&](const Addresses&) {
    runtime().download(found.data(), block.address, found.size() * sizeof(std::uint32_t));
  });
  return found == values;
}

memory::Arena::Options options(std::size_t remap_from_bytes, std::size_t capacity = 64 * mib) {
  return {.capacity_bytes = capacity,
          .poison = true,
          .compaction = memory::Arena::Compaction::never,
          .tolerated_fragmentation = 0,
          .remap_from_bytes = remap_from_bytes};
}

/// An arena and the blocks in it, by number.
struct Blocks {
  memory::Arena arena;
  bool is_real;
  std::vector<std::pair<memory::Block*, std::uint32_t>> live{};

  Blocks(memory::Device device, const memory::Arena::Options& options)
      : arena(memory::make_backing(device), options), is_real(!device.is_dry) {}
  ~Blocks() {
    while (!live.empty()) free(0);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  bool allocate(std::size_t bytes, std::size_t alignment, std::uint32_t number) {
    try {
      live.emplace_back(arena.allocate({.bytes = bytes, .alignment = alignment}), number);
    } catch (const OutOfMemory&) {
      return false;
    }
    if (is_real) write(*live.back().first, number);
    return true;
  }
  void free(std::size_t index) {
    live[index].first->pins = 0;
    arena.deallocate(live[index].first, nullptr);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
  }
  bool are_intact() const {
    return std::all_of(live.begin(), live.end(), [](const auto& one) { return holds(*one.first, one.second); });
  }
  std::vector<std::size_t> offsets() const {
    std::vector<std::size_t> list;
    for (const auto& [block, number] : live) list.push_back(static_cast<std::size_t>(block->address - arena.base()));
    return list;
  }
};

}  // namespace remap_test

using namespace remap_test;

TEST_CASE("remap: granules change places and come back", "[remap]") {
  for (const std::size_t distance : {1, 2, 3, 5}) {
    for (const std::size_t count : {1, 2, 3, 5}) {
      const std::size_t to = 2, from = to + distance;
      std::vector<int> table(12);
      std::iota(table.begin(), table.end(), 0);
      const std::vector<int> before = table;
      std::vector<int> expected = before;
      std::vector<int> displaced;  // displaced, and not itself moved
      for (std::size_t i = 0; i < count; ++i) {
        expected[to + i] = before[from + i];
        if (to + i < from) displaced.push_back(before[to + i]);
      }
      if (count > distance) displaced.assign(before.begin() + to, before.begin() + static_cast<std::ptrdiff_t>(from));
      std::size_t left = std::max(from, to + count);
      for (const int entry : displaced) expected[left++] = entry;
      CHECK(left == from + count);
      memory::move_granules(table.begin(), from, to, count);
      CHECK(table == expected);
      memory::move_granules_back(table.begin(), from, to, count);
      CHECK(table == before);
    }
  }
}

TEST_CASE("remap: whole granules go with their pages, ends are copied", "[remap][cuda]") {
  if (!has_cuda()) return;
  struct Case {
    std::size_t ahead, hole, bytes, remapped;
  };
  const Case cases[] = {
      {granule, granule, granule, granule},                           // aligned
      {granule, granule, 3 * granule + 4096, 3 * granule},            // overlaps its target
      {granule, 4 * granule, granule + 512, granule},                 // does not overlap it
      {512, granule, 4 * granule, 3 * granule},                       // a head and a tail
      {512, 3 * granule, 4 * granule, 3 * granule},                   // moves by its length
      {mib, 2 * granule, 2 * granule, granule},                       // both, half a granule each
      {512, 5 * granule, 2 * granule - 512, granule},                 // only a head
      {granule + 512, 2 * granule, 5 * granule - 1024, 3 * granule},  // only a head, and padding of the last unit
      {granule - 512, granule, 2 * granule + 516, 2 * granule},       // a head of one unit
      {512, granule, granule, 0},                                     // no whole granule inside
      {granule, granule + 512, 8 * granule, 0},                       // not a whole number of granules to go
      {granule, mib, 8 * granule, 0},                                 // less than a granule to go
  };
  for (const bool is_trimmed : {false, true}) {
    for (const Case& c : cases) {
      INFO(c.bytes << " bytes behind " << c.ahead << " and a hole of " << c.hole << (is_trimmed ? ", trimmed" : ""));
      Blocks remapping(cuda(), options(granule)), copying(cuda(), options(0)), dry_run(dry(cuda()), options(granule));
      for (Blocks* const blocks : {&remapping, &copying, &dry_run}) {
        blocks->allocate(c.ahead, 512, 1);
        blocks->allocate(c.hole, 512, 2);
        blocks->allocate(c.bytes, 512, 3);
        blocks->allocate(4096, 512, 4);
        blocks->free(1);
        if (is_trimmed) blocks->arena.trim();
      }
      const std::uint64_t waits = runtime().synchronization_count();
      CHECK(remapping.arena.compact() == c.bytes + 4096);
      CHECK((runtime().synchronization_count() > waits) == (c.remapped > 0));
      CHECK(copying.arena.compact() == c.bytes + 4096);
      CHECK(dry_run.arena.compact() == c.bytes + 4096);
      CHECK(remapping.offsets() == copying.offsets());
      CHECK(remapping.are_intact());
      CHECK(copying.are_intact());
      const memory::Arena::Statistics figures = remapping.arena.statistics();
      CHECK(figures.remapped_bytes == c.remapped);
      CHECK(copying.arena.statistics().remapped_bytes == 0);
      CHECK(figures == dry_run.arena.statistics());
      // Pages move with their contents: nothing is committed where a copy would need it.
      CHECK(figures.committed_bytes <= copying.arena.statistics().committed_bytes);
      const std::string text = memory::compaction_to_string(figures);
      CHECK((text.find("with their pages") != std::string::npos) == (c.remapped > 0));
      // The books are right: a block without pages gets new ones, and a block with pages keeps its contents.
      for (Blocks* const blocks : {&remapping, &dry_run}) {
        blocks->arena.trim();
        CHECK(blocks->allocate(c.hole, 512, 5));
      }
      CHECK(remapping.are_intact());
      CHECK(remapping.arena.statistics().committed_bytes == dry_run.arena.statistics().committed_bytes);
    }
  }
}

TEST_CASE("remap: a request copies, a threshold is a threshold, a cpu has no pages to move", "[remap][cuda]") {
  CHECK_FALSE(memory::make_backing(cpu)->can_remap());
  CHECK_FALSE(memory::make_backing(dry(cpu))->can_remap());
  CHECK(memory::make_backing(dry(cuda()))->can_remap());
  for (const std::size_t threshold : {3 * granule, 3 * granule + 1}) {
    Blocks blocks(dry(cuda()), options(threshold));
    blocks.allocate(granule, 512, 1);
    blocks.allocate(3 * granule, 512, 2);
    blocks.free(0);
    blocks.arena.safe_point();
    CHECK(blocks.arena.statistics().remapped_bytes == (threshold == 3 * granule ? 3 * granule : 0));
  }
  if (!has_cuda()) return;
  CHECK(memory::make_backing(cuda())->can_remap());
  for (const std::size_t threshold : {3 * granule, 3 * granule + 1}) {
    Blocks blocks(cuda(), options(threshold));
    blocks.allocate(granule, 512, 1);
    blocks.allocate(3 * granule, 512, 2);
    blocks.free(0);
    blocks.arena.safe_point();
    CHECK(blocks.arena.statistics().remapped_bytes == (threshold == 3 * granule ? 3 * granule : 0));
    CHECK(blocks.are_intact());
  }
  memory::Arena::Options tight = options(granule, 8 * granule);
  tight.compaction = memory::Arena::Compaction::when_needed;
  Blocks blocks(cuda(), tight);
  blocks.allocate(granule, 512, 1);
  blocks.allocate(6 * granule, 512, 2);
  blocks.free(0);
  runtime().synchronize(cuda());  // earlier uploads are done, so the upload into the block does not wait for them
  const std::uint64_t waits = runtime().synchronization_count();
  CHECK(blocks.allocate(2 * granule, 512, 3));
  CHECK(blocks.arena.statistics().moved_bytes == 6 * granule);
  CHECK(blocks.arena.statistics().remapped_bytes == 0);
  CHECK(runtime().synchronization_count() == waits);
  CHECK(blocks.are_intact());
}

TEST_CASE("remap: a random trace has the places, contents and figures of copies", "[remap][cuda]") {
  if (!has_cuda()) return;
  Blocks remapping(cuda(), options(granule)), copying(cuda(), options(0)), dry_run(dry(cuda()), options(granule));
  Blocks* const all[] = {&remapping, &copying, &dry_run};
  std::mt19937 random(11);
  const auto draw = [&](std::size_t below) { return static_cast<std::size_t>(random()) % below; };
  std::uint32_t number = 1;
  std::size_t broken = 0, apart = 0;
  for (int i = 0; i < 400; ++i) {
    const std::size_t dice = draw(16), count = remapping.live.size();
    if (dice == 0) {
      for (Blocks* const blocks : all) blocks->arena.trim();
    } else if (dice == 1 && count > 0) {
      const std::size_t which = draw(count);
      const int pins = remapping.live[which].first->pins == 0 ? 1 : 0;
      remapping.live[which].first->pins = copying.live[which].first->pins = dry_run.live[which].first->pins = pins;
    } else if (dice < 4) {
      for (Blocks* const blocks : all) blocks->arena.compact();
      broken += remapping.are_intact() ? 0 : 1;
    } else if (count > 0 && draw(12) < count) {
      const std::size_t which = draw(count);
      for (Blocks* const blocks : all) blocks->free(which);
    } else {
      // Mostly whole granules, so that other blocks move by whole granules; sometimes a few odd bytes.
      const std::size_t bytes =
          draw(6) == 0 ? 512 + 512 * draw(64) : granule * (1 + draw(4)) - (draw(8) == 0 ? 512 : 0);
      const std::size_t alignment = draw(16) == 0 ? mib : 512;
      ++number;
      const bool is_there = remapping.allocate(bytes, alignment, number);
      apart += copying.allocate(bytes, alignment, number) == is_there ? 0 : 1;
      apart += dry_run.allocate(bytes, alignment, number) == is_there ? 0 : 1;
    }
    apart +=
        remapping.offsets() == copying.offsets() && remapping.arena.statistics() == dry_run.arena.statistics() ? 0 : 1;
  }
  CHECK(broken == 0);
  CHECK(apart == 0);
  CHECK(remapping.are_intact());
  CHECK(copying.are_intact());
  const memory::Arena::Statistics figures = remapping.arena.statistics();
  CHECK(figures.remapped_bytes > 20 * granule);
  CHECK(figures.moved_bytes > figures.remapped_bytes);
  CHECK(figures.moved_bytes == copying.arena.statistics().moved_bytes);
}

TEST_CASE("remap: the time of copies is the device's, and nobody waits for it", "[remap][cuda]") {
  const auto slide = [](memory::Device device) {
    Blocks blocks(device, options(0));
    blocks.allocate(granule + 512, 512, 1);
    blocks.allocate(4 * granule, 512, 2);
    blocks.free(0);
    const std::uint64_t waits = has_cuda() ? runtime().synchronization_count() : 0;
    blocks.arena.compact();
    const std::string before = memory::compaction_to_string(blocks.arena.statistics());
    if (has_cuda()) CHECK(runtime().synchronization_count() == waits);
    if (device == cuda()) {
      const bool is_known = blocks.arena.statistics().device_time.unknown_moves == 0;
      CHECK(before.find(" ms of the host, copies in ") != std::string::npos);
      if (!is_known) CHECK(before.find(" so far, which is not known to be done") != std::string::npos);
      runtime().synchronize(device);
    }
    const memory::Arena::Statistics figures = blocks.arena.statistics();
    CHECK(figures.device_time.unknown_moves == 0);
    CHECK((memory::compaction_to_string(figures).find("of the device") != std::string::npos) == (device == cuda()));
    CHECK(figures.moved_bytes == 4 * granule);
    return figures;
  };
  CHECK(slide(dry(cuda())).device_time.ms == 0);
  if (!has_cuda()) return;
  const memory::Arena::Statistics copied = slide(cuda());
  CHECK(copied.device_time.ms > 0);
  CHECK(copied == slide(dry(cuda())));
}

namespace remap_test {

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> values;
  memory::Arena::Statistics figures;
};

/// A perceptron whose matrices span granules, after a block that is freed: compaction moves everything.
Trained train(memory::Device device, const memory::Arena::Options& arena) {
  const memory::Stack stack = memory::make_resource(device, {.arena = arena});
  const ResourceScope scope(stack.top);
  RandomGenerator generator(3);
  const GeneratorScope random(generator);
  constexpr std::int64_t width = 1024, rows = 2;
  Tensor first = Tensor::empty({3 * static_cast<std::int64_t>(granule)}, DType::u8, device);
  std::vector<optim::Named> parameters;
  for (const char* const name : {"a", "b"}) {
    Tensor weight = normal({width, width}, 0, 0.03, DType::f32, device, next_random_site());
    weight.require_grad();
    parameters.push_back({name, weight});
  }
  optim::Sgd sgd(parameters, {.rate = 0.1, .momentum = 0.9});
  const Tensor x = normal({rows, width}, 0, 1, DType::f32, device, next_random_site());
  std::vector<Tensor> losses;
  for (int i = 0; i < 3; ++i) {
    losses.push_back(nn::training_step(
        sgd,
        [&](std::int64_t) { return mean(square(matmul(tanh(matmul(x, parameters[0].tensor)), parameters[1].tensor))); },
        {.clip_norm = 1}));
    if (i == 0) first = Tensor();
    stack.arena->safe_point();
  }
  Trained result;
  result.figures = stack.arena->statistics();
  if (device.is_dry) return result;
  for (const Tensor& loss : losses) result.losses.push_back(item(loss));
  for (const auto& p : parameters) result.values.push_back(to_host<float>(p.tensor.detach()));
  for (const auto& s : sgd.state()) result.values.push_back(to_host<float>(s.tensor));
  return result;
}

}  // namespace remap_test

TEST_CASE("remap: training whose blocks move by their pages has the bits of one whose blocks stay",
          "[remap][cuda][slow]") {
  if (!has_cuda()) return;
  memory::Arena::Options stay = options(0, 0), copies = options(0, 0), pages = options(granule, 0);
  stay.tolerated_fragmentation = 1;
  const Trained still = train(cuda(), stay), copied = train(cuda(), copies), remapped = train(cuda(), pages);
  CHECK(still.figures.moved_bytes == 0);
  CHECK(copied.figures.moved_bytes > 0);
  CHECK(copied.figures.remapped_bytes == 0);
  CHECK(remapped.figures.remapped_bytes >= 4 * granule);
  CHECK(remapped.figures.moved_bytes == copied.figures.moved_bytes);
  CHECK(remapped.figures.height_bytes == copied.figures.height_bytes);
  CHECK(still.losses[0] != still.losses[2]);
  for (const Trained* const other : {&copied, &remapped}) {
    CHECK(other->losses == still.losses);
    CHECK((other->values == still.values));
  }
  CHECK(train(dry(cuda()), pages).figures == remapped.figures);
}
