#include <algorithm>

#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using namespace files_test;

TEST_CASE("file_stream: bytes in both orders", "[files]") {
  const std::string text = "\x01\x02\x03\x04\x05\x06\x07\x88";
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  CHECK(load_le<std::uint16_t>(bytes) == 0x0201);
  CHECK(load_be<std::uint16_t>(bytes) == 0x0102);
  CHECK(load_le<std::uint32_t>(bytes) == 0x04030201);
  CHECK(load_be<std::uint32_t>(bytes) == 0x01020304);
  CHECK(load_le<std::uint64_t>(bytes) == 0x8807060504030201u);
  CHECK(load_be<std::uint64_t>(bytes) == 0x0102030405060788u);
  std::byte out[8];
  store_le<std::uint64_t>(0x8807060504030201u, out);
  CHECK(std::equal(out, out + 8, bytes));
}

TEST_CASE("file_stream: names in a folder are sorted, whatever the order of the file system", "[files]") {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 60; ++i) names.push_back("part-" + std::to_string(i * 37 % 60));
  for (const std::string& name : names) write_text_file(folder / name, "");
  std::sort(names.begin(), names.end());
  CHECK(names_in(folder.path()) == names);
}

TEST_CASE("file_stream: checked sizes and quoted text", "[files]") {
  using Sizes = std::vector<std::int64_t>;
  CHECK(checked_bytes(Sizes{}, 4) == 4);
  CHECK(checked_bytes(Sizes{2, 3}, 4) == 24);
  CHECK(checked_bytes(Sizes{2, 0, 3}, 4) == 0);
  CHECK(checked_bytes(Sizes{INT64_MAX}, 1) == INT64_MAX);
  CHECK_FALSE(checked_bytes(Sizes{INT64_MAX}, 2));
  CHECK_FALSE(checked_bytes(Sizes{std::int64_t{1} << 32, std::int64_t{1} << 31}, 1));
  CHECK_FALSE(checked_bytes(Sizes{0, std::int64_t{1} << 32, std::int64_t{1} << 31}, 1));
  CHECK_FALSE(checked_bytes(Sizes{2, -1}, 1));
  CHECK_FALSE(checked_bytes(Sizes{0, -1}, 1));
  CHECK(quote("wte.weight") == "'wte.weight'");
  CHECK(quote(std::string_view("a\0\n\xff", 4)) == "'a\\x00\\x0a\\xff'");
  CHECK(quote("abcdef", 3) == "'abc'...");
  CHECK(quote("abc", 3) == "'abc'");
  CHECK(quote("~\x7f") == "'~\\x7f'");
}

TEST_CASE("file_stream: reading names what is missing", "[files]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_text_file(path, "0123456789");
  InputFile file(path);
  CHECK(file.bytes() == 10);
  std::vector<std::byte> part(4);
  file.read(3, part);
  CHECK(text_of(part) == "3456");
  CHECK(contains(file_error([&] { file.read(7, part); }), "at byte 7: 4 bytes wanted, the file ends at byte 10"));
  CHECK(contains(file_error([&] { file.read(UINT64_MAX, part); }), "the file ends at byte 10"));
  InputFile moved = std::move(file);
  moved.read(0, part);
  CHECK(text_of(part) == "0123");
  std::filesystem::resize_file(path, 5);
  CHECK(contains(file_error([&] { moved.read(4, part); }), "at byte 5: the file was cut while it was being read"));
  CHECK(contains(file_error([&] { InputFile(folder / "none"); }), "cannot open"));
  CHECK_THROWS_AS(InputFile(folder.path() + std::string("\0", 1)), FileError);
  CHECK(contains(file_error([&] { InputFile(folder.path()); }), "is not a regular file"));
  CHECK(text_of(read_whole_file(path, 5)) == "01234");
  CHECK(contains(file_error([&] { read_whole_file(path, 4); }), "5 bytes; expected at most 4"));
}
