#include <thimble/models/datasets/dataset_text.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/units.h>
#include <thimble/models/bert/bert.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/nn/data/masking.h>
#include <thimble/nn/data/sampler.h>
#include <thimble/nn/data/store.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/tokens/tokenizer_file.h>

namespace thimble::models {
namespace {

constexpr std::string_view hexadecimal_digits = "0123456789abcdef";

}  // namespace

std::vector<std::int64_t> TokenText::encode(std::string_view text) const {
  if (characters_) {
    const std::vector<std::uint8_t> tokens = characters_->encode(text);
    return {tokens.begin(), tokens.end()};
  }
  if (!tokenizer_) throw ValueError("text: there are neither characters nor a tokenizer to read it by");
  const std::vector<std::uint32_t> tokens = tokenizer_->encode(text);
  return {tokens.begin(), tokens.end()};
}

std::string TokenText::decode(const std::vector<std::int64_t>& tokens) const {
  if (characters_) return characters_->decode(std::vector<std::uint8_t>(tokens.begin(), tokens.end()));
  std::string text;
  for (const std::int64_t token : tokens) {
    if (!tokenizer_) {
      text += (text.empty() ? "" : " ") + std::to_string(token);
      continue;
    }
    const auto id = static_cast<std::uint32_t>(token);
    text += token < tokenizer_->size() ? tokenizer_->decode({&id, 1}) : "\uFFFD";
  }
  return text;
}

std::string TokenText::tokenizer_sum() const {
  if (!tokenizer_) return {};
  const std::string file = data::format_tokenizer(tokenizer_->parts());
  return format_grouped(tokenizer_->size()) + " tokens, " + sum_text(crc32c(std::as_bytes(std::span(file))));
}

std::string to_hexadecimal(std::string_view symbols) {
  std::string text;
  for (const char c : symbols) {
    const auto byte = static_cast<unsigned char>(c);
    text += {hexadecimal_digits[byte >> 4], hexadecimal_digits[byte & 15]};
  }
  return text;
}

std::string from_hexadecimal(std::string_view digits) {
  std::string symbols;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const std::size_t high = hexadecimal_digits.find(digits[i]);
    const std::size_t low = hexadecimal_digits.find(i + 1 < digits.size() ? digits[i + 1] : ' ');
    if (high == std::string_view::npos || low == std::string_view::npos) {
      throw ValueError("characters: " + quote(digits) + " are not pairs of hexadecimal digits");
    }
    symbols += static_cast<char>(high << 4 | low);
  }
  return symbols;
}

namespace {

constexpr std::size_t synthetic_bytes = std::size_t{1} << 20;
constexpr std::uint64_t most_text_bytes = (std::uint64_t{1} << 32) - 2;  // the limit of tokenizers

// Both splits as tokens.
class Text final : public Dataset {
 public:
  /// `is_masked`: samples hide some tokens, which are the targets; else targets are the next tokens.
  Text(data::TokenStore train, data::TokenStore validation, TokenText text, bool is_masked)
      : train_(std::move(train)), validation_(std::move(validation)), text_(std::move(text)), is_masked_(is_masked) {
    const std::uint32_t sum = validation_.checksum(train_.checksum(crc32c(symbols())));
    digest_ = format_grouped(train_.size() + validation_.size()) + " tokens, " + sum_text(sum);
  }

  void fit(ModelOptions& sizes) const override {
    const auto& characters = text_.characters();
    if (characters) sizes.vocabulary = characters->size() + (is_masked_ ? 1 : 0);  // [MASK] comes last
    if (text_.tokenizer() && sizes.vocabulary == 0) sizes.vocabulary = text_.tokenizer()->size();
  }

  void open(const ModelOptions& sizes, std::int64_t samples, std::uint64_t seed) override {
    for (data::TokenStore* part : {&train_, &validation_}) {
      const std::int64_t largest = part->largest();
      if (largest >= sizes.vocabulary) {
        throw ValueError("`data`: " + quote(path, 200) + ": token " + std::to_string(largest) +
                         " is outside of the model's vocabulary of " + std::to_string(sizes.vocabulary));
      }
      if (part->size() <= sizes.sequence) {
        throw ValueError("`data`: " + quote(path, 200) + ": " + std::to_string(part->size()) + " tokens to " +
                         (part == &train_ ? "train on" : "validate with") + "; samples of " +
                         std::to_string(sizes.sequence) + " need more than that (`sequence`)");
      }
      part->set_vocabulary(sizes.vocabulary);
    }
    samples_ = samples;
    seed_ = seed;
    masking_.mask_token = bert_mask_token(sizes.vocabulary);
    masking_.vocabulary = text_.characters() ? text_.characters()->size() : sizes.vocabulary;
    sampler_.emplace(train_.size(), sizes.sequence, samples, seed);
  }

  Batch batch(std::int64_t step, memory::Device device, DType) const override {
    const std::int64_t each = samples_ / share().parts();
    return make(each * share().micro_batches, device,
                [&](std::span<std::int64_t> inputs, std::span<std::int64_t> targets) {
                  const std::vector<std::int64_t> starts = sampler_->starts(step);
                  for (std::int64_t m = 0; m < share().micro_batches; ++m) {
                    const std::int64_t first = share().part(m) * each;
                    for (std::int64_t i = 0; i < each; ++i) {
                      read(train_, starts[static_cast<std::size_t>(first + i)], static_cast<std::size_t>(m * each + i),
                           inputs, targets);
                    }
                    if (is_masked_)
                      hide(windows_of(inputs, m * each, each), windows_of(targets, m * each, each), seed_, step, first);
                  }
                });
  }

  std::int64_t validation_batches() const override { return (windows() + samples_ - 1) / samples_; }

  Batch validation_batch(std::int64_t index, memory::Device device, DType) const override {
    const std::int64_t first = index * samples_, count = std::min(samples_, windows() - first);
    return make(count, device, [&](std::span<std::int64_t> inputs, std::span<std::int64_t> targets) {
      for (std::int64_t i = 0; i < count; ++i) {
        read(validation_, (first + i) * items_per_sample(), static_cast<std::size_t>(i), inputs, targets);
      }
      if (is_masked_) hide(inputs, targets, validation_seed, index, 0);
    });
  }

  std::int64_t items_per_sample() const override { return sampler_->seq(); }
  std::size_t heap_bytes() const override {
    return train_.heap_bytes() + (train_.shares_heap(validation_) ? 0 : validation_.heap_bytes());
  }

  std::string decode(const std::vector<std::int64_t>& tokens) const override { return text_.decode(tokens); }
  std::string symbols() const final { return text_.symbols(); }
  std::string tokenizer() const override { return text_.tokenizer_sum(); }
  std::string digest() const override { return digest_; }

 private:
  // Fixed, so that every run hides the same places of the validation split.
  static constexpr std::uint64_t validation_seed = 0;

  /// The number of adjacent windows in the validation split.
  std::int64_t windows() const { return (validation_.size() - 1) / items_per_sample(); }

  /// Window number `row` of a batch: inputs from `start` on, targets one later.
  void read(const data::TokenStore& tokens, std::int64_t start, std::size_t row, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const {
    const auto seq = static_cast<std::size_t>(items_per_sample());
    tokens.read(start, inputs.subspan(row * seq, seq));
    tokens.read(start + 1, targets.subspan(row * seq, seq));
  }

  std::span<std::int64_t> windows_of(std::span<std::int64_t> tokens, std::int64_t first, std::int64_t count) const {
    const std::int64_t seq = items_per_sample();
    return tokens.subspan(static_cast<std::size_t>(first * seq), static_cast<std::size_t>(count * seq));
  }

  /// Hides tokens of a step's windows, numbered from `first` on.
  void hide(std::span<std::int64_t> inputs, std::span<std::int64_t> targets, std::uint64_t seed, std::int64_t step,
            std::int64_t first) const {
    data::mask_windows(inputs, targets, items_per_sample(), seed, step, masking_, first);
  }

  // `fill(inputs, targets)` writes a batch of `count` windows, on the cpu straight into its tensors; not called on a
  // dry device.
  template <class Fill>
  Batch make(std::int64_t count, memory::Device device, Fill&& fill) const {
    const Shape shape{count, items_per_sample()};  // (B, T)
    if (device.is_cuda() && !device.is_dry) {
      std::vector<std::int64_t> inputs(static_cast<std::size_t>(shape.elements())), targets(inputs.size());
      fill(std::span(inputs), std::span(targets));
      return with_counts({from_host(inputs, shape, device, memory::Category::input),
                          from_host(targets, shape, device, memory::Category::input)},
                         targets);
    }
    Batch batch{Tensor::empty(shape, DType::i64, device, memory::Category::input),
                Tensor::empty(shape, DType::i64, device, memory::Category::input)};
    if (device.is_dry) return batch;
    const memory::WritePin inputs(batch.input), targets(batch.target);
    const auto elements = static_cast<std::size_t>(shape.elements());
    const std::span to(static_cast<std::int64_t*>(targets.data()), elements);
    fill(std::span(static_cast<std::int64_t*>(inputs.data()), elements), to);
    return with_counts(std::move(batch), to);
  }

  // With hidden tokens, counts each sample's targets; else all targets count.
  Batch with_counts(Batch batch, std::span<const std::int64_t> targets) const {
    if (is_masked_) batch.counts = count_targets(targets, batch.target.size(0));
    return batch;
  }

  data::TokenStore train_, validation_;
  TokenText text_;
  bool is_masked_;
  std::string digest_;
  data::MaskingOptions masking_;
  std::int64_t samples_ = 0;
  std::uint64_t seed_ = 0;
  std::optional<data::WindowSampler> sampler_;
};

/// Nine tenths for training, rounded down, and the rest for validation.
std::unique_ptr<Dataset> split_90_10(const data::TokenStore& tokens, TokenText text, bool is_masked) {
  const std::int64_t train = tokens.size() / 10 * 9 + tokens.size() % 10 * 9 / 10;
  return std::make_unique<Text>(tokens.part(0, train), tokens.part(train, tokens.size() - train), std::move(text),
                                is_masked);
}

std::unique_ptr<Dataset> from_text_file(const std::string& path, bool is_masked) {
  const auto file = std::make_shared<const InputFile>(path);
  const data::CharVocabulary vocabulary = data::vocabulary_of(*file);
  return split_90_10(data::TokenStore(data::ByteStore(file, 0, file->bytes()), vocabulary), TokenText(vocabulary),
                     is_masked);
}

std::unique_ptr<Dataset> from_characters(const std::string& text, bool is_masked) {
  const data::CharVocabulary vocabulary(text);
  return split_90_10(data::TokenStore(data::ByteStore(std::vector<std::uint8_t>(text.begin(), text.end())), vocabulary),
                     TokenText(vocabulary), is_masked);
}

/// A text as tokens in 2 or, for large vocabularies, 4 bytes each.
std::unique_ptr<Dataset> from_tokenizer(std::string_view text, std::shared_ptr<const data::Tokenizer> tokenizer) {
  const std::vector<std::uint32_t> tokens = tokenizer->encode(text);
  const std::size_t each = tokenizer->size() <= 65536 ? 2 : 4;
  std::vector<std::uint8_t> bytes(each * tokens.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(tokens[i / each] >> (8 * (i % each)));
  }
  return split_90_10(data::TokenStore(data::ByteStore(std::move(bytes)), static_cast<int>(each)),
                     TokenText(std::move(tokenizer)), false);
}

bool is_token_file(const std::filesystem::path& path) {
  return path.extension() == ".bin" || path.extension() == ".npy";
}

// The only token file `*part*` in a folder.
std::string token_file(const std::string& folder, const std::string& part) {
  std::vector<std::string> found;
  for (const std::string& name : names_in(folder)) {
    if (is_token_file(name) && name.find(part) != std::string::npos) {
      found.push_back((std::filesystem::path(folder) / name).string());
    }
  }
  if (found.size() != 1) {
    throw ValueError(
        "`data`: '" + folder + "' has " + std::to_string(found.size()) + " files named *" + part +
        "*.bin or .npy; expected a text file, a token file (.bin, .npy), or a folder with a token file *train* "
        "and one *val*");
  }
  return found[0];
}

}  // namespace

std::unique_ptr<Dataset> open_text(const std::string& path, std::string_view model, bool is_masked, std::uint64_t seed,
                                   const std::string& tokenizer_path) {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  if (!tokenizer_path.empty()) {
    tokenizer = std::make_shared<const data::Tokenizer>(data::read_tokenizer(tokenizer_path));
  }
  if (path == "synthetic") {
    const std::string text = data::synthetic_text(synthetic_bytes, seed);
    return tokenizer ? from_tokenizer(text, tokenizer) : from_characters(text, is_masked);
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return std::make_unique<Text>(data::open_tokens(token_file(path, "train")),
                                  data::open_tokens(token_file(path, "val")), TokenText(tokenizer), is_masked);
  }
  if (is_token_file(path)) return split_90_10(data::open_tokens(path), TokenText(tokenizer), is_masked);
  if (tokenizer) {
    const std::vector<std::byte> text = read_whole_file(path, most_text_bytes);
    return from_tokenizer({reinterpret_cast<const char*>(text.data()), text.size()}, tokenizer);
  }
  if (model != "char-gpt" && model != "tiny-llama" && !is_masked) {
    throw ValueError(
        "`data`: '" + path + "': " + std::string(model) +
        " trains on token files (.bin, .npy) or synthetic text; text files are for char-gpt, tiny-llama and bert, "
        "or with a `tokenizer`");
  }
  return from_text_file(path, is_masked);
}

}  // namespace thimble::models
