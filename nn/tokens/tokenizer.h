#pragma once
// Byte-level BPE, as GPT-2, Llama 3 and Qwen 2.5 use it: text to tokens and back. Encoding is, in this order:
//
//   added tokens   the text is split at them; the rest goes on
//   normalizer     Normalization Form C, or none
//   words          a pattern cuts the rest into words
//   merges         the bytes of a word are its first tokens, pairs of which merge
//
// nn/tokens/tokenizer_file.h reads the file that describes one.
//
//   const data::Tokenizer tokenizer = data::read_tokenizer("tokenizer.json");
//   const std::vector<std::uint32_t> tokens = tokenizer.encode("Hello, world");
//   tokenizer.decode(tokens);  // "Hello, world"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace thimble::data {

// ---- Text as Unicode characters: their classes, and Normalization Form C (utf8proc).
//
// Text is bytes. Where they are not UTF-8 (RFC 3629), each byte is a character of its own: no letter, number or space,
// which nothing combines with. So no byte is ever lost or changed for not being UTF-8.

/// What patterns of tokenizers ask: \p{L}, \p{N}, \s (the property White_Space), or none of these.
enum class CharacterClass : std::uint8_t { other, letter, number, space };

struct Character {
  std::uint32_t code;  ///< its code point; for a byte that is not UTF-8 above all code points
  std::size_t bytes;   ///< in the text
};

/// The character that `text` has at byte `at`, which is below its size.
Character character_at(std::string_view text, std::size_t at);

/// Appends a code point in UTF-8.
void append_character(std::string& text, std::uint32_t code);

CharacterClass class_of(std::uint32_t code);

/// The text in Normalization Form C (Unicode Standard Annex #15).
std::string to_nfc(std::string_view text);

// ---- Bytes as printable characters, as GPT-2's vocabulary and all after it write their tokens: "Ġthe" is " the"
// (openai/gpt-2, encoder.py, bytes_to_unicode).

/// The character that stands for a byte: itself where Latin-1 has a visible one, else one from U+0100 on.
std::uint32_t letter_of(std::uint8_t byte);

/// Bytes from their letters in UTF-8; none where a character stands for no byte.
std::optional<std::string> from_letters(std::string_view letters);

// ---- Tokens that a text is split at before anything else: "<|endoftext|>" and the like.

struct AddedToken {
  std::uint32_t id = 0;
  std::string content;         ///< its text
  bool is_special = false;     ///< decode() can leave it out
  bool strips_left = false;    ///< spaces before it belong to it (lstrip)
  bool strips_right = false;   ///< and those after it (rstrip)
  bool is_normalized = false;  ///< looked for, in the form that its own text takes, after the text was normalized
};

/// Finds texts of a list in another text.
class TextFinder {
 public:
  struct Found {
    std::size_t number;  ///< in the list
    std::size_t begin, end;
  };

  TextFinder() = default;
  /// Texts that are not empty.
  explicit TextFinder(const std::vector<std::string>& texts);

  /// The first place from `from` on where one of them stands; of several there the longest.
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, std::size_t>> sorted_;  // text, number
  std::array<bool, 256> is_first_{};                         // by a text's first byte
};

// ---- Byte-pair encoding of a word (Sennrich, Haddow, Birch, arXiv:1508.07909, section 3.2): of all pairs of
// neighbours that may merge, the one of the lowest rank merges first, the leftmost where it is there several times.

class MergeTable {
 public:
  struct Waiting {
    std::uint32_t rank, at, result;
  };
  /// Of apply(), for its next call.
  struct Room {
    std::vector<std::uint32_t> before, after;
    std::vector<Waiting> waiting;
  };

  /// `left` followed by `right` becomes `result`; ranks are the order of the calls. False: the pair has one already.
  bool add(std::uint32_t left, std::uint32_t right, std::uint32_t result);

  /// Merges the tokens of a word until no pair may merge, in O(n log n) for n tokens, which are fewer than 2^32 - 1.
  void apply(std::vector<std::uint32_t>& tokens, Room& room) const;

 private:
  struct Merge {
    std::uint32_t rank, result;
  };

  const Merge* find(std::uint32_t left, std::uint32_t right) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
};

// ---- How a text is cut into words before its bytes are merged: the patterns of GPT-2, Llama 3 and Qwen 2.5, each as a
// scanner. No merge goes beyond a word.

enum class WordPattern : std::uint8_t { gpt2, llama3, qwen2 };

inline constexpr std::array word_patterns{WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2};

/// "gpt2", "llama3", "qwen2".
std::string_view to_string(WordPattern pattern);
/// The regular expression as the tokenizer's file has it.
std::string_view regex_of(WordPattern pattern);
/// The pattern of this regular expression.
std::optional<WordPattern> find_word_pattern(std::string_view regex);

/// Where the word ends that begins at byte `at` of `text`, which is below its size: what the regular expression matches
/// there. Every character is in some word.
std::size_t end_of_word(WordPattern pattern, std::string_view text, std::size_t at);

/// What a tokenizer is made of.
struct TokenizerParts {
  struct Merge {
    std::uint32_t left, right, result;
  };

  std::vector<std::string> vocabulary;  ///< by id, in letters; each byte has one
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

  /// The tokens of a text of less than 2^32 - 1 bytes (ValueError). Bytes that are not UTF-8 are kept as they are.
  /// Without a normalizer and tokens that strip, decode() gives the very bytes again.
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
