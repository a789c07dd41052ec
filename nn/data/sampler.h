#pragma once
// Samplers choose the samples of a step's batch. Their only state is (seed, step): a run resumed at a step gets the
// batches of an uninterrupted run, and no shuffled list of indices is kept.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace thimble::data {

/// A keyed permutation of 0 .. count - 1 in O(1) memory: a balanced Feistel network on the smallest even number of bits
/// that holds count - 1, walked along its cycle until the value is in range (Black and Rogaway 2002, "Ciphers with
/// arbitrary finite domains"), fewer than four steps on average.
class Permutation {
 public:
  /// Throws ValueError when count is not in 1 .. 2^62.
  Permutation(std::int64_t count, std::uint64_t key);

  /// The image of `i`, 0 <= i < count.
  std::int64_t operator()(std::int64_t i) const noexcept;

 private:
  static constexpr std::size_t rounds = 8;

  std::uint64_t count_;
  int half_bits_;
  std::array<std::uint64_t, rounds> keys_;
};

/// Batches without replacement: steps walk through epoch after epoch, each a fresh permutation of all samples. A batch
/// may begin in one epoch and end in the next, so every epoch has each sample exactly once.
class BatchSampler {
 public:
  /// Throws ValueError unless count and batch are in 1 .. 2^62.
  BatchSampler(std::int64_t count, std::int64_t batch, std::uint64_t seed);

  std::int64_t count() const noexcept { return count_; }
  std::int64_t batch() const noexcept { return batch_; }

  /// The epoch of a step's first sample.
  std::int64_t epoch(std::int64_t step) const noexcept { return step * batch_ / count_; }

  /// Writes the samples of a step to `out` (batch), each in 0 .. count - 1. Throws ShapeError when `out` has another
  /// size, ValueError when the step is negative or ends beyond 2^62 samples.
  void indices(std::int64_t step, std::span<std::int64_t> out) const;
  std::vector<std::int64_t> indices(std::int64_t step) const;

 private:
  std::int64_t count_;
  std::int64_t batch_;
  std::uint64_t seed_;
};

/// Random windows of a long text: each batch has `batch` windows of seq + 1 tokens (inputs, and targets one later) with
/// uniform, independent starts.
class WindowSampler {
 public:
  /// `length` tokens of text. Throws ValueError unless 1 <= seq < length and batch is in 1 .. 2^62.
  WindowSampler(std::int64_t length, std::int64_t seq, std::int64_t batch, std::uint64_t seed);

  std::int64_t length() const noexcept { return length_; }
  std::int64_t seq() const noexcept { return seq_; }
  std::int64_t batch() const noexcept { return batch_; }

  /// Writes the first token of each window of a step to `out` (batch), each in 0 .. length - seq - 1. Throws ShapeError
  /// when `out` has another size, ValueError when the step is negative.
  void starts(std::int64_t step, std::span<std::int64_t> out) const;
  std::vector<std::int64_t> starts(std::int64_t step) const;

 private:
  std::int64_t length_;
  std::int64_t seq_;
  std::int64_t batch_;
  std::uint64_t seed_;
};

}  // namespace thimble::data
