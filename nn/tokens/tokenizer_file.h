#pragma once
// Hugging Face's tokenizer.json (huggingface/tokenizers, version "1.0" of the file), as GPT-2, Llama 3 and Qwen 2.5
// have it. What would change a token and is not known here is refused:
//
//   key               allowed
//   added_tokens      `single_word` false; ids as Tokenizer wants them
//   normalizer        null, NFC
//   pre_tokenizer     ByteLevel with `use_regex` true (GPT-2's pattern); a Sequence of a Split at one of the three
//                     patterns (nn/tokens/tokenizer.h; behavior Isolated) and ByteLevel with `use_regex` false.
//                     `add_prefix_space` false
//   post_processor    null, ByteLevel, TemplateProcessing of special tokens around one text, a Sequence of these
//   decoder           ByteLevel
//   model             BPE with a token for every byte; `dropout` null, no prefix or suffix of parts of words
//   truncation, padding   null

#include <cstddef>
#include <span>
#include <string>

#include <thimble/nn/tokens/tokenizer.h>

namespace thimble::data {

/// Reads the bytes of a file; `path` is for messages. Throws FileError that names the key, its value and what is
/// allowed: what is not JSON, a key that is there twice, missing or unknown, and what the table above does not have.
Tokenizer parse_tokenizer(std::span<const std::byte> file, const std::string& path);

/// Reads a file of at most 256 MiB. Throws as parse_tokenizer.
Tokenizer read_tokenizer(const std::string& path);

/// The text of a file that `tokenizers` and parse_tokenizer read.
std::string format_tokenizer(const TokenizerParts& parts);

/// Writes it; the file appears under its name only when complete. Throws FileError.
void write_tokenizer(const std::string& path, const Tokenizer& tokenizer);

}  // namespace thimble::data
