#include <numeric>

#include <thimble/core/files/bytes.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/store.h>
#include <thimble/nn/data/text.h>
#include <thimble/nn/data/tokens.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/find_data.h"
#include "support/skip.h"

using namespace thimble;
using namespace thimble::data;
using namespace files_test;

namespace {

struct Corrupt {
  const char* what;
  std::string file;
  std::string reason;
};

template <class Parse>
void check_refused(const std::vector<Corrupt>& rows, Parse&& parse) {
  for (const Corrupt& row : rows) {
    const std::string message = file_error([&] { parse(bytes_of(row.file), "t"); });
    INFO(row.what << ": " << message);
    CHECK(contains(message, row.reason));
  }
}

/// Writes a file with these bytes.
std::string file_of(const TemporaryFolder& folder, std::span<const std::byte> bytes) {
  write_text_file(folder / "t", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return folder / "t";
}

std::vector<std::uint8_t> pixels_of(const ImageStore& images, std::int64_t image) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(images.image_elements()));
  images.read(image, 0, pixels);
  return pixels;
}

ImageStore open_cifar(const CifarForm& form, const std::string& path) {
  return data::open_cifar(form, std::span(&path, 1));
}

std::string idx_images(std::uint64_t count, std::uint64_t height, std::uint64_t width, const std::string& values) {
  return big(0x803, 4) + big(count, 4) + big(height, 4) + big(width, 4) + values;
}

std::string idx_labels(std::uint64_t count, const std::string& values) {
  return big(0x801, 4) + big(count, 4) + values;
}

std::string token_file(std::uint64_t magic, std::uint64_t version, std::uint64_t count, const std::string& tokens) {
  return little(magic, 4) + little(version, 4) + little(count, 4) + std::string(1024 - 12, '\0') + tokens;
}

}  // namespace

TEST_CASE("data: IDX files, plain and gzip", "[files][data]") {
  const std::string images = idx_images(2, 2, 3, "abcdefABCDEF"), labels = idx_labels(2, "\3\7");
  for (const bool is_gzip : {false, true}) {
    const std::string first = is_gzip ? gzip(images) : images, second = is_gzip ? gzip(labels) : labels;
    const IdxArray array = parse_idx(bytes_of(first), "images");
    CHECK(array.shape == std::vector<std::int64_t>{2, 2, 3});
    CHECK(std::string(array.values.begin(), array.values.end()) == "abcdefABCDEF");
    const Images pair = pair_idx(array, parse_idx(bytes_of(second), "labels"), 10, "images", "labels");
    CHECK(pair.count == 2);
    CHECK(pair.image_elements() == 6);
    CHECK(pair.classes == 10);
    CHECK(pair.labels == std::vector<std::uint16_t>{3, 7});
  }
  CHECK(parse_idx(bytes_of(idx_images(0, 28, 28, "")), "t").values.empty());
}

TEST_CASE("data: corrupt IDX files are refused with a reason", "[files][data]") {
  const std::string good = idx_images(2, 2, 3, "abcdefABCDEF");
  std::string wrong_checksum = gzip(good);
  wrong_checksum[wrong_checksum.size() - 8] ^= 1;
  std::string wrong_length = gzip(good);
  wrong_length[wrong_length.size() - 4] ^= 1;
  std::string wrong_method = gzip(good);
  wrong_method[2] = 7;
  const std::string bomb = gzip(good + std::string(10'000'000, '\0'));
  REQUIRE(bomb.size() < 20'000);
  check_refused(
      {
          {"empty file", "", "4 bytes wanted from byte 0 on"},
          {"magic cut short", good.substr(0, 3), "at byte 3: the file is cut short"},
          {"other magic", big(0x802, 4) + good.substr(4), "the magic number is 2050; expected 2051 (0x803, images)"},
          {"little-endian magic", little(0x803, 4) + good.substr(4), "the magic number is 50855936"},
          {"signed bytes", big(0x903, 4) + good.substr(4), "the magic number is 2307"},
          {"sizes cut short", good.substr(0, 14), "at byte 14: the file is cut short"},
          {"values cut short", good.substr(0, good.size() - 1), "at byte 27: the file is cut short: 12 bytes wanted"},
          {"trailing byte", good + "x", "at byte 28: 1 bytes after the last value"},
          {"no rows", idx_images(2, 0, 3, ""), "at byte 8: images of 0 x 3 pixels; expected at least 1 x 1"},
          {"gzip, no columns", gzip(idx_images(0, 2, 0, "")), "at byte 8: images of 2 x 0 pixels; expected at least"},
          {"sizes of 2^96", idx_images(UINT32_MAX, UINT32_MAX, UINT32_MAX, "abc"), "promise more than 2^63 - 1 bytes"},
          {"sizes of 2^62", idx_images(1u << 31, 1u << 31, 1, "abc"), "promise 4611686018427387904 bytes"},
          {"gzip, promises 2^62", gzip(idx_images(1u << 31, 1u << 31, 1, "abc")), "promise 4611686018427387904 bytes"},
          {"gzip, promises 1 GB", gzip(idx_images(1000, 1000, 1000, "abc")), "promise 1000000000 bytes; this file can"},
          {"gzip, header cut short", gzip(good).substr(0, 7), "the gzip data are cut short"},
          {"gzip, only its magic", gzip(good).substr(0, 2), "the gzip data are cut short"},
          {"gzip, data cut short", gzip(good).substr(0, gzip(good).size() - 12), "the gzip data are cut short"},
          {"gzip, no checksum", gzip(good).substr(0, gzip(good).size() - 8), "the gzip data are cut short"},
          {"gzip, fewer values", gzip(good.substr(0, good.size() - 1)), "the decompressed data end 1 bytes before"},
          {"gzip, one more value", gzip(good + "x"), "more decompressed data than the header says"},
          {"gzip bomb", bomb, "more decompressed data than the header says"},
          {"gzip, trailing byte", gzip(good) + "x", "1 bytes after the end of the gzip data"},
          {"gzip, twice", gzip(good) + gzip(good), "more decompressed data than the header says"},
          {"gzip, half a member", gzip(good) + gzip("").substr(0, 9), "the gzip data are cut short"},
          {"gzip, wrong checksum of the first", wrong_checksum + gzip(""), "corrupt gzip data: incorrect data check"},
          {"gzip, wrong checksum", wrong_checksum, "corrupt gzip data: incorrect data check"},
          {"gzip, wrong length", wrong_length, "corrupt gzip data: incorrect length check"},
          {"gzip, other method", wrong_method, "corrupt gzip data: unknown compression method"},
          {"gzip in gzip", gzip(gzip(good)), "the magic number is 529205"},
      },
      [](std::span<const std::byte> file, const std::string& path) { parse_idx(file, path); });
}

TEST_CASE("data: images and labels must belong together", "[files][data]") {
  const IdxArray images = parse_idx(bytes_of(idx_images(2, 1, 1, "ab")), "i");
  const IdxArray two = parse_idx(bytes_of(idx_labels(2, "\1\12")), "l"),
                 one = parse_idx(bytes_of(idx_labels(1, "\1")), "l");
  CHECK(contains(file_error([&] { pair_idx(images, one, 10, "i", "l"); }), "l: at byte 4: 1 labels for the 2 images"));
  CHECK(
      contains(file_error([&] { pair_idx(images, two, 10, "i", "l"); }), "l: at byte 9: label 10; expected below 10"));
  CHECK(contains(file_error([&] { pair_idx(two, two, 10, "i", "l"); }), "i: at byte 0: the file has labels"));
  CHECK(contains(file_error([&] { pair_idx(images, images, 10, "i", "l"); }), "l: at byte 0: the file has images"));
  CHECK(pair_idx(images, two, 11, "i", "l").labels == std::vector<std::uint16_t>{1, 10});
  CHECK(pair_idx(images, two, 0, "i", "l").classes == 11);
  CHECK(pair_idx(images, parse_idx(bytes_of(idx_labels(2, "\1\3")), "l"), 0, "i", "l").classes == 10);
  CHECK(pair_idx(images, parse_idx(bytes_of(idx_labels(2, "\1\377")), "l"), 0, "i", "l").classes == 256);
  CHECK_THROWS_AS(pair_idx(images, two, -1, "i", "l"), ValueError);
  CHECK_THROWS_AS(pair_idx(images, two, 257, "i", "l"), ValueError);
  CHECK(pair_idx(images, two, 256, "i", "l").classes == 256);
}

TEST_CASE("data: gzip is read in pieces", "[files][data]") {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * i) + ",";
  const std::string file = gzip(text), path = "t";
  GzipReader reader(bytes_of(file), path);
  std::string got;
  for (std::size_t size = 1; got.size() < text.size(); size = size * 2 + 1) {
    std::vector<std::byte> part(std::min(size, text.size() - got.size()));
    reader.read(part);
    got += text_of(part);
  }
  reader.finish();
  CHECK(got == text);
}

TEST_CASE("data: gzip files of several members", "[files][data]") {
  const std::string whole = idx_images(2, 2, 3, "abcdefABCDEF"), path = "t";
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {  // as pigz writes it, and with bgzip's empty last member
    const std::string file = gzip(whole.substr(0, cut)) + gzip(whole.substr(cut)) + gzip("");
    CHECK(parse_idx(bytes_of(file), "t").shape == std::vector<std::int64_t>{2, 2, 3});
  }
  std::string bytes, file;
  for (const char c : whole) file += gzip(std::string(1, c)), bytes += c;
  GzipReader reader(bytes_of(file), path);
  std::vector<std::byte> got(bytes.size());
  reader.read(std::span(got).first(3));
  reader.read(std::span(got).subspan(3));
  reader.finish();
  CHECK(text_of(got) == bytes);
}

TEST_CASE("data: CIFAR-100 has a coarse label before the class", "[files][data]") {
  std::string record(3074, '\0');
  record[0] = 19, record[1] = 99;
  for (std::size_t i = 0; i < 3072; ++i) record[2 + i] = static_cast<char>(i % 251);
  const TemporaryFolder folder;
  const ImageStore images = open_cifar(cifar100, file_of(folder, bytes_of(record + record)));
  CHECK(images.count == 2);
  CHECK(images.classes == 100);
  CHECK(images.label(0) == 99);
  CHECK(images.label(1) == 99);
  CHECK(pixels_of(images, 1)[3 * 5 + 2] == (2048 + 5) % 251);
  std::string label100 = record;
  label100[1] = 100;
  check_refused(
      {{"cut short", record.substr(0, 3073), "3073 bytes; a CIFAR-100 batch has one or more records of 3074"},
       {"label 100", label100, "at byte 1: label 100; expected 0 to 99"}},
      [&](std::span<const std::byte> file, const std::string&) { open_cifar(cifar100, file_of(folder, file)); });
}

TEST_CASE("data: CIFAR-10 planes become channels", "[files][data]") {
  std::string record(3073, '\0');
  record[0] = 9;
  for (int c = 0; c < 3; ++c)
    for (int i = 0; i < 1024; ++i)
      record[static_cast<std::size_t>(1 + c * 1024 + i)] = static_cast<char>(100 * c + i % 50);
  const TemporaryFolder folder;
  const ImageStore images = open_cifar(cifar10, file_of(folder, bytes_of(record + record)));
  CHECK(images.count == 2);
  CHECK(images.label(0) == 9);
  CHECK(images.label(1) == 9);
  REQUIRE(images.image_elements() == 3072);
  CHECK(pixels_of(images, 0)[3] == 1);
  CHECK(pixels_of(images, 0)[4] == 101);
  CHECK(pixels_of(images, 1)[3 * 1023 + 2] == 200 + 1023 % 50);
  std::string label10 = record + record;
  label10[3073] = 10;
  check_refused(
      {{"empty", "", "0 bytes; a CIFAR-10 batch has one or more records of 3073"},
       {"cut short", record.substr(0, 3072), "3072 bytes; a CIFAR-10 batch"},
       {"trailing byte", record + "x", "at byte 3073: 3074 bytes"},
       {"label 10", label10, "at byte 3073: label 10; expected 0 to 9"}},
      [&](std::span<const std::byte> file, const std::string&) { open_cifar(cifar10, file_of(folder, file)); });
  ImageStore others = images;
  others.height = others.width = 28;
  CHECK_THROWS_AS(others.append(images), ShapeError);

  write_text_file(folder / "1.bin", record);
  write_text_file(folder / "2.bin", record + record);
  CHECK(data::open_cifar(cifar10, std::vector<std::string>{folder / "1.bin", folder / "2.bin"}).count == 3);
}

TEST_CASE("data: token files", "[files][data]") {
  const std::vector<std::uint16_t> tokens{0, 1, 50256, 65535};
  const std::vector<std::byte> file = format_tokens(tokens);
  CHECK(text_of(file) == token_file(20240520, 1, 4, std::string("\0\0\1\0\x50\xc4\xff\xff", 8)));
  const TemporaryFolder folder;
  write_tokens(folder / "a.bin", tokens);
  CHECK(folder.entries() == 1);
  std::vector<std::int64_t> read(4);
  open_tokens(folder / "a.bin").read(0, read);
  CHECK(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
  std::vector<std::int64_t> last(1);
  open_tokens(folder / "a.bin").part(1, 3).part(1, 2).read(1, last);  // a part of a part
  CHECK(last[0] == 65535);
  CHECK(open_tokens(file_of(folder, bytes_of(token_file(20240520, 1, 0, "")))).size() == 0);
  write_text_file(folder / "none.npy", "\x93NUMPY\x01" + std::string("\0\x38\0", 3) +
                                           "{'descr': '<u2', 'fortran_order': False, 'shape': (0,)}\n");
  CHECK(open_tokens(folder / "none.npy").size() == 0);
  check_refused({{"empty", "", "the file ends inside the header of 1024 bytes"},
                 {"header cut short", token_file(20240520, 1, 0, "").substr(1), "at byte 1023: the file ends inside"},
                 {"other magic", token_file(20240801, 1, 1, "ab"), "the magic number is 20240801; expected 20240520"},
                 {"other version", token_file(20240520, 7, 1, "ab"), "the version is 7; expected 1"},
                 {"negative count", token_file(20240520, 1, UINT32_MAX, "ab"), "the number of tokens is negative"},
                 {"count of 2^31 - 1", token_file(20240520, 1, INT32_MAX, "ab"), "need 4294967294 bytes"},
                 {"cut short", token_file(20240520, 1, 2, "abc"), "cut short: 2 tokens need 4 bytes, the file has 3"},
                 {"trailing byte", token_file(20240520, 1, 1, "abc"), "at byte 1026: bytes after the last token"}},
                [&](std::span<const std::byte> bytes, const std::string&) { open_tokens(file_of(folder, bytes)); });
}

TEST_CASE("data: characters and their vocabulary", "[files][data]") {
  const CharVocabulary vocabulary("hello\nworld\xff");
  CHECK(vocabulary.symbols() == "\ndehlorw\xff");
  CHECK(vocabulary.size() == 9);
  CHECK(vocabulary.encode("hold\n\xff") == std::vector<std::uint8_t>{3, 5, 4, 1, 0, 8});
  CHECK(vocabulary.decode(vocabulary.encode("drool")) == "drool");
  CHECK(CharVocabulary(vocabulary.symbols()).symbols() == vocabulary.symbols());
  std::string all(256, '\0');
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i);
  const CharVocabulary bytes(all);
  CHECK(bytes.size() == 256);
  CHECK(bytes.decode(bytes.encode(all)) == all);
  CHECK_THROWS_AS(CharVocabulary(""), ValueError);
  CHECK_THROWS_AS(vocabulary.encode("hello, world"), ValueError);
  CHECK_THROWS_AS(vocabulary.decode(std::vector<std::uint8_t>{9}), ValueError);
  try {
    vocabulary.encode("hello, world");
  } catch (const ValueError& error) {
    CHECK(contains(error.what(), "byte ',' at position 5; expected the 9 characters"));
  }
}

TEST_CASE("data: a text is split 90/10", "[files][data]") {
  for (const std::size_t size : {1, 9, 10, 11, 19, 100, 1115}) {
    const std::string text = std::string(size - 1, 'a') + "b";
    const TextData data = split_text(text);
    CHECK(data.train.size() == size * 9 / 10);
    CHECK(data.train.size() + data.validation.size() == size);
    CHECK(data.validation.back() == data.vocabulary.size() - 1);
  }
  CHECK_THROWS_AS(split_text(""), ValueError);
  const TemporaryFolder folder;
  write_text_file(folder / "empty.txt", "");
  CHECK(contains(file_error([&] { read_text(folder / "empty.txt"); }), "the file is empty"));
  CHECK(contains(file_error([&] { read_text(folder / "none.txt"); }), "cannot open"));
}

TEST_CASE("data: files are found where THIMBLE_DATA says", "[files][data]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "set");
  write_text_file(folder / "set/a.txt", "a");
  const char* before = std::getenv("THIMBLE_DATA");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("THIMBLE_DATA", folder.path().c_str(), 1);
  CHECK(thimble_test::find_data("set/a.txt") == folder / "set/a.txt");
  CHECK_FALSE(thimble_test::find_data("set"));
  CHECK_FALSE(thimble_test::find_data("set/no such file"));
  if (before != nullptr) {
    ::setenv("THIMBLE_DATA", kept.c_str(), 1);
  } else {
    ::unsetenv("THIMBLE_DATA");
  }
}

TEST_CASE("data: files are found beside the project", "[files][data]") {
  const TemporaryFolder folder;
  namespace fs = std::filesystem;
  fs::create_directories(folder / "shared/data");
  fs::create_directories(folder / "project/build/tests");
  write_text_file(folder / "shared/data/thimble_find_data_test", "a");
  const fs::path before = fs::current_path();
  for (const char* from : {"project", "project/build", "project/build/tests"}) {
    fs::current_path(folder / from);
    const auto found = thimble_test::find_data("thimble_find_data_test");
    INFO(from);
    REQUIRE(found);
    CHECK(fs::equivalent(*found, folder / "shared/data/thimble_find_data_test"));
  }
  fs::current_path(before);
}

TEST_CASE("data: MNIST", "[files][data]") {
  const auto images = thimble_test::find_data("mnist/t10k-images-idx3-ubyte.gz"),
             labels = thimble_test::find_data("mnist/t10k-labels-idx1-ubyte.gz");
  if (!images || !labels) {
    thimble_test::skip("mnist/t10k-*.gz is not there");
    return;
  }
  const Images mnist = read_idx(*images, *labels);
  CHECK(mnist.count == 10000);
  CHECK(mnist.height == 28);
  CHECK(mnist.width == 28);
  // The first labels of the set, the number of images per digit, and the sum of all pixels (their mean is 33.79).
  CHECK(std::vector<int>(mnist.labels.begin(), mnist.labels.begin() + 10) ==
        std::vector<int>{7, 2, 1, 0, 4, 1, 4, 9, 5, 9});
  std::vector<int> counts(10);
  for (const auto label : mnist.labels) ++counts[label];
  CHECK(counts == std::vector<int>{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009});
  const auto sum = std::accumulate(mnist.pixels.begin(), mnist.pixels.end(), std::uint64_t{0});
  CHECK(static_cast<double>(sum) / 7840000 == Approx(33.79).margin(0.01));
  CHECK(contains(file_error([&] { read_idx(*labels, *labels); }), "the file has labels; images are needed"));
}

TEST_CASE("data: Tiny Shakespeare", "[files][data]") {
  const auto path = thimble_test::find_data("tinyshakespeare/input.txt");
  if (!path) {
    thimble_test::skip("tinyshakespeare/input.txt is not there");
    return;
  }
  const TextData data = read_text(*path);
  CHECK(data.vocabulary.size() == 65);
  CHECK(data.train.size() == 1003854);
  CHECK(data.validation.size() == 111540);
  CHECK(data.vocabulary.decode(std::span(data.train).first(14)) == "First Citizen:");
}

TEST_CASE("data: images of several files have the classes of all", "[files][data]") {
  const auto images = [](std::int64_t classes, std::vector<std::uint8_t> pixels) {
    const auto count = static_cast<std::int64_t>(pixels.size());
    return Images{
        count, 1, 1, 1, classes, std::move(pixels), std::vector<std::uint16_t>(static_cast<std::size_t>(count), 1)};
  };
  ImageStore all(images(2, {10}));
  all.append(ImageStore(images(5, {20, 30})));
  all.append(ImageStore(images(3, {40})));
  CHECK(all.count == 4);
  CHECK(all.classes == 5);
  for (std::int64_t i = 0; i < 4; ++i) {
    std::uint8_t pixel = 0;
    all.read(i, 0, {&pixel, 1});
    CHECK(pixel == 10 * (i + 1));
  }
}
