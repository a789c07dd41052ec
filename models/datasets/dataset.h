#pragma once
// Data for named models: a text, files of tokens or labelled images, with a training and a validation split. Batches
// depend only on (seed, step).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/models/model.h>

namespace thimble::models {

/// One rank's share of a step's batch. The batch is cut into ranks * micro_batches parts; micro-batch m of the rank is
/// part m * ranks + rank (optim/ranks.h).
struct BatchShare {
  int rank = 0, ranks = 1;
  std::int64_t micro_batches = 1;  ///< per rank

  std::int64_t parts() const noexcept { return ranks * micro_batches; }
  std::int64_t part(std::int64_t micro_batch) const noexcept { return micro_batch * ranks + rank; }
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Sets the model sizes that follow from the data (vocabulary, or image, channels and classes). Throws ValueError if
  /// a size that is set contradicts the data.
  virtual void fit(ModelOptions& sizes) const = 0;
  /// Prepares batches of `samples` for a model with these sizes. Throws ValueError if the data are too few for one
  /// batch, or do not fit the sizes (a token beyond the vocabulary).
  virtual void open(const ModelOptions& sizes, std::int64_t samples, std::uint64_t seed) = 0;

  /// Call before open(): batch() then has one rank's samples. The parts must divide the batch.
  void set_share(const BatchShare& share) noexcept { share_ = share; }
  const BatchShare& share() const noexcept { return share_; }
  /// The batch of a step on `device`, booked as input, images in `dtype`. A dry device gets equal bytes.
  virtual Batch batch(std::int64_t step, memory::Device device, DType dtype) const = 0;
  /// Does the host's work for a step's batch while a device computes, so that batch() for that step and dtype only
  /// copies. Makes no tensor and changes no batch. Not to be called concurrently with batch().
  virtual void prepare([[maybe_unused]] std::int64_t step, [[maybe_unused]] DType dtype) {}
  /// The number of validation batches, in order; the last may have fewer samples.
  virtual std::int64_t validation_batches() const = 0;
  virtual Batch validation_batch(std::int64_t index, memory::Device device, DType dtype) const = 0;

  /// Bytes on the heap for the dataset's lifetime: labels, and samples that are in no file (synthetic or decompressed).
  /// Everything else is read batch by batch, straight into a batch's tensors (nn/data/store.h).
  virtual std::size_t heap_bytes() const { return 0; }

  /// Items (tokens or images) per sample, for rates per second.
  virtual std::int64_t items_per_sample() const = 0;
  /// The text of tokens, by characters or the tokenizer; else numbers.
  virtual std::string decode(const std::vector<std::int64_t>& tokens) const = 0;
  /// The characters of the vocabulary, which checkpoints keep, or empty.
  virtual std::string symbols() const { return {}; }
  /// Identifies the tokenizer by its number of tokens and a checksum, or empty.
  virtual std::string tokenizer() const { return {}; }
  /// Identifies the data by their number and a checksum, or empty.
  virtual std::string digest() const { return {}; }

  std::string path = {};  ///< that it was opened from, for errors

 private:
  BatchShare share_;
};

/// Opens data for a model. `path` names for text: a text file, with characters as tokens; a file of tokens from llm.c
/// (`.bin`), or a NumPy vector of 16 or 32 bits (`.npy`); or a folder with one `*train*` and one `*val*` token file.
/// For images: a folder with IDX files under MNIST's or EMNIST's names (plain or .gz), an IDX file of images next to
/// its labels, a folder with the batches of CIFAR-10 or CIFAR-100, or one such batch. "synthetic" makes data of the
/// model's sizes. Texts and single token files are split 90/10, single sets or files of images 80/20.
///
/// Images are normalised by their measured mean and deviation. Classes are 10, or one more than the largest label if
/// that is more; CIFAR-100 has its fine labels. Models that learn hidden tokens get windows with 15 % of them hidden
/// (nn/data/masking.h), and characters have one token more, [MASK]. `model` is the one named `name`, and may be dry.
///
/// `tokenizer` is a tokenizer.json (nn/tokens/tokenizer_file.h), for the GPT and Llama families. A text becomes its
/// tokens, whose number is the default vocabulary; they stay in memory, in 2 bytes each if the tokenizer has up to
/// 65,536, else 4. For files of tokens it is only the decoder.
///
/// Throws FileError, and ValueError naming the path and the expected files.
std::unique_ptr<Dataset> open_dataset(const std::string& path, const Model& model, std::string_view name,
                                      std::uint64_t seed, const std::string& tokenizer = {});

/// Rows of scores (N, K) whose first largest is at the target (N); reads few rows at a time.
std::int64_t count_correct(const Tensor& scores, const Tensor& target);

/// "crc32c 1a2b3c4d".
std::string sum_text(std::uint32_t sum);

}  // namespace thimble::models
