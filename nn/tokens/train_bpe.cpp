#include <thimble/nn/tokens/train_bpe.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/nn/data/require.h>
#include <thimble/nn/tokens/byte_letters.h>
#include <thimble/nn/tokens/unicode.h>

namespace thimble::data {
namespace train_bpe_detail {

using Pair = std::uint64_t;  // left << 32 | right, so that pairs have the order of their ids

Pair pair_of(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }

/// A word, and how often the text has it.
struct Word {
  std::vector<std::uint32_t> tokens;
  std::int64_t count;
};

/// A pair that may merge next. Its count may be an old one.
struct Candidate {
  std::int64_t count;
  Pair pair;
  std::vector<std::size_t> words;  // that had the pair when it was noted
};

bool is_later(const Candidate& a, const Candidate& b) {
  return a.count != b.count ? a.count < b.count : a.pair > b.pair;
}

class Trainer {
 public:
  explicit Trainer(const BpeTraining& training) : training_(training) {
    for (const std::string& token : training.special) {
      if (token.empty()) throw ValueError("train_bpe: `special`: a token without text");
      if (ids_.contains(token)) throw ValueError("train_bpe: `special`: " + quote(token) + " is there twice");
      add(token);
    }
    std::vector<std::uint32_t> letters;
    for (int byte = 0; byte < 256; ++byte) letters.push_back(letter_of(static_cast<std::uint8_t>(byte)));
    std::sort(letters.begin(), letters.end());
    for (const std::uint32_t letter : letters) {
      std::string token;
      append_character(token, letter);
      if (!ids_.contains(token)) add(token);
    }
    require_between("train_bpe: vocabulary", training.vocabulary, static_cast<std::int64_t>(vocabulary_.size()),
                    std::int64_t{1} << 24);
    require_between("train_bpe: least_count", training.least_count, 1, std::int64_t{1} << 62);
  }

  void add_words(std::string_view text) {
    std::unordered_map<std::string_view, std::size_t> places;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = end_of_word(training_.pattern, text, at);
      const std::string_view word = text.substr(at, end - at);
      at = end;
      const auto [place, is_new] = places.try_emplace(word, words_.size());
      if (!is_new) {
        ++words_[place->second].count;
        continue;
      }
      Word& added = words_.emplace_back(Word{{}, 1});
      for (const char byte : word) {
        std::string letter;
        append_character(letter, letter_of(static_cast<std::uint8_t>(byte)));
        added.tokens.push_back(ids_.at(letter));
      }
    }
  }

  void merge_all() {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const std::vector<std::uint32_t>& tokens = words_[w].tokens;
      for (std::size_t i = 1; i < tokens.size(); ++i) change(pair_of(tokens[i - 1], tokens[i]), +1, w);
    }
    note_candidates();
    while (static_cast<std::int64_t>(vocabulary_.size()) < training_.vocabulary && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), is_later);
      Candidate top = std::move(queue_.back());
      queue_.pop_back();
      if (const std::int64_t count = counts_.at(top.pair); count != top.count) {
        top.count = count;
        note(std::move(top));
        continue;
      }
      if (top.count < training_.least_count) break;
      merge(top);
    }
  }

  TokenizerParts take() && {
    TokenizerParts parts;
    // Of a pair that merged several times the last place counts.
    std::unordered_map<Pair, std::size_t> last;
    for (std::size_t i = 0; i < merges_.size(); ++i) last[pair_of(merges_[i].left, merges_[i].right)] = i;
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      if (last.at(pair_of(merges_[i].left, merges_[i].right)) == i) parts.merges.push_back(merges_[i]);
    }
    for (const std::string& token : training_.special) {
      parts.added.push_back({.id = ids_.at(token), .content = token, .is_special = true});
    }
    parts.vocabulary = std::move(vocabulary_);
    parts.pattern = training_.pattern;
    parts.is_nfc = training_.is_nfc;
    return parts;
  }

 private:
  std::uint32_t add(const std::string& token) {
    const auto id = static_cast<std::uint32_t>(vocabulary_.size());
    vocabulary_.push_back(token);
    ids_[token] = id;
    return id;
  }

  void note(Candidate&& candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end(), is_later);
  }

  /// A pair is in word `w` once more, or once less.
  void change(Pair pair, int by, std::size_t w) {
    counts_[pair] += by * words_[w].count;
    if (by < 0) return;
    std::vector<std::size_t>& places = found_[pair];
    if (places.empty() || places.back() != w) places.push_back(w);
  }

  void note_candidates() {
    for (auto& [pair, places] : found_) {
      const std::int64_t count = counts_.at(pair);
      if (count > 0) note({count, pair, std::move(places)});
    }
    found_.clear();
  }

  void merge(const Candidate& top) {
    const auto left = static_cast<std::uint32_t>(top.pair >> 32), right = static_cast<std::uint32_t>(top.pair);
    const std::string token = vocabulary_[left] + vocabulary_[right];
    const auto known = ids_.find(token);
    const std::uint32_t result = known != ids_.end() ? known->second : add(token);
    merges_.push_back({left, right, result});
    for (const std::size_t w : top.words) {
      std::vector<std::uint32_t>& tokens = words_[w].tokens;
      std::size_t size = 0;  // of what is merged so far
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool is_pair = tokens[i] == left && i + 1 < tokens.size() && tokens[i + 1] == right;
        if (!is_pair) {
          tokens[size++] = tokens[i];
          continue;
        }
        if (size > 0) {
          change(pair_of(tokens[size - 1], left), -1, w);
          change(pair_of(tokens[size - 1], result), +1, w);
        }
        if (i + 2 < tokens.size()) {
          change(pair_of(right, tokens[i + 2]), -1, w);
          change(pair_of(result, tokens[i + 2]), +1, w);
        }
        tokens[size++] = result;
        ++i;
      }
      tokens.resize(size);
    }
    note_candidates();
  }

  const BpeTraining& training_;
  std::vector<std::string> vocabulary_;  // in letters
  std::unordered_map<std::string, std::uint32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, std::int64_t> counts_;
  std::unordered_map<Pair, std::vector<std::size_t>> found_;  // pairs that are there since the last merge
  std::vector<Candidate> queue_;                              // a heap
  std::vector<TokenizerParts::Merge> merges_;
};

}  // namespace train_bpe_detail

Tokenizer train_bpe(std::string_view text, const BpeTraining& training) {
  train_bpe_detail::Trainer trainer(training);
  const std::string normalized = training.is_nfc ? to_nfc(text) : std::string();
  trainer.add_words(training.is_nfc ? std::string_view(normalized) : text);
  trainer.merge_all();
  return Tokenizer(std::move(trainer).take());
}

}  // namespace thimble::data
