#pragma once
// Fuzzing targets: each function reads arbitrary bytes as one format. An Error of the library is fine, since the file
// was refused; an accepted file that breaks a promise of the reader throws Broken. Called by the fuzzing programs in
// this folder and by tests/program/fuzz_test.cpp.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/npy.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/store.h>
#include <thimble/nn/data/tokens.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/find_data.h"

namespace fuzz {

using Bytes = std::span<const std::byte>;

class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Broken(what);
}

/// An accepted header, laid out and written again, reads the same.
inline void safetensors(Bytes file) {
  thimble::SafetensorsHeader header;
  try {
    header = thimble::parse_safetensors(file, file.size(), "fuzz");
  } catch (const thimble::FileError&) {
    return;
  }
  std::uint64_t covered = 0;
  for (const auto& tensor : header.tensors) {
    require(tensor.begin == covered, "ranges do not tile the data");
    require(header.find(tensor.name) == &tensor, "a tensor is not found by its name");
    covered = tensor.end;
  }
  require(header.data_offset + covered == file.size(), "ranges do not end with the file");
  const auto laid_out = thimble::lay_out_safetensors(header.tensors, header.metadata);
  const std::string text = thimble::format_safetensors_header(laid_out);
  const auto again = thimble::parse_safetensors(thimble::bytes_of(text), text.size() + covered, "fuzz");
  require(again.metadata == header.metadata, "metadata changed");
  require(again.tensors.size() == header.tensors.size(), "tensors were lost");
  for (const auto& tensor : header.tensors) {
    const auto* same = again.find(tensor.name);
    require(same != nullptr && same->dtype == tensor.dtype && same->shape == tensor.shape, "a tensor changed");
  }
  require(thimble::format_safetensors_header(again) == text, "writing again changes the header");
}

/// An accepted array, written again, reads the same.
inline void npy(Bytes file) {
  thimble::NpyArray array;
  try {
    array = thimble::parse_npy(file, "fuzz");
  } catch (const thimble::FileError&) {
    return;
  }
  std::string text = thimble::npy_header(array.dtype, array.shape);
  require(text.size() % 64 == 0, "the data are not aligned to 64");
  text.append(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  const thimble::NpyArray again = thimble::parse_npy(thimble::bytes_of(text), "fuzz");
  require(again.dtype == array.dtype && again.shape == array.shape && again.data == array.data, "the array changed");
}

/// Reads as IDX. Returns whether the file was accepted.
inline bool idx_accepts(Bytes file, thimble::data::IdxArray& array) {
  try {
    array = thimble::data::parse_idx(file, "fuzz");
  } catch (const thimble::FileError&) {
    return false;
  }
  require(thimble::checked_bytes(array.shape, 1) == array.values.size(), "values do not match the sizes");
  return true;
}

/// An IDX file is accepted compressed exactly when accepted plain, with equal contents; bytes after it are refused.
inline void idx(Bytes file) {
  thimble::data::IdxArray plain, packed;
  const bool is_accepted = idx_accepts(file, plain);
  if (thimble::data::is_gzip(file)) return;
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const std::string compressed = files_test::gzip(text, file.size() % 2 == 0 ? 0 : 6);
  require(idx_accepts(thimble::bytes_of(compressed), packed) == is_accepted, "plain and gzip differ in being accepted");
  if (!is_accepted) return;
  require(packed.shape == plain.shape && packed.values == plain.values, "plain and gzip differ in what they hold");
  require(!idx_accepts(thimble::bytes_of(compressed + "x"), packed), "bytes after the gzip data were accepted");
  try {
    const auto images = thimble::data::pair_idx(plain, packed, 10, "fuzz", "fuzz");
    require(images.labels.size() == static_cast<std::size_t>(images.count), "labels do not match the count");
  } catch (const thimble::FileError&) {
  }
}

/// The path of a file in memory with these bytes, until the next call.
inline std::string path_of(Bytes file) {
  static const int memory = memfd_create("fuzz", 0);
  require(memory >= 0 && ftruncate(memory, 0) == 0, "there is no file in memory");
  const ssize_t written = pwrite(memory, file.data(), file.size(), 0);
  require(written == static_cast<ssize_t>(file.size()), "the file in memory is not whole");
  return "/proc/self/fd/" + std::to_string(memory);
}

/// Accepted tokens, written again, are the same bytes after the header.
inline void tokens(Bytes file) {
  std::vector<std::int64_t> all;
  try {
    const auto store = thimble::data::open_tokens(path_of(file));
    all.resize(static_cast<std::size_t>(store.size()));
    store.read(0, all);
  } catch (const thimble::FileError&) {
    return;
  }
  const auto again = thimble::data::format_tokens(std::vector<std::uint16_t>(all.begin(), all.end()));
  constexpr std::ptrdiff_t header = thimble::data::tokens_header_bytes;
  require(std::equal(again.begin() + header, again.end(), file.begin() + header, file.end()), "tokens changed");
}

/// Accepted records are counted, their pixels are readable, and their labels are in range.
inline void cifar(Bytes file) {
  try {
    const std::string path = path_of(file);
    const auto images = thimble::data::open_cifar(thimble::data::cifar10, std::span(&path, 1));
    require(static_cast<std::size_t>(images.count) * 3073 == file.size(), "records were lost");
    std::array<std::uint8_t, 3072> pixels{};
    for (std::int64_t i = 0; i < images.count; ++i) {
      images.read(i, 0, pixels);
      require(images.label(i) < images.classes, "a label is out of range");
    }
  } catch (const thimble::FileError&) {
  }
}

/// An accepted checkpoint's own description, written again, is the same text.
inline void checkpoint(Bytes file) {
  try {
    const auto header = thimble::parse_safetensors(file, file.size(), "fuzz");
    const auto info = thimble::nn::parse_checkpoint_info(header, "fuzz");
    require(info.step_count >= 0 && info.rate >= 0, "a number is out of range");
    require(thimble::nn::format_checkpoint_info(info).size() >= info.metadata.size() + 6, "texts were lost");
    thimble::SafetensorsHeader again = header;
    again.metadata = thimble::nn::format_checkpoint_info(info);
    require(thimble::nn::parse_checkpoint_info(again, "fuzz") == info, "writing again changes a number");
  } catch (const thimble::FileError&) {
  }
}

/// An accepted tokenizer, written again, is unchanged; without NFC and added tokens it decodes its own encodings.
inline void tokenizer(Bytes file) {
  std::optional<thimble::data::Tokenizer> read;
  try {
    read.emplace(thimble::data::parse_tokenizer(file, "fuzz"));
  } catch (const thimble::FileError&) {
    return;
  }
  const thimble::data::TokenizerParts& parts = read->parts();
  const std::string text = thimble::data::format_tokenizer(parts);
  const auto again = thimble::data::parse_tokenizer(thimble::bytes_of(text), "fuzz");
  require(thimble::data::format_tokenizer(again.parts()) == text, "writing again changes the file");
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), std::min<std::size_t>(file.size(), 300));
  const auto ids = read->encode(bytes, {.adds_ends = true});
  require(ids == again.encode(bytes, {.adds_ends = true}), "the file that was written has other tokens");
  for (const std::uint32_t id : ids) require(id < read->size(), "a token is out of range");
  if (parts.is_nfc || !parts.added.empty()) return;
  require(read->decode(read->encode(bytes)) == bytes, "bytes changed on their way");
}

struct Target {
  std::string_view name;
  void (*run)(Bytes file);
};

/// Every target; tests/fuzz/corpus.txt has their seeds, except tokenizers, which are in tests/fuzz/corpus/tokenizer.
inline constexpr std::array<Target, 7> targets{{{"safetensors", safetensors},
                                                {"checkpoint", checkpoint},
                                                {"npy", npy},
                                                {"idx", idx},
                                                {"tokens", tokens},
                                                {"cifar", cifar},
                                                {"tokenizer", tokenizer}}};

}  // namespace fuzz
