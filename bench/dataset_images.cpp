#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include <thimble/bench/dataset.h>
#include <thimble/bench/units.h>
#include <thimble/core/bytes.h>
#include <thimble/core/convert.h>
#include <thimble/core/copy.h>
#include <thimble/core/crc32c.h>
#include <thimble/core/error.h>
#include <thimble/nn/data/cifar.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/synthetic.h>

namespace thimble::bench {
namespace dataset_images_detail {

namespace fs = std::filesystem;

// Synthetic sets have this many bytes of pixels, within these counts of images.
constexpr std::int64_t synthetic_bytes = 32 << 20, least_images = 256, most_images = 2048;
constexpr std::int64_t synthetic_classes = 10;

// Images to train on, then images to validate with.
struct Split {
  data::Images images;
  std::int64_t train = 0;
};

Split split_80_20(data::Images images) {
  const std::int64_t train = images.count / 5 * 4 + images.count % 5 * 4 / 5;
  return {std::move(images), train};
}

Split join(data::Images train, const data::Images& test, const std::string& path) {
  if (train.height != test.height || train.width != test.width || train.channels != test.channels) {
    throw ValueError("--data: '" + path + "': the images to train on and to test with have different sizes");
  }
  const std::int64_t count = train.count;
  train.pixels.insert(train.pixels.end(), test.pixels.begin(), test.pixels.end());
  train.labels.insert(train.labels.end(), test.labels.begin(), test.labels.end());
  train.count += test.count;
  train.classes = std::max(train.classes, test.classes);
  return {std::move(train), count};
}

class ImageSet final : public Dataset {
 public:
  explicit ImageSet(Split split) : images_(std::move(split.images)), train_(split.train) {
    const std::uint32_t sum = crc32c(bytes_of(images_.labels), crc32c(bytes_of(images_.pixels)));
    digest_ = format_grouped(images_.count) + " images, " + sum_text(sum);
  }

  void fit(models::ModelOptions& sizes) const override {
    if (images_.height != images_.width) {
      throw ValueError("data: images of " + std::to_string(images_.height) + " x " + std::to_string(images_.width) +
                       " pixels; models take square ones");
    }
    if (sizes.image > 0 && sizes.image != images_.height) {
      throw ValueError("--image: " + std::to_string(sizes.image) + "; the data have images of " +
                       std::to_string(images_.height) + " pixels, and that size alone is allowed");
    }
    sizes.image = images_.height;
    sizes.channels = images_.channels;
    sizes.classes = images_.classes;
  }

  void open(const models::ModelOptions&, std::int64_t samples, std::uint64_t seed) override {
    const std::int64_t validation = images_.count - train_;
    if (train_ < 1 || validation < 1) {
      throw ValueError("data: " + std::to_string(images_.count) + " images; at least two are needed");
    }
    samples_ = samples;
    const data::Normalization normalization = data::measure_normalization(images_, 0, train_);
    train_source_.emplace(images_, 0, train_, samples, seed, normalization);
    validation_source_.emplace(images_, train_, validation, samples, seed, normalization);
  }

  models::Batch batch(std::int64_t step, Device device, DType dtype) const override {
    if (prepared_ && prepared_->step == step && prepared_->images.dtype == dtype) {
      return to_batch(prepared_->images, device);
    }
    return to_batch(make(step, dtype), device);
  }

  void prepare(std::int64_t step, DType dtype) override { prepared_ = {step, make(step, dtype)}; }

  std::int64_t validation_batches() const override { return (images_.count - train_ + samples_ - 1) / samples_; }

  models::Batch validation_batch(std::int64_t index, Device device, DType dtype) const override {
    const std::int64_t first = index * samples_, count = std::min(samples_, images_.count - train_ - first);
    std::vector<std::int64_t> labels(static_cast<std::size_t>(count));
    std::vector<float> pixels(labels.size() * static_cast<std::size_t>(images_.image_elements()));
    validation_source_->sequential(first, std::span(pixels), std::span(labels));
    return to_batch(converted(pixels, std::move(labels), dtype), device);
  }

  std::int64_t items_per_sample() const override { return 1; }
  std::string decode(const std::vector<std::int64_t>&) const override { return {}; }
  std::string digest() const override { return digest_; }

 private:
  // What the host makes of a batch: pixels in the dtype that they are needed in, so that the device holds one copy.
  struct HostBatch {
    DType dtype;
    std::vector<std::byte> pixels;
    std::vector<std::int64_t> labels;
  };
  struct Prepared {
    std::int64_t step;
    HostBatch images;
  };

  HostBatch make(std::int64_t step, DType dtype) const {
    std::vector<std::int64_t> labels(static_cast<std::size_t>(samples_));
    std::vector<float> pixels(labels.size() * static_cast<std::size_t>(images_.image_elements()));
    train_source_->batch(step, std::span(pixels), std::span(labels));
    return converted(pixels, std::move(labels), dtype);
  }

  static HostBatch converted(const std::vector<float>& pixels, std::vector<std::int64_t> labels, DType dtype) {
    if (!is_floating(dtype)) {
      throw DTypeError("data: images in " + std::string(to_string(dtype)) + "; a floating dtype is allowed");
    }
    HostBatch batch{dtype, std::vector<std::byte>(pixels.size() * size_of(dtype)), std::move(labels)};
    convert(pixels.data(), DType::f32, batch.pixels.data(), dtype, static_cast<std::int64_t>(pixels.size()));
    return batch;
  }

  models::Batch to_batch(const HostBatch& images, Device device) const {
    const auto count = static_cast<std::int64_t>(images.labels.size());
    const Shape shape{count, images_.height, images_.width, images_.channels};
    const Tensor input = visit(images.dtype, [&]<class T>() -> Tensor {
      if constexpr (is_floating(dtype_of<T>)) {
        const std::span values(reinterpret_cast<const T*>(images.pixels.data()), images.pixels.size() / sizeof(T));
        return from_host(values, shape, device, Category::input);
      } else {
        return {};  // converted() makes none
      }
    });
    return {input, from_host(images.labels, {count}, device, Category::input)};
  }

  data::Images images_;
  std::int64_t train_;
  std::string digest_;
  std::int64_t samples_ = 0;
  std::optional<data::ImageSource> train_source_, validation_source_;
  std::optional<Prepared> prepared_;
};

// `folder`/`name`, plain or with .gz, where there is one.
std::optional<std::string> find_idx(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const char* ending : {"", ".gz"}) {
    if (const fs::path path = folder / (name + ending); fs::is_regular_file(path, error)) return path.string();
  }
  return std::nullopt;
}

// The images and labels of a part of MNIST ("train", "t10k"), where both are there.
std::optional<data::Images> read_part(const fs::path& folder, const std::string& part) {
  const auto images = find_idx(folder, part + "-images-idx3-ubyte");
  const auto labels = find_idx(folder, part + "-labels-idx1-ubyte");
  if (!images || !labels) return std::nullopt;
  return data::read_idx(*images, *labels);
}

Split read_folder(const std::string& folder) {
  std::optional<data::Images> train = read_part(folder, "train"), test = read_part(folder, "t10k");
  if (train && test) return join(std::move(*train), *test, folder);
  if (train) return split_80_20(std::move(*train));
  if (test) return split_80_20(std::move(*test));

  std::vector<std::string> batches;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("data_batch") && name.ends_with(".bin")) batches.push_back(entry.path().string());
  }
  std::sort(batches.begin(), batches.end());
  const std::string test_batch = (fs::path(folder) / "test_batch.bin").string();
  if (!batches.empty() && fs::is_regular_file(test_batch, error)) {
    return join(data::read_cifar10(batches), data::read_cifar10(std::span(&test_batch, 1)), folder);
  }
  if (!batches.empty()) return split_80_20(data::read_cifar10(batches));
  throw ValueError("--data: '" + folder +
                   "' has neither {train,t10k}-images-idx3-ubyte[.gz] with its labels-idx1-ubyte[.gz] nor "
                   "data_batch_*.bin of CIFAR-10");
}

Split read_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const std::size_t at = name.find("images-idx3");
  if (at != std::string::npos) {
    const std::string labels = name.substr(0, at) + "labels-idx1" + name.substr(at + std::string("images-idx3").size());
    return split_80_20(data::read_idx(path, (fs::path(path).parent_path() / labels).string()));
  }
  return split_80_20(data::read_cifar10(std::span(&path, 1)));
}

Split make_synthetic(const models::ModelOptions& sizes, std::uint64_t seed) {
  const std::int64_t bytes = sizes.image * sizes.image * sizes.channels;
  const std::int64_t count = std::clamp(synthetic_bytes / bytes, least_images, most_images);
  return split_80_20(data::synthetic_images(count, sizes.image, sizes.channels, synthetic_classes, seed));
}

}  // namespace dataset_images_detail

std::unique_ptr<Dataset> open_images(const std::string& path, const models::ModelOptions& model_sizes,
                                     std::uint64_t seed) {
  namespace detail = dataset_images_detail;
  std::error_code error;
  if (path == "synthetic") return std::make_unique<detail::ImageSet>(detail::make_synthetic(model_sizes, seed));
  return std::make_unique<detail::ImageSet>(detail::fs::is_directory(path, error) ? detail::read_folder(path)
                                                                                  : detail::read_file(path));
}

}  // namespace thimble::bench
