#pragma once
// Batches: a sampler and the data it draws from. A source keeps views, never copies: its data must outlive it. Its only
// state is the step that is passed in.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/nn/data/images.h>
#include <thimble/nn/data/require.h>
#include <thimble/nn/data/sampler.h>
#include <thimble/nn/data/store.h>

namespace thimble::data {

namespace source_detail {
void require_size(const char* what, std::size_t given, std::size_t wanted);
}  // namespace source_detail

/// A byte becomes (byte / 255 - mean) / deviation, per channel.
struct Normalization {
  std::vector<float> mean;       ///< (C)
  std::vector<float> deviation;  ///< (C), each > 0
};

/// Mean and standard deviation of `count` images from `first` on, per channel; a constant channel gets deviation 1.
/// Sums are exact integers, so only the data determine the result. Throws ValueError when the range is empty or not
/// within the images.
Normalization measure_normalization(const ImageStore& images, std::int64_t first, std::int64_t count);
Normalization measure_normalization(const Images& images, std::int64_t first, std::int64_t count);

/// Random batches, without replacement, from a range of labelled images.
class ImageSource {
 public:
  /// Draws from images first .. first + count - 1. Throws ValueError when the range is empty or not within the images,
  /// batch < 1, or the normalization does not have one mean and one positive deviation per channel.
  ImageSource(std::shared_ptr<const ImageStore> images, std::int64_t first, std::int64_t count, std::int64_t batch,
              std::uint64_t seed, const Normalization& normalization);
  ImageSource(const Images& images, std::int64_t first, std::int64_t count, std::int64_t batch, std::uint64_t seed,
              const Normalization& normalization);

  const BatchSampler& sampler() const noexcept { return sampler_; }

  /// The batch of a step: `pixels` (B, H, W, C), `labels` (B); Id is any integer type. Throws ShapeError when a span
  /// has another size, ValueError for a step as BatchSampler::indices does.
  template <class Id>
  void batch(std::int64_t step, std::span<float> pixels, std::span<Id> labels) const {
    source_detail::require_size("labels", labels.size(), static_cast<std::size_t>(sampler_.batch()));
    copy(sampler_.indices(step), pixels, labels);
  }

  /// Images from .. from + B - 1 of the range in order, for evaluation; B is labels.size(). `pixels` (B, H, W, C),
  /// `labels` (B). Throws ShapeError when `pixels` has another size, ValueError when the images are not in the range.
  template <class Id>
  void sequential(std::int64_t from, std::span<float> pixels, std::span<Id> labels) const {
    copy(in_order(from, labels.size()), pixels, labels);
  }

  /// These batches in a step's tensors: writes pixels (B, H, W, C) in a floating `dtype` to `pixels`, rounded to
  /// nearest, and labels (B) to `labels`. No heap allocation.
  void batch_into(std::int64_t step, DType dtype, std::byte* pixels, std::span<std::int64_t> labels) const;
  void sequential_into(std::int64_t from, DType dtype, std::byte* pixels, std::span<std::int64_t> labels) const;

 private:
  std::vector<std::int64_t> in_order(std::int64_t from, std::size_t count) const;
  void copy_pixels(std::span<const std::int64_t> indices, std::span<float> pixels) const;
  void copy_image(std::int64_t index, DType dtype, std::byte* pixels) const;
  void copy_into(DType dtype, std::byte* pixels, std::span<std::int64_t> indices) const;

  template <class Id>
  void copy(const std::vector<std::int64_t>& indices, std::span<float> pixels, std::span<Id> labels) const {
    copy_pixels(indices, pixels);
    for (std::size_t i = 0; i < indices.size(); ++i) labels[i] = static_cast<Id>(images_->label(first_ + indices[i]));
  }

  std::shared_ptr<const ImageStore> images_;
  std::int64_t first_;
  BatchSampler sampler_;
  std::vector<float> values_;  // (C, 256): the normalized number of each byte
};

/// Windows of a tokenized text, random or in order. Token is std::uint8_t (characters) or std::uint16_t.
template <class Token>
class TokenSource {
 public:
  /// Throws ValueError unless the text has at least seq + 1 tokens, seq >= 1 and batch >= 1.
  TokenSource(std::span<const Token> tokens, std::int64_t seq, std::int64_t batch, std::uint64_t seed)
      : tokens_(tokens), sampler_(static_cast<std::int64_t>(tokens.size()), seq, batch, seed) {}

  const WindowSampler& sampler() const noexcept { return sampler_; }

  /// The batch of a step: `inputs` and `targets` (B, T), targets one token later; Id is any integer type. Throws
  /// ShapeError when a span has another size, ValueError for a negative step.
  template <class Id>
  void batch(std::int64_t step, std::span<Id> inputs, std::span<Id> targets) const {
    const std::vector<std::int64_t> starts = sampler_.starts(step);
    const auto seq = static_cast<std::size_t>(sampler_.seq());
    source_detail::require_size("inputs", inputs.size(), starts.size() * seq);
    source_detail::require_size("targets", targets.size(), starts.size() * seq);
    for (std::size_t b = 0; b < starts.size(); ++b)
      copy(static_cast<std::size_t>(starts[b]), inputs.subspan(b * seq, seq), targets.subspan(b * seq, seq));
  }

  /// Number of adjacent windows in the text, for evaluation.
  std::int64_t windows() const noexcept { return (sampler_.length() - 1) / sampler_.seq(); }

  /// Adjacent window `i`: `inputs` and `targets` (T). Throws ShapeError when a span has another size, ValueError unless
  /// 0 <= i < windows().
  template <class Id>
  void window(std::int64_t i, std::span<Id> inputs, std::span<Id> targets) const {
    require_between("data source: window", i, 0, windows() - 1);
    source_detail::require_size("inputs", inputs.size(), static_cast<std::size_t>(sampler_.seq()));
    source_detail::require_size("targets", targets.size(), static_cast<std::size_t>(sampler_.seq()));
    copy(static_cast<std::size_t>(i * sampler_.seq()), inputs, targets);
  }

 private:
  template <class Id>
  void copy(std::size_t start, std::span<Id> inputs, std::span<Id> targets) const {
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = static_cast<Id>(tokens_[start + t]);
      targets[t] = static_cast<Id>(tokens_[start + t + 1]);
    }
  }

  std::span<const Token> tokens_;
  WindowSampler sampler_;
};

}  // namespace thimble::data
