#include <thimble/nn/data/sampler.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include <thimble/core/error.h>
#include <thimble/nn/data/require.h>
#include <thimble/nn/data/splitmix.h>

namespace thimble::data {

namespace {

constexpr std::int64_t largest_count = std::int64_t{1} << 62;

void require_room(const char* what, std::size_t room, std::int64_t batch) {
  if (room != static_cast<std::size_t>(batch))
    throw ShapeError(std::string(what) + ": room for " + std::to_string(room) + " indices, the batch has " +
                     std::to_string(batch));
}

}  // namespace

Permutation::Permutation(std::int64_t count, std::uint64_t key)
    : count_(static_cast<std::uint64_t>(require_between("permutation: count", count, 1, largest_count))),
      half_bits_(std::max(1, (static_cast<int>(std::bit_width(count_ - 1)) + 1) / 2)) {
  SplitMix random(key);
  for (std::uint64_t& round_key : keys_) round_key = random.next();
}

std::int64_t Permutation::operator()(std::int64_t i) const noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (splitmix64(key + right) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= count_);
  return static_cast<std::int64_t>(value);
}

BatchSampler::BatchSampler(std::int64_t count, std::int64_t batch, std::uint64_t seed)
    : count_(require_between("batch sampler: count", count, 1, largest_count)),
      batch_(require_between("batch sampler: batch", batch, 1, largest_count)),
      seed_(seed) {}

void BatchSampler::indices(std::int64_t step, std::span<std::int64_t> out) const {
  require_between("batch sampler: step", step, 0, largest_count / batch_ - 1);
  require_room("batch sampler", out.size(), batch_);
  std::int64_t position = step * batch_;
  while (!out.empty()) {
    const std::int64_t epoch = position / count_, first = position % count_;
    const auto part = static_cast<std::size_t>(std::min(count_ - first, static_cast<std::int64_t>(out.size())));
    const Permutation permutation(count_, splitmix64(splitmix64(seed_) + static_cast<std::uint64_t>(epoch)));
    for (std::size_t i = 0; i < part; ++i) out[i] = permutation(first + static_cast<std::int64_t>(i));
    out = out.subspan(part);
    position += static_cast<std::int64_t>(part);
  }
}

std::vector<std::int64_t> BatchSampler::indices(std::int64_t step) const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(batch_));
  indices(step, out);
  return out;
}

WindowSampler::WindowSampler(std::int64_t length, std::int64_t seq, std::int64_t batch, std::uint64_t seed)
    : length_(require_between("window sampler: tokens of text", length, 2, largest_count)),
      seq_(require_between("window sampler: sequence length", seq, 1, length - 1)),
      batch_(require_between("window sampler: batch", batch, 1, largest_count)),
      seed_(seed) {}

void WindowSampler::starts(std::int64_t step, std::span<std::int64_t> out) const {
  require_between("window sampler: step", step, 0, std::numeric_limits<std::int64_t>::max());
  require_room("window sampler", out.size(), batch_);
  SplitMix random(splitmix64(splitmix64(seed_) + static_cast<std::uint64_t>(step)));
  for (std::int64_t& start : out)
    start = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(length_ - seq_)));
}

std::vector<std::int64_t> WindowSampler::starts(std::int64_t step) const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(batch_));
  starts(step, out);
  return out;
}

}  // namespace thimble::data
