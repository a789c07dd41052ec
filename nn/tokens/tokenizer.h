#pragma once
// Byte-level BPE, as GPT-2, Llama 3 and Qwen 2.5 use it: text to tokens and back. Encoding is, in this order:
//
//   added tokens   the text is split at them; the rest goes on
//   normalizer     Normalization Form C, or none
//   words          a pattern cuts the rest into words (nn/tokens/words.h)
//   merges         the bytes of a word are its first tokens, pairs of which merge (nn/tokens/merges.h)
//
// nn/tokens/tokenizer_file.h reads the file that describes one.
//
//   const data::Tokenizer tokenizer = data::read_tokenizer("tokenizer.json");
//   const std::vector<std::uint32_t> tokens = tokenizer.encode("Hello, world");
//   tokenizer.decode(tokens);  // "Hello, world"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <thimble/nn/tokens/added_tokens.h>
#include <thimble/nn/tokens/merges.h>
#include <thimble/nn/tokens/words.h>

namespace thimble::data {

/// What a tokenizer is made of.
struct TokenizerParts {
  struct Merge {
    std::uint32_t left, right, result;
  };

  std::vector<std::string> vocabulary;  ///< by id, in letters (nn/tokens/byte_letters.h); each byte has one
  std::vector<Merge> merges;            ///< by rank
  std::vector<AddedToken> added;        ///< ids beyond the vocabulary's, in order; or its own, for the same text
  WordPattern pattern = WordPattern::gpt2;
  bool is_nfc = false;          ///< text is brought to Normalization Form C
  bool ignores_merges = false;  ///< a word that is a token of the vocabulary is that token, whatever would merge
  std::vector<std::uint32_t> prefix, suffix;  ///< tokens that stand around a text, as "begin of text"
};

class Tokenizer {
 public:
  /// Throws ValueError that names the part and the expected one: a token that is empty or there twice, a byte without a
  /// token, a merge of unknown tokens, to another token than both together, or of a pair that merges already; an added
  /// token without text, there twice or with an id that is not its own; a prefix or suffix beyond the tokens.
  explicit Tokenizer(TokenizerParts parts);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  const TokenizerParts& parts() const noexcept { return parts_; }
  /// Ids are below that: a model's vocabulary has at least as many rows.
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  /// The token of this text: of an added one, or in letters of one of the vocabulary. Throws ValueError: there is none.
  std::uint32_t id_of(std::string_view token) const;

  struct EncodeOptions {
    bool adds_ends = false;              ///< prefix and suffix around the tokens
    bool takes_special_as_text = false;  ///< special tokens in the text are not tokens: for text that others wrote
  };

  /// The tokens of a text of less than 2^32 - 1 bytes (ValueError). Bytes that are not UTF-8 are kept as they are
  /// (nn/tokens/unicode.h). Without a normalizer and tokens that strip, decode() gives the very bytes again.
  std::vector<std::uint32_t> encode(std::string_view text, const EncodeOptions& options) const;
  std::vector<std::uint32_t> encode(std::string_view text) const { return encode(text, {}); }

  /// The bytes of tokens. They are UTF-8 only where the tokens end with a character. Throws ValueError naming the first
  /// token that is not below size().
  std::string decode(std::span<const std::uint32_t> tokens, bool skips_special = false) const;

 private:
  class Encoder;
  void add_vocabulary();
  void add_merges();
  void add_tokens();
  void check_ends() const;

  TokenizerParts parts_;
  std::vector<std::string> bytes_;          // by id
  std::vector<bool> is_special_;            // by id
  std::array<std::uint32_t, 256> first_{};  // by byte
  MergeTable merges_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;  // by letters, of the vocabulary; views of parts_
  std::unordered_map<std::string, std::uint32_t> words_;     // by bytes; where merges are ignored
  // Added tokens that are looked for before and after the text is normalized, and their places in parts_.added.
  TextFinder raw_, normalized_;
  std::vector<std::size_t> raw_places_, normalized_places_;
};

}  // namespace thimble::data
