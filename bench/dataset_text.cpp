#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include <thimble/bench/dataset.h>
#include <thimble/bench/units.h>
#include <thimble/core/bytes.h>
#include <thimble/core/copy.h>
#include <thimble/core/crc32c.h>
#include <thimble/core/error.h>
#include <thimble/models/bert.h>
#include <thimble/nn/data/masking.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/data/text.h>
#include <thimble/nn/data/tokens.h>

namespace thimble::bench {
namespace dataset_text_detail {

constexpr std::size_t synthetic_bytes = std::size_t{1} << 20;

models::Batch to_batch(const std::vector<std::int64_t>& inputs, const std::vector<std::int64_t>& targets,
                       std::int64_t samples, bool is_masked, Device device) {
  const Shape shape{samples, static_cast<std::int64_t>(inputs.size()) / samples};  // (B, T)
  models::Batch batch{from_host(inputs, shape, device, Category::input),
                      from_host(targets, shape, device, Category::input)};
  if (is_masked) batch.counts = models::count_targets(targets, samples);  // else all of them count
  return batch;
}

// Both parts as tokens. `Token` is std::uint8_t with a vocabulary of characters, std::uint16_t without.
template <class Token>
class Text final : public Dataset {
 public:
  /// `is_masked`: samples hide some of their tokens, which are the targets; else targets are the next tokens.
  Text(std::vector<Token> train, std::vector<Token> validation, std::optional<data::CharVocabulary> vocabulary,
       bool is_masked)
      : train_(std::move(train)),
        validation_(std::move(validation)),
        vocabulary_(std::move(vocabulary)),
        is_masked_(is_masked) {
    std::uint32_t sum = crc32c(symbols());
    for (const std::vector<Token>* part : {&train_, &validation_}) sum = crc32c(bytes_of(*part), sum);
    digest_ =
        format_grouped(static_cast<std::int64_t>(train_.size() + validation_.size())) + " tokens, " + sum_text(sum);
  }

  void fit(models::ModelOptions& sizes) const override {
    if (vocabulary_) sizes.vocabulary = vocabulary_->size() + (is_masked_ ? 1 : 0);  // [MASK] comes last
  }

  void open(const models::ModelOptions& sizes, std::int64_t samples, std::uint64_t seed) override {
    for (const std::vector<Token>* part : {&train_, &validation_}) {
      const auto largest = std::max_element(part->begin(), part->end());
      if (largest != part->end() && *largest >= sizes.vocabulary) {
        throw ValueError("data: token " + std::to_string(*largest) + " is outside of the model's vocabulary of " +
                         std::to_string(sizes.vocabulary));
      }
      if (static_cast<std::int64_t>(part->size()) <= sizes.sequence) {
        throw ValueError("data: " + std::to_string(part->size()) + " tokens to " +
                         (part == &train_ ? "train on" : "validate with") + "; samples of " +
                         std::to_string(sizes.sequence) + " need more than that (--seq)");
      }
    }
    samples_ = samples;
    seed_ = seed;
    masking_.mask_token = models::bert_mask_token(sizes.vocabulary);
    masking_.vocabulary = vocabulary_ ? vocabulary_->size() : sizes.vocabulary;
    train_source_.emplace(std::span<const Token>(train_), sizes.sequence, samples, seed);
    validation_source_.emplace(std::span<const Token>(validation_), sizes.sequence, samples, seed);
  }

  models::Batch batch(std::int64_t step, Device device, DType) const override {
    std::vector<std::int64_t> inputs(static_cast<std::size_t>(samples_ * items_per_sample())), targets(inputs.size());
    train_source_->batch(step, std::span(inputs), std::span(targets));
    if (is_masked_) hide(inputs, targets, seed_, step);
    return to_batch(inputs, targets, samples_, is_masked_, device);
  }

  std::int64_t validation_batches() const override { return (validation_source_->windows() + samples_ - 1) / samples_; }

  models::Batch validation_batch(std::int64_t index, Device device, DType) const override {
    const std::int64_t first = index * samples_, count = std::min(samples_, validation_source_->windows() - first);
    const auto seq = static_cast<std::size_t>(items_per_sample());
    std::vector<std::int64_t> inputs(static_cast<std::size_t>(count) * seq), targets(inputs.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * seq;
      validation_source_->window(first + i, std::span(inputs).subspan(at, seq), std::span(targets).subspan(at, seq));
    }
    if (is_masked_) hide(inputs, targets, validation_seed, index);
    return to_batch(inputs, targets, count, is_masked_, device);
  }

  std::int64_t items_per_sample() const override { return train_source_->sampler().seq(); }

  std::string decode(const std::vector<std::int64_t>& tokens) const override {
    if (vocabulary_) return vocabulary_->decode(std::vector<std::uint8_t>(tokens.begin(), tokens.end()));
    std::string text;
    for (const std::int64_t token : tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
    return text;
  }
  std::string symbols() const final { return vocabulary_ ? vocabulary_->symbols() : std::string(); }

  std::string digest() const override { return digest_; }

 private:
  // The same places of the validation part are hidden in every run.
  static constexpr std::uint64_t validation_seed = 0;

  void hide(std::vector<std::int64_t>& inputs, std::vector<std::int64_t>& targets, std::uint64_t seed,
            std::int64_t step) const {
    data::mask_windows(inputs, targets, items_per_sample(), seed, step, masking_);
  }

  std::vector<Token> train_, validation_;
  std::optional<data::CharVocabulary> vocabulary_;
  bool is_masked_;
  std::string digest_;
  data::MaskingOptions masking_;
  std::int64_t samples_ = 0;
  std::uint64_t seed_ = 0;
  std::optional<data::TokenSource<Token>> train_source_, validation_source_;
};

std::unique_ptr<Dataset> from_characters(data::TextData text, bool is_masked) {
  return std::make_unique<Text<std::uint8_t>>(std::move(text.train), std::move(text.validation),
                                              std::move(text.vocabulary), is_masked);
}

std::unique_ptr<Dataset> from_token_file(const std::string& path, bool is_masked) {
  std::vector<std::uint16_t> train = data::read_tokens(path);
  const auto border = train.begin() + static_cast<std::ptrdiff_t>(train.size() / 10 * 9 + train.size() % 10 * 9 / 10);
  std::vector<std::uint16_t> validation(border, train.end());
  train.erase(border, train.end());
  return std::make_unique<Text<std::uint16_t>>(std::move(train), std::move(validation), std::nullopt, is_masked);
}

// The one `*part*.bin` of a folder.
std::string token_file(const std::string& folder, const std::string& part) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".bin" && name.find(part) != std::string::npos) {
      found.push_back(entry.path().string());
    }
  }
  if (found.size() != 1) {
    throw ValueError("--data: '" + folder + "' has " + std::to_string(found.size()) + " files named *" + part +
                     "*.bin; a text file, a token file (.bin), or a folder with one *train*.bin and one *val*.bin "
                     "is allowed");
  }
  return found[0];
}

}  // namespace dataset_text_detail

std::unique_ptr<Dataset> open_text(const std::string& path, std::string_view model, bool is_masked,
                                   std::uint64_t seed) {
  namespace detail = dataset_text_detail;
  if (path == "synthetic") {
    return detail::from_characters(data::split_text(data::synthetic_text(detail::synthetic_bytes, seed)), is_masked);
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return std::make_unique<detail::Text<std::uint16_t>>(data::read_tokens(detail::token_file(path, "train")),
                                                         data::read_tokens(detail::token_file(path, "val")),
                                                         std::nullopt, is_masked);
  }
  if (std::filesystem::path(path).extension() == ".bin") return detail::from_token_file(path, is_masked);
  if (model != "char-gpt" && !is_masked) {
    throw ValueError("--data: '" + path + "': " + std::string(model) +
                     " trains on token files (.bin) or synthetic text; text files are for char-gpt and bert");
  }
  return detail::from_characters(data::read_text(path), is_masked);
}

}  // namespace thimble::bench
