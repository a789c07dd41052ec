// Byte-level BPE. expected.json holds the tokens of `tokenizers` 0.23.3 for hostile text, which also trained the small
// tokenizers in tests/fuzz/corpus/tokenizer; `tests/oracle/tokenizer_check.py fixtures tests` wrote both.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/files/bytes.h>
#include <thimble/nn/data/splitmix.h>
#include <thimble/nn/tokens/tokenizer.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tokenizers.h"

using namespace thimble;
using namespace files_test;
using data::WordPattern;
using Ids = std::vector<std::uint32_t>;

namespace {

std::string fixture(const std::string& name) {
  return read_text_file((tests_folder() / "fuzz" / "corpus" / "tokenizer" / name).string());
}

data::Tokenizer parse(const std::string& json) { return data::parse_tokenizer(bytes_of(json), "t.json"); }

nlohmann::json expected_rows() {
  return nlohmann::json::parse(read_text_file((tests_folder() / "nn" / "tokens" / "expected.json").string()));
}

/// Replaces bytes that are not UTF-8 by U+FFFD, one for each longest prefix of a character, as `tokenizers` does.
std::string with_replacements(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const data::Character c = data::character_at(bytes, at);
    if (c.code < 0x110000) {
      text += bytes.substr(at, c.bytes);
      at += c.bytes;
      continue;
    }
    std::size_t end = at + 1;
    const auto byte = [&](std::size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u; };
    const unsigned first = byte(at), second = byte(at + 1);
    const bool is_second = (second & 0xC0) == 0x80 && !(first == 0xE0 && second < 0xA0) &&
                           !(first == 0xED && second >= 0xA0) && !(first == 0xF0 && second < 0x90) &&
                           !(first == 0xF4 && second >= 0x90);
    if (first >= 0xE0 && first <= 0xF4 && is_second) {
      ++end;
      if (first >= 0xF0 && (byte(end) & 0xC0) == 0x80) ++end;
    }
    text += "\uFFFD";
    at = end;
  }
  return text;
}

/// The words of a text as one string: "a| b|".
std::string words_of(WordPattern pattern, std::string_view text) {
  std::string words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = data::end_of_word(pattern, text, at);
    words += std::string(text.substr(at, end - at)) + "|";
    at = end;
  }
  return words;
}

/// The rule of BPE step by step, in O(n^2): the reference for MergeTable.
Ids merge_slowly(Ids tokens, const std::vector<data::TokenizerParts::Merge>& merges) {
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (const auto& merge : merges) {  // the lowest rank present, at its leftmost place
      for (std::size_t i = 0; i + 1 < tokens.size() && is_done; ++i) {
        if (tokens[i] != merge.left || tokens[i + 1] != merge.right) continue;
        tokens[i] = merge.result;
        tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        is_done = false;
      }
      if (!is_done) break;
    }
  }
  return tokens;
}

data::TokenizerParts bytes_alone() {
  data::TokenizerParts parts;
  for (int byte = 0; byte < 256; ++byte) parts.vocabulary.push_back(tokenizer_test::letter_text(byte));
  return parts;
}

std::string refused(data::TokenizerParts parts) {
  try {
    data::Tokenizer tokenizer(std::move(parts));
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("tokenizer: tokens and texts are those of tokenizers", "[tokens]") {
  std::map<std::string, data::Tokenizer> tokenizers;
  for (const char* name : {"gpt2", "llama3", "qwen2"}) tokenizers.emplace(name, parse(fixture(name)));
  const nlohmann::json rows = expected_rows();
  REQUIRE(rows.size() > 100);
  for (const nlohmann::json& row : rows) {
    const data::Tokenizer& tokenizer = tokenizers.at(row.at("tokenizer"));
    const std::string text = row.at("text");
    INFO(row.at("tokenizer") << ": " << quote(text, 500));
    const Ids ids = tokenizer.encode(text);
    CHECK(ids == row.at("ids").get<Ids>());
    CHECK(tokenizer.encode(text, {.adds_ends = true}) == row.at("with_ends").get<Ids>());
    CHECK(with_replacements(tokenizer.decode(ids)) == row.at("decoded").get<std::string>());
    CHECK(with_replacements(tokenizer.decode(ids, true)) == row.at("without_special").get<std::string>());
  }
}

TEST_CASE("tokenizer: words of the three patterns", "[tokens]") {
  struct Row {
    const char *text, *gpt2, *llama3, *qwen2;
  };
  for (const Row& row : {
           Row{"I'm here", "I|'m| here|", "I|'m| here|", "I|'m| here|"},
           Row{"I'M", "I|'|M|", "I|'M|", "I|'M|"},
           Row{"a\u00e9 \u4f60", "a\u00e9| \u4f60|", "a\u00e9| \u4f60|", "a\u00e9| \u4f60|"},
           Row{" 12345", " 12345|", " |123|45|", " |1|2|3|4|5|"},
           Row{"a  b", "a| | b|", "a| | b|", "a| | b|"},
           Row{"a\t\tb", "a|\t|\t|b|", "a|\t|\tb|", "a|\t|\tb|"},
           Row{"a \n \n b", "a| \n \n| b|", "a| \n \n| b|", "a| \n \n| b|"},
           Row{"a\n\nb", "a|\n|\n|b|", "a|\n\n|b|", "a|\n\n|b|"},
           Row{"!!\r\n\r\n x", "!!|\r\n\r\n| x|", "!!\r\n\r\n| x|", "!!\r\n\r\n| x|"},
           Row{"(x) -> y", "(|x|)| ->| y|", "(x|)| ->| y|", "(x|)| ->| y|"},
           Row{"a   ", "a|   |", "a|   |", "a|   |"},
           Row{"a\u0085\u3000b", "a|\u0085|\u3000|b|", "a|\u0085|\u3000b|", "a|\u0085|\u3000b|"},
           Row{"e\u0301x", "e|\u0301|x|", "e|\u0301x|", "e|\u0301x|"},
       }) {
    INFO(quote(row.text));
    CHECK(words_of(WordPattern::gpt2, row.text) == row.gpt2);
    CHECK(words_of(WordPattern::llama3, row.text) == row.llama3);
    CHECK(words_of(WordPattern::qwen2, row.text) == row.qwen2);
  }
}

TEST_CASE("tokenizer: bytes that are not UTF-8 come out again", "[tokens]") {
  data::SplitMix random(7);
  const data::Tokenizer tokenizer = tokenizer_test::letter_pairs(600);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (std::uint64_t left = random.below(200); left > 0; --left) {
      bytes += random.below(3) == 0 ? std::string("\u4f60\xE4\xBD ", 6).substr(random.below(6))
                                    : std::string(1, static_cast<char>(random.next()));
    }
    INFO(quote(bytes, 400));
    CHECK(tokenizer.decode(tokenizer.encode(bytes)) == bytes);
  }
  // A byte outside any character is neither letter, number nor space: it belongs to a word of symbols.
  CHECK(words_of(WordPattern::gpt2, "a\xFF\xC3 b") == "a|\xFF\xC3| b|");
  CHECK(data::to_nfc("e\xCC\u0301") == "e\xCC\u0301");
}

TEST_CASE("tokenizer: Normalization Form C", "[tokens]") {
  // Unicode Standard Annex #15, figures 3 to 6, and Hangul.
  CHECK(data::to_nfc("e\u0301") == "\u00e9");
  CHECK(data::to_nfc("\u212b\u2126") == "\u00c5\u03a9");
  CHECK(data::to_nfc("s\u0323\u0307") == "\u1e69");
  CHECK(data::to_nfc("\u1e0b\u0323") == "\u1e0d\u0307");
  CHECK(data::to_nfc("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(data::to_nfc("\ufb01 2\u2075") == "\ufb01 2\u2075");
  CHECK(data::to_nfc("\u0958") == "\u0915\u093c");  // excluded from composition
  CHECK(data::to_nfc("\u1112\u1161\u11ab\u1100\u1173\u11af") == "\ud55c\uae00");
  CHECK(data::to_nfc("a\u0315\u0300\u05ae\u0302b") == "\u00e0\u05ae\u0302\u0315b");  // from NormalizationTest.txt
  CHECK(data::to_nfc("e\u0346\u0301") == "e\u0346\u0301");  // a mark of the same class blocks composition
  CHECK(data::to_nfc("e\u0316\u0301") == "\u00e9\u0316");   // one of a lower class does not
  CHECK(data::to_nfc("\u0344") == "\u0308\u0301");
  CHECK(data::to_nfc("\uac00\u11a7") == "\uac00\u11a7");  // a vowel after a syllable, no final consonant
  CHECK(data::to_nfc("e\n\u0301e\u0301\n") == "e\n\u0301\u00e9\n");
}

TEST_CASE("tokenizer: merges of words of a million bytes", "[tokens]") {
  data::TokenizerParts parts = bytes_alone();
  const auto a = static_cast<std::uint32_t>('a');
  std::uint32_t last = a;  // tokens of a, aa, aaaa, ... up to 2^16
  for (int k = 1; k <= 16; ++k) {
    const auto result = static_cast<std::uint32_t>(parts.vocabulary.size());
    parts.vocabulary.push_back(std::string(std::size_t{1} << k, 'a'));
    parts.merges.push_back({last, last, result});
    last = result;
  }
  const data::Tokenizer tokenizer(parts);
  const Ids ids = tokenizer.encode(std::string(1'000'000, 'a'));
  Ids expected(1'000'000 >> 16, last);  // then the binary digits of the rest
  for (std::uint32_t k = 15; k < 16; --k) {
    if ((1'000'000 >> k & 1) != 0) expected.push_back(k == 0 ? a : 255 + k);
  }
  CHECK(ids == expected);
}

TEST_CASE("tokenizer: merges are those of the rule step by step", "[tokens]") {
  data::SplitMix random(11);
  for (int round = 0; round < 60; ++round) {
    data::TokenizerParts parts = bytes_alone();
    data::MergeTable table;
    Ids known{'a', 'b', 'c'};
    for (int i = 0; i < 12; ++i) {
      const std::uint32_t left = known[random.below(known.size())], right = known[random.below(known.size())];
      const std::string text = parts.vocabulary[left] + parts.vocabulary[right];
      const auto place = std::find(parts.vocabulary.begin(), parts.vocabulary.end(), text);
      const auto result = static_cast<std::uint32_t>(place - parts.vocabulary.begin());
      if (!table.add(left, right, result)) continue;
      if (place == parts.vocabulary.end()) parts.vocabulary.push_back(text), known.push_back(result);
      parts.merges.push_back({left, right, result});
    }
    const data::Tokenizer tokenizer(parts);
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (std::uint64_t left = 1 + random.below(40); left > 0; --left)
        word += static_cast<char>('a' + random.below(3));
      CHECK(tokenizer.encode(word) == merge_slowly(Ids(word.begin(), word.end()), parts.merges));
    }
  }
}

TEST_CASE("tokenizer: special tokens in text that others wrote", "[tokens]") {
  const data::Tokenizer tokenizer = parse(fixture("gpt2"));
  const std::uint32_t end = tokenizer.id_of("<|endoftext|>");
  CHECK(tokenizer.encode("a<|endoftext|>b") == Ids{tokenizer.id_of("a"), end, tokenizer.id_of("b")});
  const Ids as_text = tokenizer.encode("a<|endoftext|>b", {.takes_special_as_text = true});
  CHECK(std::find(as_text.begin(), as_text.end(), end) == as_text.end());
  CHECK(tokenizer.decode(as_text) == "a<|endoftext|>b");
  CHECK(tokenizer.decode(tokenizer.encode("a<|endoftext|>b"), true) == "ab");
  CHECK_THROWS_WITH(tokenizer.decode(Ids{5, 310}), "tokenizer: token 310 at position 1; expected below 310");
  CHECK_THROWS_AS(tokenizer.id_of("no such token"), ValueError);
}

// As in `tokenizers` 0.23: an added token cannot reuse spaces that the previous one took.
TEST_CASE("tokenizer: added spaces that take the spaces around them", "[tokens]") {
  data::TokenizerParts parts = bytes_alone();
  parts.added = {{.id = 256, .content = " ", .strips_left = true, .strips_right = true}};
  CHECK(data::Tokenizer(parts).encode("a   b ") == Ids{'a', 256, 'b', 256});
  parts.added.push_back({.id = 'x', .content = "x", .strips_right = true});
  CHECK(data::Tokenizer(parts).encode("ax   b") == Ids{'a', 'x', 'b'});
}

TEST_CASE("tokenizer: parts that do not fit each other are refused", "[tokens]") {
  CHECK(refused(bytes_alone()) == "no error");
  const auto change = [](auto&& how) {
    data::TokenizerParts parts = bytes_alone();
    how(parts);
    return refused(std::move(parts));
  };
  CHECK(contains(change([](auto& p) { p.vocabulary[65] = "x"; }), "token 'x' is there twice"));
  CHECK(contains(change([](auto& p) { p.vocabulary[65] = "xx"; }), "vocabulary: no token for byte 65"));
  CHECK(contains(change([](auto& p) { p.vocabulary.push_back(""); }), "vocabulary[256]: a token without text"));
  CHECK(contains(change([](auto& p) { p.merges = {{97, 98, 256}}; }), "merges[0]: token 256; expected below 256"));
  CHECK(contains(change([](auto& p) { p.merges = {{97, 98, 99}}; }), "merges[0]: 'a' and 'b' make 'c'"));
  CHECK(contains(change([](auto& p) {
                   p.vocabulary.push_back("ab");
                   p.merges = {{97, 98, 256}, {97, 98, 256}};
                 }),
                 "merges[1]: 'a' and 'b' merge already"));
  CHECK(contains(change([](auto& p) { p.added = {{.id = 300, .content = "<s>"}}; }), "has id 300; expected 256"));
  CHECK(contains(change([](auto& p) { p.added = {{.id = 256, .content = "a"}}; }), "expected 97, its id in"));
  CHECK(contains(change([](auto& p) { p.prefix = {256}; }), "prefix: token 256; expected below 256"));
}
