#include <thimble/models/datasets/dataset_text.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/units.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/store.h>
#include <thimble/nn/data/synthetic.h>

namespace thimble::models {
namespace {

namespace fs = std::filesystem;

// Bytes of pixels in a synthetic set, within bounds of the number of images.
constexpr std::int64_t synthetic_image_bytes = 32 << 20, least_images = 256, most_images = 2048;
constexpr std::int64_t synthetic_classes = 10;

// Training images, then validation images.
struct Split {
  data::ImageStore images;
  std::int64_t train = 0;
};

Split split_80_20(data::ImageStore images) {
  const std::int64_t train = images.count / 5 * 4 + images.count % 5 * 4 / 5;
  return {std::move(images), train};
}

Split join(data::ImageStore train, const data::ImageStore& test, const std::string& path) {
  if (train.height != test.height || train.width != test.width || train.channels != test.channels) {
    throw ValueError("`data`: '" + path + "': the images to train on and to test with have different sizes");
  }
  const std::int64_t count = train.count;
  train.append(test);
  return {std::move(train), count};
}

// A batch on the host, for a device that the host cannot write to, with pixels in the target's dtype.
struct HostBatch {
  void resize(std::int64_t elements, std::int64_t samples, DType as) {
    dtype = as;
    pixels.resize(static_cast<std::size_t>(elements) * size_of(as));
    labels.resize(static_cast<std::size_t>(samples));
  }
  std::int64_t step = -1;
  DType dtype = DType::f32;
  std::vector<std::byte> pixels;
  std::vector<std::int64_t> labels;
};

class ImageSet final : public Dataset {
 public:
  explicit ImageSet(Split split)
      : store_(std::make_shared<const data::ImageStore>(std::move(split.images))),
        images_(*store_),
        train_(split.train),
        digest_(format_grouped(images_.count) + " images, " + sum_text(images_.checksum())) {}

  void fit(ModelOptions& sizes) const override {
    if (images_.height != images_.width) {
      throw ValueError("`data`: " + quote(path, 200) + ": images of " + std::to_string(images_.height) + " x " +
                       std::to_string(images_.width) + " pixels; models take square ones");
    }
    if (sizes.image > 0 && sizes.image != images_.height) {
      throw ValueError("`image`: " + std::to_string(sizes.image) + "; " + quote(path, 200) + " has images of " +
                       std::to_string(images_.height) + " pixels; expected that size");
    }
    sizes.image = images_.height;
    sizes.channels = images_.channels;
    sizes.classes = images_.classes;
  }

  void open(const ModelOptions&, std::int64_t samples, std::uint64_t seed) override {
    const std::int64_t validation = images_.count - train_;
    if (train_ < 1 || validation < 1) {
      throw ValueError("`data`: " + quote(path, 200) + ": " + std::to_string(images_.count) +
                       " images; at least two are needed");
    }
    samples_ = samples;
    const data::Normalization normalization = data::measure_normalization(images_, 0, train_);
    // A part is read as a separate smaller batch: parts() steps of such batches visit the same images.
    train_source_.emplace(store_, 0, train_, samples / share().parts(), seed, normalization);
    validation_source_.emplace(store_, train_, validation, samples, seed, normalization);
  }

  Batch batch(std::int64_t step, memory::Device device, DType dtype) const override {
    if (prepared_ && prepared_->step == step && prepared_->dtype == dtype) {
      return upload(*prepared_, own_samples(), device);
    }
    return make(own_samples(), device, dtype,
                [&](std::byte* pixels, std::span<std::int64_t> labels) { read(step, dtype, pixels, labels); });
  }

  void prepare(std::int64_t step, DType dtype) override {
    if (!prepared_) prepared_.emplace();
    prepared_->step = -1;  // no step, in case reading fails
    prepared_->resize(own_samples() * images_.image_elements(), own_samples(), dtype);
    read(step, dtype, prepared_->pixels.data(), std::span(prepared_->labels));
    prepared_->step = step;
  }

  std::int64_t validation_batches() const override { return (images_.count - train_ + samples_ - 1) / samples_; }

  Batch validation_batch(std::int64_t index, memory::Device device, DType dtype) const override {
    const std::int64_t first = index * samples_, count = std::min(samples_, images_.count - train_ - first);
    return make(count, device, dtype, [&](std::byte* pixels, std::span<std::int64_t> labels) {
      validation_source_->sequential_into(first, dtype, pixels, labels);
    });
  }

  std::int64_t items_per_sample() const override { return 1; }
  std::string decode(const std::vector<std::int64_t>&) const override { return {}; }
  std::string digest() const override { return digest_; }
  std::size_t heap_bytes() const override { return store_->heap_bytes(); }

 private:
  std::int64_t own_samples() const noexcept { return samples_ / share().ranks; }

  void read(std::int64_t step, DType dtype, std::byte* pixels, std::span<std::int64_t> labels) const {
    const auto each = static_cast<std::size_t>(samples_ / share().parts());
    const std::size_t image_bytes = static_cast<std::size_t>(images_.image_elements()) * size_of(dtype);
    for (std::int64_t m = 0; m < share().micro_batches; ++m) {
      const std::size_t at = static_cast<std::size_t>(m) * each;
      train_source_->batch_into(step * share().parts() + share().part(m), dtype, pixels + at * image_bytes,
                                labels.subspan(at, each));
    }
  }

  Shape shape_of(std::int64_t count) const { return {count, images_.height, images_.width, images_.channels}; }

  // `fill(pixels, labels)` writes a batch of `count`, on the cpu straight into its tensors; not called on a dry device.
  template <class Fill>
  Batch make(std::int64_t count, memory::Device device, DType dtype, Fill&& fill) const {
    if (!is_floating(dtype)) {
      throw DTypeError("data: images in " + std::string(to_string(dtype)) + "; expected a floating dtype");
    }
    if (device.is_cuda() && !device.is_dry) {
      HostBatch batch;
      batch.resize(count * images_.image_elements(), count, dtype);
      fill(batch.pixels.data(), std::span(batch.labels));
      return upload(batch, count, device);
    }
    const Batch batch{Tensor::empty(shape_of(count), dtype, device, memory::Category::input),
                      Tensor::empty({count}, DType::i64, device, memory::Category::input)};
    if (device.is_dry) return batch;
    const memory::WritePin pixels(batch.input), labels(batch.target);
    fill(static_cast<std::byte*>(pixels.data()),
         {static_cast<std::int64_t*>(labels.data()), static_cast<std::size_t>(count)});
    return batch;
  }

  Batch upload(const HostBatch& images, std::int64_t count, memory::Device device) const {
    const Tensor input = visit(images.dtype, [&]<class T>() -> Tensor {
      if constexpr (is_floating(dtype_of<T>)) {
        const std::span values(reinterpret_cast<const T*>(images.pixels.data()), images.pixels.size() / sizeof(T));
        return from_host(values, shape_of(count), device, memory::Category::input);
      } else {
        return {};  // make() throws
      }
    });
    return {input, from_host(images.labels, {count}, device, memory::Category::input)};
  }

  std::shared_ptr<const data::ImageStore> store_;
  const data::ImageStore& images_;
  std::int64_t train_;
  std::string digest_;
  std::int64_t samples_ = 0;
  std::optional<data::ImageSource> train_source_, validation_source_;
  std::optional<HostBatch> prepared_;
};

// `folder`/`name`, plain or with .gz, if it exists.
std::optional<std::string> find_idx(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const char* ending : {"", ".gz"}) {
    if (const fs::path path = folder / (name + ending); fs::is_regular_file(path, error)) return path.string();
  }
  return std::nullopt;
}

// The images and labels of a part, if both exist: MNIST's "train" and "t10k", EMNIST's "emnist-letters-train" and
// "emnist-letters-test". Throws ValueError if a folder has several sets.
std::optional<data::ImageStore> open_part(const fs::path& folder, std::initializer_list<std::string_view> parts) {
  constexpr std::string_view images_name = "-images-idx3-ubyte";
  std::set<std::string> found;  // prefixes of the file names
  for (const std::string& name : names_in(folder.string())) {
    const std::size_t at = name.find(images_name);
    if (at == std::string::npos) continue;
    const std::string start = name.substr(0, at);
    const bool is_part = std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
      return start == part || start.ends_with("-" + std::string(part));
    });
    if (is_part && find_idx(folder, start + std::string(images_name)) && find_idx(folder, start + "-labels-idx1-ubyte"))
      found.insert(start);
  }
  if (found.empty()) return std::nullopt;
  if (found.size() > 1) {
    throw ValueError("`data`: '" + folder.string() + "' has several sets of images: " + *found.begin() + " and " +
                     *found.rbegin() + "; expected the files of one");
  }
  const std::string& start = *found.begin();
  return data::open_idx(*find_idx(folder, start + std::string(images_name)),
                        *find_idx(folder, start + "-labels-idx1-ubyte"));
}

// The CIFAR of a batch, by its size and, if that fits both, by its name.
const data::CifarForm& cifar_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error || bytes % data::cifar100.record() != 0) return data::cifar10;
  const std::string name = path.filename().string();
  const bool is_named = name == "train.bin" || name == "test.bin";
  return is_named || bytes % data::cifar10.record() != 0 ? data::cifar100 : data::cifar10;
}

Split read_folder(const std::string& folder) {
  std::optional<data::ImageStore> train = open_part(folder, {"train"}), test = open_part(folder, {"t10k", "test"});
  if (train && test) return join(std::move(*train), *test, folder);
  if (train) return split_80_20(std::move(*train));
  if (test) return split_80_20(std::move(*test));

  std::vector<std::string> batches;
  std::error_code error;
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with("data_batch") && name.ends_with(".bin")) batches.push_back((fs::path(folder) / name).string());
  }
  const std::string test_batch = (fs::path(folder) / "test_batch.bin").string();
  if (!batches.empty() && fs::is_regular_file(test_batch, error)) {
    return join(data::open_cifar(data::cifar10, batches), data::open_cifar(data::cifar10, std::span(&test_batch, 1)),
                folder);
  }
  if (!batches.empty()) return split_80_20(data::open_cifar(data::cifar10, batches));
  const std::string parts[] = {(fs::path(folder) / "train.bin").string(), (fs::path(folder) / "test.bin").string()};
  if (fs::is_regular_file(parts[0], error)) {
    data::ImageStore all = data::open_cifar(data::cifar100, std::span(parts, 1));
    if (!fs::is_regular_file(parts[1], error)) return split_80_20(std::move(all));
    return join(std::move(all), data::open_cifar(data::cifar100, std::span(parts + 1, 1)), folder);
  }
  throw ValueError("`data`: '" + folder +
                   "' has neither *{train,t10k,test}-images-idx3-ubyte[.gz] with its labels-idx1-ubyte[.gz] nor "
                   "data_batch_*.bin of CIFAR-10 nor train.bin of CIFAR-100");
}

Split read_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const std::size_t at = name.find("images-idx3");
  if (at != std::string::npos) {
    const std::string labels = name.substr(0, at) + "labels-idx1" + name.substr(at + std::string("images-idx3").size());
    return split_80_20(data::open_idx(path, (fs::path(path).parent_path() / labels).string()));
  }
  return split_80_20(data::open_cifar(cifar_of(path), std::span(&path, 1)));
}

Split make_synthetic(const ModelOptions& sizes, std::uint64_t seed) {
  const std::int64_t bytes = sizes.image * sizes.image * sizes.channels;
  const std::int64_t count = std::clamp(synthetic_image_bytes / bytes, least_images, most_images);
  return split_80_20(
      data::ImageStore(data::synthetic_images(count, sizes.image, sizes.channels, synthetic_classes, seed)));
}

}  // namespace

std::unique_ptr<Dataset> open_images(const std::string& path, const ModelOptions& model_sizes, std::uint64_t seed) {
  std::error_code error;
  if (path == "synthetic") return std::make_unique<ImageSet>(make_synthetic(model_sizes, seed));
  return std::make_unique<ImageSet>(fs::is_directory(path, error) ? read_folder(path) : read_file(path));
}

}  // namespace thimble::models
