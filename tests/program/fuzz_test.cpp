#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/nn/data/splitmix.h>

#include "fuzz/targets.h"
#include "support/catch.h"
#include "support/files.h"

using namespace files_test;

namespace {

/// Decodes complete base64.
std::string from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char letter : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(letter));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

/// A target's seeds by name.
std::map<std::string, std::string> seeds_of(std::string_view target) {
  const std::filesystem::path folder = tests_folder() / "fuzz";
  std::map<std::string, std::string> seeds;
  if (target == "tokenizer") {
    for (const auto& entry : std::filesystem::directory_iterator(folder / "corpus" / target)) {
      seeds[entry.path().filename()] = read_text_file(entry.path().string());
    }
    return seeds;
  }
  std::istringstream lines(read_text_file((folder / "corpus.txt").string()));
  for (std::string name, text; lines >> name >> text;) {
    const std::size_t slash = name.find('/');
    if (name.substr(0, slash) == target) seeds[name.substr(slash + 1)] = from_base64(text);
  }
  return seeds;
}

// Corrupts a file: flips bits, cuts ends, repeats slices or takes them from another file, grows sizes.
std::string mutate(std::string file, const std::vector<std::string>& seeds, thimble::data::SplitMix& random) {
  const auto place = [&](std::size_t size) { return static_cast<std::size_t>(random.below(size + 1)); };
  for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
    const std::size_t at = place(file.size());
    switch (random.below(7)) {
      case 0:
        if (at < file.size()) file[at] = static_cast<char>(file[at] ^ (1 << random.below(8)));
        break;
      case 1:
        if (at < file.size()) file[at] = static_cast<char>(random.next());
        break;
      case 2:
        file.resize(at);
        break;
      case 3:
        file.insert(at, file.substr(place(file.size()), 1 + place(40)));
        break;
      case 4:
        file.erase(at, 1 + place(8));
        break;
      case 5: {
        const std::string& other = seeds[random.below(seeds.size())];
        file.replace(at, place(40), other.substr(place(other.size()), place(80)));
        break;
      }
      default: {
        const std::uint64_t numbers[] = {0,          1,          0x7f,       0x80,      0xff,
                                         0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX};
        const std::uint64_t number = numbers[random.below(std::size(numbers))];
        const int bytes = 1 << random.below(4);
        const std::string text = random.below(3) == 0   ? std::to_string(number)
                                 : random.below(2) == 0 ? little(number, bytes)
                                                        : big(number, bytes);
        file.replace(at, text.size(), text);
      }
    }
  }
  return file;
}

}  // namespace

TEST_CASE("fuzz: seeds and mutated files are read or refused", "[files][fuzz]") {
  for (const fuzz::Target& target : fuzz::targets) {
    std::vector<std::string> seeds;
    for (const auto& [name, bytes] : seeds_of(target.name)) seeds.push_back(bytes);
    INFO(std::string(target.name));
    REQUIRE(seeds.size() >= 3);
    thimble::data::SplitMix random(1);
    const auto run = [&](const std::string& file) {
      // A separate heap block, so that a checker sees reads beyond the end.
      const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(file.data()),
                                         reinterpret_cast<const std::byte*>(file.data()) + file.size());
      target.run(bytes);
    };
    for (const std::string& seed : seeds) {
      run(seed);
      for (std::size_t cut = 0; cut <= std::min<std::size_t>(seed.size(), 400); ++cut) run(seed.substr(0, cut));
    }
    for (int i = 0; i < 4000; ++i) run(mutate(seeds[random.below(seeds.size())], seeds, random));
    SUCCEED();
  }
}

TEST_CASE("fuzz: every corpus has files that are accepted", "[files][fuzz]") {
  // A target that refuses all its seeds at the first byte would test nothing.
  const auto accepts = [](std::string_view target, const char* seed, auto parse) {
    const std::string file = seeds_of(target).at(seed);
    INFO(std::string(target) << "/" << seed);
    CHECK(file_error([&] { parse(thimble::bytes_of(file), file.size()); }) == "no error");
  };
  for (const char* seed : {"empty", "one", "metadata", "every_dtype", "scalar_and_empty"})
    accepts("safetensors", seed, [](fuzz::Bytes b, std::size_t n) { thimble::parse_safetensors(b, n, "t"); });
  for (const char* seed : {"good", "own_text"})
    accepts("checkpoint", seed, [](fuzz::Bytes b, std::size_t n) {
      thimble::nn::parse_checkpoint_info(thimble::parse_safetensors(b, n, "t"), "t");
    });
  for (const char* seed : {"f4", "v2", "v3", "scalar", "bool"})
    accepts("npy", seed, [](fuzz::Bytes b, std::size_t) { thimble::parse_npy(b, "t"); });
  for (const char* seed : {"images", "labels", "images.gz", "labels.gz", "stored.gz"})
    accepts("idx", seed, [](fuzz::Bytes b, std::size_t) { thimble::data::parse_idx(b, "t"); });
  for (const char* seed : {"empty", "four"})
    accepts("tokens", seed, [](fuzz::Bytes b, std::size_t) { thimble::data::open_tokens(fuzz::path_of(b)); });
  for (const char* seed : {"gpt2", "llama3", "qwen2"})
    accepts("tokenizer", seed, [](fuzz::Bytes b, std::size_t) { thimble::data::parse_tokenizer(b, "t"); });
  for (const char* seed : {"one", "two"})
    accepts("cifar", seed, [](fuzz::Bytes b, std::size_t) {
      const std::string path = fuzz::path_of(b);
      thimble::data::open_cifar(thimble::data::cifar10, std::span(&path, 1));
    });
}
