#pragma once
// Byte-level BPE of GPT-2, Llama 3 and Qwen 2.5: text to tokens and back. Encoding has four steps:
//
//   added tokens   split the text
//   normalizer     Normalization Form C, or none, of the rest
//   words          a pattern cuts the rest into words
//   merges         a word's bytes are its first tokens; pairs of tokens merge
//
// nn/tokens/tokenizer_file.h reads a tokenizer's file.
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
// Text is bytes. Each byte that is not UTF-8 (RFC 3629) is a character: no letter, number or space, and nothing
// combines with it. So invalid UTF-8 is never lost or changed.

/// The classes in tokenizers' patterns: \p{L}, \p{N}, \s (the property White_Space), or none of these.
enum class CharacterClass : std::uint8_t { other, letter, number, space };

struct Character {
  std::uint32_t code;  ///< code point; for a byte that is not UTF-8, a code above all code points
  std::size_t bytes;   ///< in the text
};

/// The character of `text` at byte `at`, which must be below text.size().
Character character_at(std::string_view text, std::size_t at);

/// Appends a code point in UTF-8.
void append_character(std::string& text, std::uint32_t code);

CharacterClass class_of(std::uint32_t code);

/// The text in Normalization Form C (Unicode Standard Annex #15).
std::string to_nfc(std::string_view text);

// ---- Bytes as printable characters ("letters") in the tokens of GPT-2's and later vocabularies: "Ġthe" is " the"
// (openai/gpt-2, encoder.py, bytes_to_unicode).

/// The letter of a byte: itself if it is visible in Latin-1, otherwise a character from U+0100 on.
std::uint32_t letter_of(std::uint8_t byte);

/// Bytes from letters in UTF-8; nullopt if a character is no letter.
std::optional<std::string> from_letters(std::string_view letters);

// ---- Added tokens, such as "<|endoftext|>", split a text first.

struct AddedToken {
  std::uint32_t id = 0;
  std::string content;         ///< its text
  bool is_special = false;     ///< decode() can leave it out
  bool strips_left = false;    ///< includes spaces before it (lstrip)
  bool strips_right = false;   ///< includes spaces after it (rstrip)
  bool is_normalized = false;  ///< its normalized text is searched for in the normalized text
};

/// Finds texts of a list in another text.
class TextFinder {
 public:
  struct Found {
    std::size_t number;  ///< in the list
    std::size_t begin, end;
  };

  TextFinder() = default;
  /// The texts must not be empty.
  explicit TextFinder(const std::vector<std::string>& texts);

  /// The first occurrence from `from` on, the longest of several at one place.
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, std::size_t>> sorted_;  // text, number
  std::array<bool, 256> is_first_{};                         // by a text's first byte
};

// ---- Byte-pair encoding of a word (Sennrich, Haddow, Birch, arXiv:1508.07909, section 3.2): the neighbours with the
// lowest rank merge first, the leftmost pair of equal rank.

class MergeTable {
 public:
  struct Waiting {
    std::uint32_t rank, at, result;
  };
  /// Buffers that calls of apply() reuse.
  struct Room {
    std::vector<std::uint32_t> before, after;
    std::vector<Waiting> waiting;
  };

  /// `left` followed by `right` becomes `result`; ranks are the order of the calls. False if the pair merges already.
  bool add(std::uint32_t left, std::uint32_t right, std::uint32_t result);

  /// Merges the tokens of a word until no pair can merge, in O(n log n) for n < 2^32 - 1 tokens.
  void apply(std::vector<std::uint32_t>& tokens, Room& room) const;

 private:
  struct Merge {
    std::uint32_t rank, result;
  };

  const Merge* find(std::uint32_t left, std::uint32_t right) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
};

// ---- The patterns of GPT-2, Llama 3 and Qwen 2.5, each as a scanner, cut a text into words before bytes merge. No
// merge crosses words.

enum class WordPattern : std::uint8_t { gpt2, llama3, qwen2 };

inline constexpr std::array word_patterns{WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2};

/// "gpt2", "llama3", "qwen2".
std::string_view to_string(WordPattern pattern);
/// The regular expression in the tokenizer's file.
std::string_view regex_of(WordPattern pattern);
/// The pattern of this regular expression, if it is known.
std::optional<WordPattern> find_word_pattern(std::string_view regex);

/// The end of the word, the regular expression's match, that begins at byte `at` of `text`, which must be below
/// text.size(). Every character belongs to a word.
std::size_t end_of_word(WordPattern pattern, std::string_view text, std::size_t at);

struct TokenizerParts {
  struct Merge {
    std::uint32_t left, right, result;
  };

  std::vector<std::string> vocabulary;  ///< by id, in letters; each byte has a token
  std::vector<Merge> merges;            ///< by rank
  std::vector<AddedToken> added;  ///< ids follow the vocabulary's in order, or repeat a vocabulary token with its text
  WordPattern pattern = WordPattern::gpt2;
  bool is_nfc = false;                        ///< normalize text to Normalization Form C
  bool ignores_merges = false;                ///< a word of the vocabulary becomes its token without merging
  std::vector<std::uint32_t> prefix, suffix;  ///< tokens around a text, such as "begin of text"
};

class Tokenizer {
 public:
  /// Throws ValueError that names the invalid part and the expected one: an empty or repeated token, a byte without a
  /// token, a merge of unknown tokens, to another token than their concatenation, or of a pair that merges already; an
  /// added token without text, repeated or with a wrong id; a prefix or suffix beyond the tokens.
  explicit Tokenizer(TokenizerParts parts);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  const TokenizerParts& parts() const noexcept { return parts_; }
  /// Number of tokens: ids are below it, and a model's vocabulary has at least as many rows.
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  /// The id of a token, given as an added token's text or in the vocabulary's letters. Throws ValueError if there is
  /// none.
  std::uint32_t id_of(std::string_view token) const;

  struct EncodeOptions {
    bool adds_ends = false;              ///< prefix and suffix around the tokens
    bool takes_special_as_text = false;  ///< for untrusted text: special tokens in it stay text
  };

  /// The tokens of a text of less than 2^32 - 1 bytes (else ValueError). Keeps bytes that are not UTF-8. Without a
  /// normalizer and tokens that strip, decode() restores the bytes.
  std::vector<std::uint32_t> encode(std::string_view text, const EncodeOptions& options) const;
  std::vector<std::uint32_t> encode(std::string_view text) const { return encode(text, {}); }

  /// The bytes of tokens, which may end inside a UTF-8 character. Throws ValueError naming the first token that is not
  /// below size().
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
  std::unordered_map<std::string, std::uint32_t> words_;     // by bytes; only if merges are ignored
  // Finders for added tokens before and after normalization, and the tokens' indices in parts_.added.
  TextFinder raw_, normalized_;
  std::vector<std::size_t> raw_places_, normalized_places_;
};

}  // namespace thimble::data
