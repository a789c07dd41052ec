// Training and validation data never overlap, for every kind of data: samples carry their number, and images are
// normalised by statistics of the training images only.

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/nn/data/masking.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/data/tokens.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using files_test::big;
using files_test::TemporaryFolder;

namespace {

constexpr std::int64_t batch_samples = 4;

// ---- Images: the first two values of an image are its number; the rest get brighter from image to image ----

using Image = std::string;  // bytes (H, W, C)

double value_of(char byte) { return static_cast<unsigned char>(byte) / 255.0; }

Image numbered_image(std::size_t number, std::size_t elements) {
  Image image(elements, '\0');
  for (std::size_t i = 2; i < elements; ++i) image[i] = static_cast<char>((number * 5 + i * i % 37) % 256);
  image[0] = static_cast<char>(number % 256);
  image[1] = static_cast<char>(number / 256);
  return image;
}

char label_of(std::size_t number) { return static_cast<char>(number % 10); }

// `count` images of 8 x 8, from number `first` on, with their labels.
void write_idx(const TemporaryFolder& folder, const std::string& name, std::size_t first, std::size_t count) {
  std::string images = big(0x803, 4) + big(count, 4) + big(8, 4) + big(8, 4), labels = big(0x801, 4) + big(count, 4);
  for (std::size_t i = first; i < first + count; ++i) {
    images += numbered_image(i, 64);
    labels += label_of(i);
  }
  files_test::write_text_file(folder / (name + "-images-idx3-ubyte"), images);
  files_test::write_text_file(folder / (name + "-labels-idx1-ubyte"), labels);
}

// A file holds planes of 32 x 32: red, green, blue.
void write_cifar(const TemporaryFolder& folder, const std::string& name, std::size_t first, std::size_t count) {
  std::string text;
  for (std::size_t i = first; i < first + count; ++i) {
    const Image image = numbered_image(i, 3072);
    text += label_of(i);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t p = 0; p < 1024; ++p) text += image[p * 3 + c];
    }
  }
  files_test::write_text_file(folder / name, text);
}

// A batch's images, converted back to bytes, and labels.
struct Found {
  std::vector<Image> images;
  std::vector<std::int64_t> labels;
};

Found found_in(const models::Batch& batch, const std::vector<double>& mean, const std::vector<double>& deviation) {
  Found found;
  const std::vector<double> values = to_host<double>(batch.input);
  found.labels = to_host<std::int64_t>(batch.target);
  const std::size_t elements = values.size() / found.labels.size(), channels = mean.size();
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double byte = (values[i] * deviation[i % channels] + mean[i % channels]) * 255;
    if (!(std::abs(byte - std::round(byte)) <= worst)) worst = std::abs(byte - std::round(byte));
    if (i % elements == 0) found.images.emplace_back();
    found.images.back().push_back(static_cast<char>(std::lround(byte)));
  }
  CHECK(worst < 2e-3);  // another mean or deviation would not give whole numbers
  return found;
}

// Checks every batch of two epochs and of the validation. Images 0 to `train` - 1 are for training, the next up to
// `count` for validation, in this order; `image_of` gives each image.
void check_images(const std::string& path, std::size_t train, std::size_t count,
                  const std::function<Image(std::size_t)>& image_of,
                  const std::function<std::int64_t(std::size_t)>& label) {
  INFO(path);
  models::ModelOptions sizes;
  sizes.image = image_of(0).size() == 64 ? 8 : 32;
  const auto model = models::make_model("mlp", sizes, {.device = dry(cpu)});
  const auto data = models::open_dataset(path, *model, "mlp", 5);
  models::ModelOptions fitted = sizes;
  data->fit(fitted);
  data->open(fitted, batch_samples, 5);

  const auto channels = static_cast<std::size_t>(fitted.channels);
  std::vector<double> mean(channels), deviation(channels);
  const double pixels = static_cast<double>(train * image_of(0).size() / channels);
  std::map<Image, std::size_t> numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.emplace(image_of(i), i);
  REQUIRE(numbers.size() == count);
  for (std::size_t i = 0; i < train; ++i) {
    const Image image = image_of(i);
    for (std::size_t p = 0; p < image.size(); ++p) mean[p % channels] += value_of(image[p]) / pixels;
  }
  for (std::size_t i = 0; i < train; ++i) {
    const Image image = image_of(i);
    for (std::size_t p = 0; p < image.size(); ++p) {
      deviation[p % channels] += std::pow(value_of(image[p]) - mean[p % channels], 2) / pixels;
    }
  }
  for (double& d : deviation) d = std::sqrt(d);

  std::set<std::size_t> seen;
  const auto look = [&](const models::Batch& batch) {
    const Found found = found_in(batch, mean, deviation);
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < found.images.size(); ++i) {
      const auto number = numbers.find(found.images[i]);
      REQUIRE(number != numbers.end());
      CHECK(found.labels[i] == label(number->second));
      list.push_back(number->second);
    }
    return list;
  };
  const auto steps = static_cast<std::int64_t>(2 * train / batch_samples + 1);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (const std::size_t number : look(data->batch(step, cpu, DType::f32))) seen.insert(number);
  }
  CHECK(seen.size() == train);
  CHECK(*seen.rbegin() == train - 1);
  std::size_t next = train;
  for (std::int64_t i = 0; i < data->validation_batches(); ++i) {
    for (const std::size_t number : look(data->validation_batch(i, cpu, DType::f32))) CHECK(number == next++);
  }
  CHECK(next == count);
}

void check_numbered(const std::string& path, std::size_t train, std::size_t count, std::size_t elements) {
  check_images(
      path, train, count, [=](std::size_t i) { return numbered_image(i, elements); },
      [](std::size_t i) { return label_of(i); });
}

// ---- Text ----

struct Seen {
  std::set<std::int64_t> train, validation;
};

Seen tokens_of(const models::Dataset& data, std::int64_t steps) {
  Seen seen;
  const auto add = [](const models::Batch& batch, std::set<std::int64_t>& tokens) {
    for (const Tensor& t : {batch.input, batch.target}) {
      for (const std::int64_t token : to_host<std::int64_t>(t)) tokens.insert(token);
    }
  };
  for (std::int64_t step = 0; step < steps; ++step) add(data.batch(step, cpu, DType::f32), seen.train);
  for (std::int64_t i = 0; i < data.validation_batches(); ++i) {
    add(data.validation_batch(i, cpu, DType::f32), seen.validation);
  }
  return seen;
}

std::unique_ptr<models::Dataset> opened_text(const std::string& path, const char* name, std::int64_t sequence) {
  models::ModelOptions sizes;
  sizes.sequence = sequence;
  sizes.layers = 1, sizes.heads = 1, sizes.width = 32;
  const auto model = models::make_model(name, sizes, {.device = dry(cpu)});
  auto data = models::open_dataset(path, *model, name, 5);
  models::ModelOptions fitted = model->options();
  data->fit(fitted);
  data->open(fitted, batch_samples, 5);
  return data;
}

// Checks that `tokens` are exactly first .. end - 1.
void check_range(const std::set<std::int64_t>& tokens, std::int64_t first, std::int64_t end) {
  REQUIRE_FALSE(tokens.empty());
  CHECK(*tokens.begin() == first);
  CHECK(*tokens.rbegin() == end - 1);
  CHECK(static_cast<std::int64_t>(tokens.size()) == end - first);
}

std::vector<std::uint16_t> numbered_tokens(std::uint16_t first, std::uint16_t end) {
  std::vector<std::uint16_t> tokens;
  for (std::uint16_t t = first; t < end; ++t) tokens.push_back(t);
  return tokens;
}

}  // namespace

TEST_CASE("dataset split: images of every kind of file", "[data]") {
  const TemporaryFolder both, train_alone, test_alone, file, cifar, cifar_alone, cifar_file;
  write_idx(both, "train", 0, 23);
  write_idx(both, "t10k", 23, 9);
  check_numbered(both.path(), 23, 32, 64);
  write_idx(train_alone, "train", 0, 33);
  check_numbered(train_alone.path(), 26, 33, 64);  // 80 % of 33, rounded down
  write_idx(test_alone, "t10k", 0, 20);
  check_numbered(test_alone.path(), 16, 20, 64);
  write_idx(file, "own", 0, 300);
  check_numbered(file / "own-images-idx3-ubyte", 240, 300, 64);
  write_cifar(cifar, "data_batch_1.bin", 0, 7);
  write_cifar(cifar, "data_batch_2.bin", 7, 6);
  write_cifar(cifar, "test_batch.bin", 13, 5);
  check_numbered(cifar.path(), 13, 18, 3072);
  write_cifar(cifar_alone, "data_batch_1.bin", 0, 11);
  check_numbered(cifar_alone.path(), 8, 11, 3072);
  write_cifar(cifar_file, "some.bin", 0, 10);
  check_numbered(cifar_file / "some.bin", 8, 10, 3072);
}

TEST_CASE("dataset split: images made on the spot", "[data]") {
  const data::Images made = data::synthetic_images(2048, 8, 1, 10, 5);
  const auto image_of = [&](std::size_t i) {
    return Image(made.pixels.begin() + static_cast<std::ptrdiff_t>(i * 64),
                 made.pixels.begin() + static_cast<std::ptrdiff_t>((i + 1) * 64));
  };
  check_images("synthetic", 1638, 2048, image_of, [&](std::size_t i) { return made.labels[i]; });
}

TEST_CASE("dataset split: text of characters", "[data]") {
  const TemporaryFolder folder;
  std::string text;  // the first nine tenths in small letters, the rest in capitals
  for (int i = 0; i < 900; ++i) text += static_cast<char>('a' + i * i % 26 % 20);
  for (int i = 0; i < 100; ++i) text += static_cast<char>('A' + i * 7 % 20);
  files_test::write_text_file(folder / "text.txt", text);
  for (const char* const name : {"char-gpt", "bert-base"}) {
    INFO(name);
    const auto data = opened_text(folder / "text.txt", name, 8);
    const std::string symbols = data->symbols();
    const Seen seen = tokens_of(*data, 300);
    const auto mask = static_cast<std::int64_t>(symbols.size());
    for (const std::int64_t token : seen.train) {
      if (token < 0 || token >= mask) continue;  // ignored targets, and [MASK]
      // Any token may replace a hidden one, so a masked model sees all of them.
      if (name == std::string("char-gpt")) CHECK(symbols[static_cast<std::size_t>(token)] >= 'a');
    }
    if (name == std::string("char-gpt")) {
      for (const std::int64_t token : seen.validation) CHECK(symbols[static_cast<std::size_t>(token)] <= 'Z');
      continue;
    }
    // Characters of a masked model's targets stay. [MASK] replaces hidden tokens, and no other.
    for (std::int64_t step = 0; step < 100; ++step) {
      const models::Batch batch = data->batch(step, cpu, DType::f32);
      const auto inputs = to_host<std::int64_t>(batch.input), targets = to_host<std::int64_t>(batch.target);
      std::vector<std::int64_t> tokens = inputs, hidden(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) tokens[i] = targets[i] >= 0 ? targets[i] : inputs[i];
      for (const std::int64_t token : targets) CHECK((token < 0 || symbols[static_cast<std::size_t>(token)] >= 'a'));
      data::mask_windows(tokens, hidden, 8, 5, step, {.mask_token = mask, .vocabulary = mask});
      CHECK((tokens == inputs && hidden == targets));
    }
    for (std::int64_t i = 0; i < data->validation_batches(); ++i) {
      for (const std::int64_t token : to_host<std::int64_t>(data->validation_batch(i, cpu, DType::f32).target)) {
        if (token >= 0) CHECK(symbols[static_cast<std::size_t>(token)] <= 'Z');
      }
    }
  }
}

TEST_CASE("dataset split: files of tokens", "[data]") {
  const TemporaryFolder folder, pair;
  data::write_tokens(folder / "tokens.bin", numbered_tokens(0, 1003));
  const Seen one = tokens_of(*opened_text(folder / "tokens.bin", "gpt2", 10), 2000);
  check_range(one.train, 0, 902);  // nine tenths of 1,003, rounded down
  check_range(one.validation, 902, 1003);
  data::write_tokens(pair / "some_train_0.bin", numbered_tokens(0, 300));
  data::write_tokens(pair / "some_val_0.bin", numbered_tokens(500, 551));
  const Seen two = tokens_of(*opened_text(pair.path(), "gpt2", 10), 1000);
  check_range(two.train, 0, 300);
  check_range(two.validation, 500, 551);
  // A sample of 50 tokens has its last target in the 51st.
  check_range(tokens_of(*opened_text(pair.path(), "gpt2", 50), 1).validation, 500, 551);
  CHECK_THROWS_WITH(opened_text(pair.path(), "gpt2", 51),
                    Catch::StartsWith("`data`: '" + pair.path() + "': 51 tokens to validate with; samples of 51 need"));
  data::write_tokens(pair / "some_train_0.bin", numbered_tokens(0, 50));
  CHECK_THROWS_WITH(opened_text(pair.path(), "gpt2", 50), Catch::Contains("': 50 tokens to train on; samples"));
}

TEST_CASE("dataset split: text made on the spot", "[data]") {
  const std::string text = data::synthetic_text(std::size_t{1} << 20, 5);
  const std::string train = text.substr(0, text.size() / 10 * 9 + text.size() % 10 * 9 / 10);
  const auto data = opened_text("synthetic", "char-gpt", 120);
  for (std::int64_t step = 0; step < 4; ++step) {
    const std::vector<std::int64_t> tokens = to_host<std::int64_t>(data->batch(step, cpu, DType::f32).input);
    for (std::size_t b = 0; b < 4; ++b) {
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(b * 120);
      CHECK(train.find(data->decode({first, first + 120})) != std::string::npos);
    }
  }
  const std::vector<std::int64_t> tokens = to_host<std::int64_t>(data->validation_batch(0, cpu, DType::f32).input);
  CHECK(data->decode(tokens) == text.substr(train.size(), tokens.size()));
}

// ---- Training batches depend only on the step, whether or not the host prepared them ahead.

namespace {

std::vector<std::vector<double>> values(const models::Batch& batch) {
  return {to_host<double>(batch.input), to_host<double>(batch.target)};
}

}  // namespace

TEST_CASE("dataset: a batch that was prepared is the batch") {
  for (const char* const name : {"resnet18", "char-gpt"}) {
    models::ModelOptions sizes;
    const auto model = models::make_model(name, sizes, {.device = dry(cpu)});
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto ahead = models::open_dataset("synthetic", *model, name, 5);
      const auto plain = models::open_dataset("synthetic", *model, name, 5);
      models::ModelOptions fitted = model->options();
      ahead->fit(fitted);
      for (models::Dataset* const data : {ahead.get(), plain.get()}) data->open(fitted, 4, 5);
      for (const std::int64_t step : {0, 1, 2, 7, 3}) {
        INFO(name << " in " << to_string(dtype) << ", step " << step);
        CHECK(values(ahead->batch(step, cpu, dtype)) == values(plain->batch(step, cpu, dtype)));
        ahead->prepare(step + 1, dtype);  // the next batch, or another
      }
      CHECK(ahead->batch(4, cpu, DType::f32).input.dtype() == plain->batch(4, cpu, DType::f32).input.dtype());
      CHECK(values(ahead->batch(4, cpu, DType::f32)) == values(plain->batch(4, cpu, DType::f32)));
      CHECK(values(ahead->batch(0, cpu, dtype)) != values(ahead->batch(1, cpu, dtype)));
    }
  }
}
