#pragma once
// Learns the vocabulary and the merges of a byte-level BPE from a text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/tokens/tokenizer.h>

namespace thimble::data {

struct BpeTraining {
  std::int64_t vocabulary = 0;  ///< tokens at most: special ones, 256 bytes, and one for each merge
  WordPattern pattern = WordPattern::gpt2;
  bool is_nfc = false;                    ///< the text, and what is encoded later, is brought to Normalization Form C
  std::int64_t least_count = 1;           ///< pairs that are there less often do not merge
  std::vector<std::string> special = {};  ///< special tokens, which get the first ids
};

/// The pair of neighbours that is there most often, counted over all words of the text, merges everywhere; again and
/// again, until the vocabulary is full or no pair is left (Sennrich, Haddow, Birch, arXiv:1508.07909, section 3.2). Of
/// several pairs that are there equally often the one with the lower ids merges first. Vocabulary and merges are those
/// of BpeTrainer in Hugging Face's `tokenizers` with the 256 bytes as its initial alphabet, trained on the text as a
/// whole. Throws ValueError for a vocabulary without room for special tokens and bytes or with more than 2^24 tokens, a
/// count below 1, and a special token that is empty or there twice.
///
/// A merge walks over the words that have its pair: a text with words of megabytes takes long.
Tokenizer train_bpe(std::string_view text, const BpeTraining& training);

}  // namespace thimble::data
