#pragma once
// What a named model learns from: a text, files of tokens or labelled images, split into a part to train on and a part
// to validate with. Batches are functions of (seed, step) alone.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/models/model.h>

namespace thimble::models {

/// The samples of a step's batch that one of several ranks gets: the batch is cut into ranks * micro_batches parts, and
/// micro-batch m of the rank is part m * ranks + rank (optim/ranks.h).
struct BatchShare {
  int rank = 0, ranks = 1;
  std::int64_t micro_batches = 1;  ///< of a rank

  std::int64_t parts() const noexcept { return ranks * micro_batches; }
  std::int64_t part(std::int64_t micro_batch) const noexcept { return micro_batch * ranks + rank; }
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Sets the sizes of a model that follow from the data (vocabulary; image, channels, classes). Throws ValueError when
  /// one was chosen that the data contradict.
  virtual void fit(ModelOptions& sizes) const = 0;
  /// Makes the batches: `samples` each, for a model with these sizes. Throws ValueError when the data are too few for
  /// one, or do not fit the sizes (a token beyond the vocabulary).
  virtual void open(const ModelOptions& sizes, std::int64_t samples, std::uint64_t seed) = 0;

  /// Before open(): batch() has the samples of one of several ranks. Their parts divide the batch.
  void set_share(const BatchShare& share) noexcept { share_ = share; }
  const BatchShare& share() const noexcept { return share_; }
  /// The batch of a step on `device`, booked as input, images in `dtype`. On a dry device it has the same bytes.
  virtual Batch batch(std::int64_t step, memory::Device device, DType dtype) const = 0;
  /// Does the host's work for a step's batch ahead, while a device computes; batch() for that step and dtype then only
  /// copies it there. Makes no tensor and changes no batch; not to be called beside batch().
  virtual void prepare([[maybe_unused]] std::int64_t step, [[maybe_unused]] DType dtype) {}
  /// Batches of the validation part in order; the last may have fewer samples.
  virtual std::int64_t validation_batches() const = 0;
  virtual Batch validation_batch(std::int64_t index, memory::Device device, DType dtype) const = 0;

  /// What it keeps on the heap from open_dataset to its end: samples that are in no file (synthetic, or decompressed
  /// ones), and labels. All else is read batch by batch, straight into a batch's tensors (nn/data/store.h).
  virtual std::size_t heap_bytes() const { return 0; }

  /// Items (tokens or images) per sample: what a rate counts.
  virtual std::int64_t items_per_sample() const = 0;
  /// The text of tokens: characters, what a tokenizer makes of them, or numbers where there is no vocabulary.
  virtual std::string decode(const std::vector<std::int64_t>& tokens) const = 0;
  /// What a checkpoint notes of the data: the characters of the vocabulary; empty without one.
  virtual std::string symbols() const { return {}; }
  /// What tells its tokenizer from others: how many tokens it has, and a checksum; empty: there is none.
  virtual std::string tokenizer() const { return {}; }
  /// What tells these data from others: how many there are, and a checksum; empty: nothing does.
  virtual std::string digest() const { return {}; }

 private:
  BatchShare share_;
};

/// Opens what `path` names for a model: for text a text file (its characters are the tokens), a file of tokens as
/// llm.c writes it (`.bin`) or as NumPy writes a line of 16 or 32 bits (`.npy`), or a folder with one `*train*` and one
/// `*val*` of them; for images a folder with IDX files under MNIST's or EMNIST's names (plain or .gz; the test set
/// alone is split 80/20), an IDX file of images beside its labels, a folder with the batches of CIFAR-10 or CIFAR-100,
/// or one such batch. The model's classes are those of the data: 10 or, where labels go further, one more than the
/// largest; CIFAR-100's are the fine labels. "synthetic" makes data of the model's sizes. Texts and single
/// token files are split 90/10, single image files 80/20. Images are normalised by their measured mean and deviation.
/// Models that learn hidden tokens get windows with 15 % of them hidden (nn/data/masking.h); characters then have one
/// token more, [MASK]. `name` is the model's, whose sizes are those it would have.
///
/// `tokenizer` is a tokenizer.json (nn/tokens/tokenizer_file.h), for the GPT family: a text is then read as its tokens,
/// whose number is the model's vocabulary, and is held in memory as such, 2 bytes a token up to 65,536 of them, else 4.
/// Files of tokens keep theirs, and are shown by it.
///
/// Throws FileError, ValueError naming the path and what is looked for.
std::unique_ptr<Dataset> open_dataset(const std::string& path, const Model& model, std::string_view name,
                                      std::uint64_t seed, const std::string& tokenizer = {});

/// "crc32c 1a2b3c4d".
std::string sum_text(std::uint32_t sum);

}  // namespace thimble::models
