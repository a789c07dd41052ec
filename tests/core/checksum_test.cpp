// Checksums in safetensors files: files written by this library have them, files without them still load, and every
// flipped bit of data is found before anything is loaded.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/ops/copy.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tensor_files.h"

namespace {

using namespace thimble;
using files_test::contains;
using files_test::file_error;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using files_test::write_text_file;

std::string write_two(const TemporaryFolder& folder) {
  const std::string path = folder / "two";
  SafetensorsWriter writer(path, {{"b", SafetensorsDType::u8, {3}}, {"a", SafetensorsDType::f32, {2}}}, {{"k", "v"}});
  writer.append("b", bytes_of(std::string("xyz")));
  writer.append("a", bytes_of(std::string("ABCDEFGH")));
  writer.commit();
  return path;
}

std::string hexadecimal(std::uint32_t sum) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

}  // namespace

TEST_CASE("checksums: of the header and each tensor, by name", "[files][checksum]") {
  const TemporaryFolder folder;
  const std::string path = write_two(folder), file = read_text_file(path);
  const SafetensorsReader reader(path);
  CHECK(reader.header().metadata == std::map<std::string, std::string>{{"k", "v"}});
  CHECK(reader.entry("a").crc32c == crc32c("ABCDEFGH"));
  CHECK(reader.entry("b").crc32c == crc32c("xyz"));
  // The text, built by hand.
  const std::string key = "\"thimble.crc32c\":\"";
  const std::size_t at = file.find(key) + key.size();
  REQUIRE(at > key.size());
  std::string header = file.substr(0, reader.header().data_offset);
  const std::string own = header.substr(at, 8);
  CHECK(header.substr(at + 8, 17) == hexadecimal(crc32c("ABCDEFGH")) + hexadecimal(crc32c("xyz")) + "\"");
  header.replace(at, 8, "00000000");
  CHECK(own == hexadecimal(crc32c(header)));
}

TEST_CASE("checksums: every flipped bit of data is refused by the tensor's name, read whole or in pieces",
          "[files][checksum]") {
  const TemporaryFolder folder;
  const std::string path = write_two(folder), good = read_text_file(path);
  const std::uint64_t data = SafetensorsReader(path).header().data_offset;
  for (std::size_t bit = 8 * data; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_text_file(path, bad);
    const SafetensorsReader reader(path);
    const bool is_a = bit / 8 < data + 8;
    for (const SafetensorsEntry& entry : reader.header().tensors) {
      std::vector<std::byte> all(static_cast<std::size_t>(entry.bytes()));
      const std::string read = file_error([&] { reader.read(entry, all); });
      CHECK(read == file_error([&] { reader.verify(entry); }));
      if ((entry.name == "a") != is_a) {
        CHECK(read == "no error");
      } else {
        CHECK(contains(read, path + ": at byte "));
        CHECK(contains(read, "tensor '" + entry.name + "' has the checksum "));
        CHECK(contains(read, "its bytes have changed"));
      }
    }
  }
}

TEST_CASE("checksums: a flipped bit of the header is refused, or leaves names, shapes and values as they were",
          "[files][checksum]") {
  const TemporaryFolder folder;
  const std::string path = write_two(folder), good = read_text_file(path);
  const SafetensorsHeader expected = SafetensorsReader(path).header();
  int harmless = 0;
  for (std::size_t bit = 0; bit < 8 * expected.data_offset; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_text_file(path, bad);
    try {
      SafetensorsHeader header = SafetensorsReader(path).header();
      // Only a flip in the key's name goes unnoticed: the file then has an unknown key and no checksums.
      REQUIRE(header.tensors.size() == expected.tensors.size());
      for (std::size_t i = 0; i < header.tensors.size(); ++i) {
        CHECK(!header.tensors[i].crc32c);
        header.tensors[i].crc32c = expected.tensors[i].crc32c;
      }
      CHECK(header.tensors == expected.tensors);
      CHECK(header.metadata.at("k") == "v");
      ++harmless;
    } catch (const FileError&) {
    }
  }
  CHECK(harmless <= 8 * 14);  // "thimble.crc32c"
}

TEST_CASE("checksums: files without them load, and their bytes are taken as they are", "[files][checksum]") {
  const TemporaryFolder folder;
  const std::string path = folder / "plain";
  const SafetensorsHeader header = lay_out_safetensors({{"weight", SafetensorsDType::f32, {1, 2}}}, {});
  write_text_file(path, format_safetensors_header(header) + std::string(4, '\0') + std::string("\0\0\x80\x3F", 4));
  CHECK_FALSE(contains(read_text_file(path), "crc32c"));
  nn::Linear model(2, 1, {}, {.has_bias = false});
  nn::load_weights(model, path);
  CHECK(to_host<float>(model.weight) == std::vector<float>{0, 1});
}

TEST_CASE("checksums: malformed ones are refused", "[files][checksum]") {
  const TemporaryFolder folder;
  const std::string path = folder / "bad";
  for (const char* value :
       {"", "00000000", "0000000000000000", "zzzzzzzzzzzzzzzz", "00000000000000000", "ABCDEF0000000000"}) {
    SafetensorsHeader header = lay_out_safetensors({{"a", SafetensorsDType::u8, {1}}}, {{"thimble.crc32x", value}});
    std::string text = format_safetensors_header(header);
    text.replace(text.find("crc32x"), 6, "crc32c");
    write_text_file(path, text + "x");
    INFO(value);
    CHECK(contains(file_error([&] { SafetensorsReader reader(path); }), "the metadata's thimble.crc32c is n"));
  }
  CHECK_THROWS_AS(lay_out_safetensors({}, {{"thimble.crc32c", "0"}}), ValueError);
}

TEST_CASE("checksums: loading weights changes nothing when one tensor has changed", "[files][checksum][weights]") {
  const TemporaryFolder folder;
  nn::Linear model(3, 2), other(3, 2);
  nn::save_weights(model, folder / "w");
  std::string file = read_text_file(folder / "w");
  file.back() = static_cast<char>(file.back() ^ 1);  // in the last tensor
  write_text_file(folder / "w", file);
  const auto before = to_host<float>(other.weight);
  CHECK(contains(file_error([&] { nn::load_weights(other, folder / "w"); }), "its bytes have changed"));
  CHECK(to_host<float>(other.weight) == before);
}

TEST_CASE("checksums: every code of every dtype is finite or not, as its value is", "[files][checksum]") {
  for (int d = 0; d < dtype_count; ++d) {
    const auto dtype = static_cast<DType>(d);
    INFO(to_string(dtype));
    const std::size_t size = size_of(dtype);
    // Of 4 and 8 bytes only the upper two vary; the lower bits are all set or all clear.
    const bool is_wide = size > 2;
    std::size_t wrong = 0, not_finite = 0;
    for (std::uint32_t code = 0; code < (size == 1 ? 256U : 65536U); ++code) {
      for (const int below : {0x00, 0xFF}) {
        std::array<std::byte, 8> bytes;
        bytes.fill(static_cast<std::byte>(below));
        const std::size_t at = is_wide ? size - 2 : 0;
        for (std::size_t k = 0; k < std::min<std::size_t>(size, 2); ++k) {
          bytes[at + k] = static_cast<std::byte>(code >> (8 * k));
        }
        double value = 0;
        if (is_floating(dtype)) convert(bytes.data(), dtype, &value, DType::f64, 1);
        const bool is_finite = all_finite(to_safetensors_dtype(dtype), std::span(bytes).first(size));
        wrong += is_finite != std::isfinite(value);
        not_finite += !is_finite;
      }
    }
    CHECK(wrong == 0);
    CHECK((not_finite > 0) == is_floating(dtype));
  }
}

TEST_CASE("checksums: a writer knows of numbers that are not finite, wherever pieces are cut", "[files][checksum]") {
  const TemporaryFolder folder;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> good{0, -1, 3e38f, 1e-45f, 5, 6};
  for (const float bad : {1.0f, infinity, -infinity, nan}) {
    for (std::size_t place = 0; place < good.size(); ++place) {
      for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{5}, std::size_t{24}}) {
        std::vector<float> values = good;
        values[place] = bad;
        SafetensorsWriter writer(folder / "x", {{"v", SafetensorsDType::f32, {6}}});
        std::span<const std::byte> bytes = std::as_bytes(std::span(values));
        for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece, bytes.size()))) {
          writer.append("v", bytes.first(std::min(piece, bytes.size())));
        }
        CHECK(writer.not_finite() == (bad == 1 ? "" : "v"));
      }
    }
  }
}

// ---- CRC-32C: published values, a bit-by-bit loop, the tables and the instruction agree, in pieces and at any
// address.

namespace {

std::uint32_t bit_by_bit(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 != 0 ? crc / 2 ^ 0x82F63B78 : crc / 2;
  }
  return ~crc;
}

}  // namespace

TEST_CASE("crc32c: published values", "[crc32c]") {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c("") == 0);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);    // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43);  // RFC 3720, B.4
  CHECK(crc32c(ascending) == 0x46DD794E);                // RFC 3720, B.4
}

TEST_CASE("crc32c: instruction, tables and a loop over bits agree, in pieces and at any address", "[crc32c]") {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(3000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xFF);
  const std::span<const std::byte> all(bytes);
  for (int i = 0; i < 500; ++i) {
    const std::size_t begin = random() % 16, count = i < 100 ? static_cast<std::size_t>(i) : random() % 2900;
    const auto part = all.subspan(begin, count);
    const std::uint32_t expected = bit_by_bit(part);
    CHECK(crc32c(part) == expected);
    CHECK(crc32c_by_tables(part) == expected);
    const std::size_t cut = count == 0 ? 0 : random() % count;
    CHECK(crc32c(part.subspan(cut), crc32c(part.first(cut))) == expected);
    CHECK(crc32c_by_tables(part.subspan(cut), crc32c(part.first(cut))) == expected);
  }
}
