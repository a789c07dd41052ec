// Data that stay in their files: every byte equals a read of the whole file, and none is on the heap.

#include <thimble/nn/data/store.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/tokens.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/find_data.h"

using namespace thimble;
using namespace thimble::data;
using namespace files_test;

namespace {

std::string big(std::uint64_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xff);
  return text;
}

std::string idx_of(const std::string& values, std::uint64_t count, std::uint64_t side) {
  return big(0x803) + big(count) + big(side) + big(side) + values;
}

std::string labels_of(std::size_t count) {
  std::string labels;
  for (std::size_t i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
  return big(0x801) + big(count) + labels;
}

std::string noise(std::size_t bytes, std::uint32_t seed) {
  std::string text(bytes, '\0');
  for (char& c : text) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return text;
}

/// CIFAR-10 records with valid labels.
std::string cifar(std::size_t records, std::uint32_t seed) {
  std::string text = noise(records * 3073, seed);
  for (std::size_t i = 0; i < records; ++i) text[i * 3073] = static_cast<char>(i % 10);
  return text;
}

/// The images of these batches, decoded by hand.
Images images_of(const std::string& batches) {
  Images images{static_cast<std::int64_t>(batches.size() / 3073), 32, 32, 3, 10, {}, {}};
  for (std::size_t at = 0; at < batches.size(); at += 3073) {
    images.labels.push_back(static_cast<std::uint8_t>(batches[at]));
    for (std::size_t i = 0; i < 1024; ++i) {
      for (const std::size_t plane : {0u, 1024u, 2048u}) {
        images.pixels.push_back(static_cast<std::uint8_t>(batches[at + 1 + plane + i]));
      }
    }
  }
  return images;
}

void check_same(const ImageStore& store, const Images& whole) {
  REQUIRE(store.count == whole.count);
  REQUIRE(store.image_elements() == whole.image_elements());
  CHECK(store.classes == whole.classes);
  const auto elements = static_cast<std::size_t>(whole.image_elements());
  for (std::int64_t i = 0; i < whole.count; ++i) {
    std::vector<std::uint8_t> image(elements);
    store.read(i, 0, image);
    const std::uint8_t* const expected = whole.pixels.data() + static_cast<std::size_t>(i) * elements;
    CHECK(std::memcmp(image.data(), expected, elements) == 0);
    // A range of whole pixels in the middle.
    const auto channels = static_cast<std::size_t>(whole.channels);
    std::vector<std::uint8_t> part(5 * channels);
    store.read(i, static_cast<std::int64_t>(3 * channels), part);
    CHECK(std::memcmp(part.data(), expected + 3 * channels, part.size()) == 0);
    CHECK(store.label(i) == whole.labels[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

TEST_CASE("store: images in their files are the images that are read whole", "[data][store]") {
  const TemporaryFolder folder;
  write_text_file(folder / "images", idx_of(noise(7 * 81, 1), 7, 9));
  write_text_file(folder / "labels", labels_of(7));
  const ImageStore idx = open_idx(folder / "images", folder / "labels");
  check_same(idx, read_idx(folder / "images", folder / "labels"));
  CHECK(idx.heap_bytes() == 7 * 2);  // only the labels
  write_text_file(folder / "images.gz", gzip(idx_of(noise(7 * 81, 1), 7, 9)));
  const ImageStore packed = open_idx(folder / "images.gz", folder / "labels");
  check_same(packed, read_idx(folder / "images", folder / "labels"));
  CHECK(packed.heap_bytes() == 7 * 2 + 7 * 81);

  write_text_file(folder / "1.bin", cifar(3, 5));
  write_text_file(folder / "2.bin", cifar(4, 6));
  const std::vector<std::string> both{folder / "1.bin", folder / "2.bin"};
  const ImageStore planes = open_cifar(cifar10, both);
  check_same(planes, images_of(cifar(3, 5) + cifar(4, 6)));
  CHECK(planes.heap_bytes() < 64);
}

TEST_CASE("store: files that are no images are refused as the readers of whole files do", "[data][store]") {
  const TemporaryFolder folder;
  write_text_file(folder / "labels", labels_of(2));
  const std::string good = idx_of("abcdefgh", 2, 2);
  write_text_file(folder / "good", good);
  for (const std::string& text : {good.substr(0, 10), good.substr(0, good.size() - 1), good + "x", std::string(),
                                  big(0x999) + good.substr(4), idx_of("abcd", 1, 2)}) {
    write_text_file(folder / "images", text);
    const std::string whole = file_error([&] { read_idx(folder / "images", folder / "labels"); });
    INFO(whole);
    REQUIRE_FALSE(whole.empty());
    CHECK(contains(file_error([&] { open_idx(folder / "images", folder / "labels"); }), folder / ""));
  }
  CHECK(contains(file_error([&] { open_idx(folder / "labels", folder / "labels"); }), "labels"));
  CHECK(contains(file_error([&] { open_idx(folder / "none", folder / "labels"); }), "cannot open"));
}

TEST_CASE("store: a batch written in place is the batch, rounded once", "[data][store]") {
  const TemporaryFolder folder;
  write_text_file(folder / "1.bin", cifar(9, 8));
  const std::vector<std::string> path{folder / "1.bin"};
  const Images whole = images_of(cifar(9, 8));
  const auto store = std::make_shared<const ImageStore>(open_cifar(cifar10, path));
  const Normalization normalization = measure_normalization(whole, 0, 7);
  const Normalization streamed = measure_normalization(*store, 0, 7);
  CHECK(streamed.mean == normalization.mean);
  CHECK(streamed.deviation == normalization.deviation);
  const ImageSource source(store, 2, 6, 4, 3, normalization);
  const BatchSampler sampler(6, 4, 3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Tensor pixels = Tensor::empty({4, 32, 32, 3}, dtype, cpu);
    std::vector<std::int64_t> labels(4);
    {
      const memory::WritePin pin(pixels);
      source.batch_into(5, dtype, static_cast<std::byte*>(pin.data()), labels);
    }
    const std::vector<double> got = to_host<double>(pixels);
    // By hand.
    const std::vector<std::int64_t> indices = sampler.indices(5);
    std::vector<float> expected;
    for (const std::int64_t index : indices) {
      for (std::size_t i = 0; i < 3072; ++i) {
        const float byte = whole.pixels[static_cast<std::size_t>(2 + index) * 3072 + i];
        expected.push_back((byte / 255.0f - normalization.mean[i % 3]) / normalization.deviation[i % 3]);
      }
    }
    const std::vector<double> rounded = to_host<double>(to_dtype(from_host(expected, {4, 32, 32, 3}), dtype));
    CHECK(got == rounded);
    for (std::size_t i = 0; i < 4; ++i) CHECK(labels[i] == whole.labels[static_cast<std::size_t>(2 + indices[i])]);
  }
  std::vector<std::int64_t> labels(4);
  CHECK_THROWS_AS(source.batch_into(0, DType::i8, nullptr, labels), DTypeError);
  CHECK_THROWS_AS(source.sequential_into(3, DType::f32, nullptr, labels), ValueError);
}

TEST_CASE("store: tokens in their file, and characters by their vocabulary", "[data][store]") {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> tokens;
  for (std::uint32_t i = 0; i < 5000; ++i) tokens.push_back(static_cast<std::uint16_t>(i * 13));
  write_tokens(folder / "t.bin", tokens);
  const TokenStore store = open_tokens(folder / "t.bin");
  REQUIRE(store.size() == 5000);
  CHECK(store.heap_bytes() == 0);
  CHECK(store.largest() == *std::max_element(tokens.begin(), tokens.end()));
  const TokenStore part = store.part(60, 4900).part(40, 4500);
  std::vector<std::int64_t> got(4000);
  part.read(7, got);
  for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == tokens[107 + i]);

  std::string text;
  for (int i = 0; i < 9000; ++i) text += "abc xyz\n\xff"[i * 7 % 9];
  write_text_file(folder / "text", text);
  const auto file = std::make_shared<const InputFile>(folder / "text");
  const CharVocabulary vocabulary = vocabulary_of(*file);
  CHECK(vocabulary.symbols() == CharVocabulary(text).symbols());
  TokenStore characters(ByteStore(file, 0, file->bytes()), vocabulary);
  const std::vector<std::uint8_t> expected = vocabulary.encode(text);
  std::vector<std::int64_t> read(9000);
  characters.read(0, read);
  CHECK(std::equal(read.begin(), read.end(), expected.begin(), expected.end()));
  CHECK(characters.largest() == vocabulary.size() - 1);

  // A file that changes after it was opened reaches no model.
  std::string changed = text;
  changed[5000] = '!';
  write_text_file(folder / "text", changed);
  CHECK(contains(file_error([&] { characters.read(0, read); }), "text: at byte 5000: a token that was not there"));
  std::filesystem::resize_file(folder / "text", 100);
  CHECK(contains(file_error([&] { characters.read(0, read); }), "cut"));
  TokenStore narrow = store;
  narrow.set_vocabulary(10);
  CHECK(contains(file_error([&] { narrow.read(0, got); }), "at byte 1026"));  // the second token, 13
}

TEST_CASE("store: tokens in an array's file, in each width that holds them", "[data][store]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.npy";
  const auto write = [&](const char* descr, std::size_t width, const char* shape) {
    std::string header = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
    header.resize(117, ' ');
    std::string file = std::string("\x93NUMPY\x01\0\x76\0", 10) + header + "\n";
    for (int i = 0; i < 6; ++i) {
      file += {static_cast<char>(200 + i), static_cast<char>(i)};
      file.resize(128 + width * static_cast<std::size_t>(i + 1));
    }
    write_text_file(path, file);
  };
  for (const auto& [descr, width] : {std::pair{"<u2", 2u}, {"<u4", 4u}, {"<i4", 4u}}) {
    INFO(descr);
    write(descr, width, "(6,)");
    const TokenStore store = open_tokens(path);
    REQUIRE(store.size() == 6);
    std::vector<std::int64_t> got(4);
    store.read(1, got);
    for (std::int64_t i = 0; i < 4; ++i) CHECK(got[static_cast<std::size_t>(i)] == 201 + i + 256 * (1 + i));
  }
  const auto last = [&](const char* descr, const std::string& token) {
    write(descr, 4, "(6,)");
    write_text_file(path, read_text_file(path).substr(0, 128 + 20) + token);
    return open_tokens(path).largest();
  };
  const std::string bits_31("\0\0\0\x80", 4);  // -2^31 if it has a sign
  CHECK(last("<u4", bits_31) == std::int64_t{1} << 31);
  CHECK(last("<i4", "\xff\xff\xff\x7f") == (std::int64_t{1} << 31) - 1);
  CHECK(contains(file_error([&] { last("<i4", bits_31); }), "token -2147483648; expected 0 to 2147483647"));
  const struct {
    const char* descr;
    std::size_t width;
    const char* shape;
  } refused[] = {{"<i8", 8, "(6,)"}, {"|u1", 1, "(6,)"}, {"|i1", 1, "(6,)"},   {"<f4", 4, "(6,)"},
                 {"<f2", 2, "(6,)"}, {"|b1", 1, "(6,)"}, {"<u2", 2, "(2, 3)"}, {"<i4", 4, "(6, 1)"}};
  for (const auto& row : refused) {
    INFO(row.descr << " " << row.shape);
    write(row.descr, row.width, row.shape);
    CHECK(contains(file_error([&] { open_tokens(path); }), "one axis of '<u2', '<u4' or '<i4'"));
  }
}

TEST_CASE("store: data sets keep nothing on the heap that is in a file", "[data][store]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "cifar");
  write_text_file(folder / "cifar/data_batch_1.bin", cifar(20, 1));
  write_text_file(folder / "cifar/test_batch.bin", cifar(7, 2));
  models::ModelOptions sizes;
  const auto net = models::make_model("resnet18", sizes, {.device = dry(cpu)});
  const auto images = models::open_dataset(folder / "cifar", *net, "resnet18", 1);
  sizes = net->options();
  sizes.image = 0;
  images->fit(sizes);
  images->open(sizes, 3, 1);
  CHECK(images->heap_bytes() <= 64);
  CHECK(images->validation_batches() == 3);
  const models::Batch last = images->validation_batch(2, cpu, DType::f32);
  CHECK(to_host<std::int64_t>(last.target) == std::vector<std::int64_t>{6});
  const models::Batch planned = images->validation_batch(2, dry(cpu), DType::f32);
  CHECK(planned.input.shape() == last.input.shape());

  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox "[i % 20];
  write_text_file(folder / "text", text);
  const auto gpt = models::make_model("char-gpt", {}, {.device = dry(cpu)});
  const auto words = models::open_dataset(folder / "text", *gpt, "char-gpt", 1);
  models::ModelOptions text_sizes;
  words->fit(text_sizes);
  text_sizes.sequence = 8;
  words->open(text_sizes, 2, 1);
  CHECK(words->heap_bytes() == 0);
  const models::Batch batch = words->validation_batch(0, cpu, DType::f32);
  const std::vector<std::uint8_t> expected = CharVocabulary(text).encode(text);
  const std::vector<std::int64_t> inputs = to_host<std::int64_t>(batch.input),
                                  targets = to_host<std::int64_t>(batch.target);
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(inputs[i] == expected[360 + i]);
    CHECK(targets[i] == expected[361 + i]);
  }
}
