#include <cstdio>
#include <functional>

#include <thimble/core/files/crc32c.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/generator.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tensor_files.h"

using namespace thimble;
using namespace files_test;

namespace {

// A mixed net: a convolution (transposed in files), buffers of two dtypes, an (I, O) weight, dotted names.
class Small final : public nn::Module {
 public:
  explicit Small(const nn::TensorOptions& on = {})
      : conv(child<nn::Conv2d>("stem.conv", 3, 5, 2, Conv2dOptions{}, true, on)),
        norm(child<nn::BatchNorm2d>("stem.bn", 5, on)),
        head(child<nn::Linear>("head", 5, 4, on, in_out())) {}
  nn::Conv2d& conv;
  nn::BatchNorm2d& norm;
  nn::Linear& head;

 private:
  static nn::LinearOptions in_out() {
    nn::LinearOptions options;
    options.weight_is_in_out = true;
    return options;
  }
};

std::vector<nn::NamedTensor> tensors_of(const nn::Module& module) {
  auto list = module.parameters();
  for (const auto& buffer : module.buffers()) list.push_back(buffer);
  return list;
}

std::vector<std::vector<double>> values_of(const nn::Module& module) {
  std::vector<std::vector<double>> list;
  for (const auto& named : tensors_of(module)) list.push_back(to_host<double>(named.tensor));
  return list;
}

Small made_with_seed(std::uint64_t seed, const nn::TensorOptions& on = {}) {
  RandomGenerator generator(seed);
  const GeneratorScope scope(generator);
  return Small(on);
}

void fill_all(const nn::Module& module, double value) {
  for (const auto& named : tensors_of(module)) fill(named.tensor, value);
}

// The file of `module`, all zeros, with a tensor renamed, reshaped or of another dtype.
struct Change {
  const char* what;
  std::function<void(std::vector<SafetensorsEntry>&)> change;
  const char* error;  // begins with the error's type
};

SafetensorsEntry entry_of(const std::string& name, SafetensorsDType dtype, std::vector<std::int64_t> shape) {
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype;
  entry.shape = std::move(shape);
  return entry;
}

}  // namespace

TEST_CASE("weights: load gives the saved values, and saving again the same bytes", "[weights]") {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    INFO(to_string(dtype));
    const Small a = made_with_seed(1, {cpu, dtype});
    Small b = made_with_seed(2, {cpu, dtype});
    fill(a.norm.running_mean, 0.25);
    fill(a.norm.num_batches_tracked, 7);
    REQUIRE(values_of(a) != values_of(b));
    nn::save_weights(a, folder / "a", {{"format", "pt"}, {"note", "\xc3\xa9"}});
    const nn::LoadedWeights loaded = nn::load_weights(b, folder / "a");
    CHECK(values_of(a) == values_of(b));
    CHECK(loaded.missing.empty());
    CHECK(loaded.unused.empty());
    nn::save_weights(b, folder / "b", loaded.metadata);
    CHECK(read_text_file(folder / "a") == read_text_file(folder / "b"));
  }
}

TEST_CASE("weights: a convolution is (O, I, KH, KW) in the file", "[weights]") {
  const TemporaryFolder folder;
  Small model;
  const std::int64_t o = 5, k = 2, i = 3;
  std::vector<float> memory, file;
  for (std::int64_t n = 0; n < o * k * k * i; ++n) memory.push_back(static_cast<float>(n));
  copy_into(model.conv.weight, from_host(memory, {o, k, k, i}));
  for (std::int64_t co = 0; co < o; ++co)
    for (std::int64_t ci = 0; ci < i; ++ci)
      for (std::int64_t y = 0; y < k; ++y)
        for (std::int64_t x = 0; x < k; ++x) file.push_back(static_cast<float>(((co * k + y) * k + x) * i + ci));
  nn::save_weights(model, folder / "w");
  const SafetensorsReader reader(folder / "w");
  const SafetensorsEntry& entry = reader.entry("stem.conv.weight");
  CHECK(entry.shape == std::vector<std::int64_t>{o, i, k, k});
  std::vector<float> read(file.size());
  reader.read(entry, std::as_writable_bytes(std::span(read)));
  CHECK(read == file);
  CHECK(reader.entry("head.weight").shape == std::vector<std::int64_t>{5, 4});
  CHECK(reader.entry("stem.bn.num_batches_tracked").dtype == SafetensorsDType::i64);
  CHECK(reader.header().tensors.size() == 9);
}

TEST_CASE("weights: a sum of a file reads both ends of each tensor", "[weights]") {
  const TemporaryFolder folder;
  const std::string path = folder / "w";
  const auto sum_with = [&](std::int64_t changed) {
    std::vector<float> values(3000);
    if (changed >= 0) values[static_cast<std::size_t>(changed)] = 1;
    nn::write_tensor_file(path, {{"long", from_host(values, {1500, 2})}, {"short", full({3}, 2)}}, {});
    const std::string text = "long F32 1500 2", other = "short F32 3";
    std::uint32_t sum = crc32c(text);
    const std::span<const float> all(values);
    for (const auto part : {all.first(1024), all.last(1024)}) sum = crc32c(std::as_bytes(part), sum);
    const float twos[] = {2, 2, 2, 2, 2, 2};  // all of a short one, twice
    sum = crc32c(std::as_bytes(std::span(twos)), crc32c(other, sum));
    char digits[16];
    std::snprintf(digits, sizeof digits, "%08x", sum);
    CHECK(nn::weights_sum(path) == digits);
    return std::string(digits);
  };
  const std::string plain = sum_with(-1);
  for (const std::int64_t place : {0, 1023, 1976, 2999}) CHECK(sum_with(place) != plain);
}

TEST_CASE("weights: floating types are converted once", "[weights]") {
  const TemporaryFolder folder;
  const Small wide = made_with_seed(3, {cpu, DType::f64});
  nn::save_weights(wide, folder / "f64");
  Small narrow({cpu, DType::bf16});
  nn::load_weights(narrow, folder / "f64");
  const auto expected = [](const Tensor& t) { return to_host<double>(to_dtype(t, DType::bf16)); };
  CHECK(to_host<double>(narrow.conv.weight) == expected(wide.conv.weight));
  CHECK(to_host<double>(narrow.head.weight) == expected(wide.head.weight));
  CHECK(to_host<double>(narrow.head.weight) != to_host<double>(wide.head.weight));
}

TEST_CASE("weights: prefixes and masks of public files", "[weights]") {
  const TemporaryFolder folder;
  const Small a = made_with_seed(4);
  auto renamed = tensors_of(a);
  for (auto& named : renamed) named.name = "transformer." + named.name;
  renamed.push_back({"transformer.h.0.attn.bias", zeros({1, 1, 4, 4}, DType::boolean), nn::FileLayout::same});
  renamed.push_back({"h.0.attn.masked_bias", zeros({}), nn::FileLayout::same});
  nn::write_tensor_file(folder / "w", renamed, {});
  Small b = made_with_seed(5);
  CHECK(nn::load_weights(b, folder / "w").unused.empty());
  CHECK(values_of(a) == values_of(b));

  nn::LoadOptions none;
  none.skipped_suffixes.clear();
  const std::string error = error_of([&] { nn::load_weights(b, folder / "w", none); });
  CHECK(contains(error, "ValueError"));
  CHECK(contains(error, "the model lacks"));
  CHECK(contains(error, "'transformer.h.0.attn.bias'"));

  auto more = renamed;
  for (const char* const name : {"a", "b", "c", "d", "e"}) more.push_back({name, zeros({2}), nn::FileLayout::same});
  nn::write_tensor_file(folder / "w", more, {});
  CHECK(error_of([&] { nn::load_weights(b, folder / "w"); }).ends_with("the model lacks 'a', 'b', 'c', 'd', 'e'"));

  // A suffix consists of whole parts of a name.
  renamed.push_back({"h.0.c_attn.bias", zeros({2}), nn::FileLayout::same});
  nn::write_tensor_file(folder / "w", renamed, {});
  CHECK(contains(error_of([&] { nn::load_weights(b, folder / "w"); }), "the model lacks 'h.0.c_attn.bias'"));
}

TEST_CASE("weights: a checkpoint in their place is told as one", "[weights]") {
  const TemporaryFolder folder;
  Small model = made_with_seed(6);
  auto tensors = tensors_of(model);
  nn::write_tensor_file(folder / "w", tensors, {});
  for (auto& named : tensors) named.name = "model." + named.name;
  nn::write_tensor_file(folder / "checkpoint", tensors, {{"thimble.step_count", "1"}});
  const std::string path = folder / "checkpoint";
  CHECK(error_of([&] { nn::load_weights(model, path); }) ==
        "ValueError load_weights: " + path + ": expected weights, got a checkpoint, which load_checkpoint reads");
  CHECK(error_of([&] { models::read_weight_facts(path); }) ==
        "ValueError `weights`: expected parameters only, as `save_weights` writes them, got '" + path +
            "', a checkpoint; `resume` in training and `checkpoint` in generation read it");
  nn::LoadOptions of_checkpoint;
  of_checkpoint.prefix = "model.";
  CHECK(nn::load_weights(model, path, of_checkpoint).missing.empty());
  CHECK(models::read_weight_facts(folder / "w").bytes > 0);
}

TEST_CASE("weights: what does not match is refused before anything changes", "[weights]") {
  const TemporaryFolder folder;
  Small model = made_with_seed(6);
  nn::save_weights(model, folder / "good");
  const auto entries = SafetensorsReader(folder / "good").header().tensors;
  using List = std::vector<SafetensorsEntry>;
  const std::vector<Change> changes{
      {"shape",
       [&](List& l) {
         entry_in(l, "head.weight").shape = {4, 5};
       },
       "ShapeError load_weights: PATH: tensor 'head.weight' is (4, 5) in the file, the model needs (5, 4)"},
      {"layout",
       [&](List& l) {
         entry_in(l, "stem.conv.weight").shape = {5, 2, 2, 3};
       },
       "ShapeError load_weights: PATH: tensor 'stem.conv.weight' is (5, 2, 2, 3) in the file, the model needs (5, 3, "
       "2, 2)"},
      {"rank", [&](List& l) { entry_in(l, "head.bias").shape = std::vector<std::int64_t>(9, 1); },
       "ShapeError load_weights: PATH: tensor 'head.bias' is (1, 1, 1, 1, 1, 1, 1, 1, 1) in the file"},
      {"scalar", [&](List& l) { entry_in(l, "stem.bn.num_batches_tracked").shape = {1}; },
       "ShapeError load_weights: PATH: tensor 'stem.bn.num_batches_tracked' is (1) in the file, the model needs ()"},
      {"integer for floating", [&](List& l) { entry_in(l, "head.bias").dtype = SafetensorsDType::i32; },
       "DTypeError load_weights: PATH: tensor 'head.bias' is i32 in the file, the model needs f32"},
      {"other integer", [&](List& l) { entry_in(l, "stem.bn.num_batches_tracked").dtype = SafetensorsDType::i32; },
       "DTypeError load_weights: PATH: tensor 'stem.bn.num_batches_tracked' is i32 in the file, the model needs i64"},
      {"no type of ours", [&](List& l) { entry_in(l, "head.bias").dtype = SafetensorsDType::u16; },
       "DTypeError safetensors: tensor 'head.bias' has dtype U16"},
      {"missing", [&](List& l) { entry_in(l, "head.bias").name = "head.offset"; },
       "ValueError load_weights: PATH: the file lacks 'head.bias'; the model lacks 'head.offset'"},
      {"missing buffer", [&](List& l) { l.erase(l.begin() + (&entry_in(l, "stem.bn.running_var") - l.data())); },
       "ValueError load_weights: PATH: the file lacks 'stem.bn.running_var'"},
      {"unknown", [&](List& l) { l.push_back(entry_of("extra", SafetensorsDType::f32, {1})); },
       "ValueError load_weights: PATH: the model lacks 'extra'"},
      {"many unknown",
       [&](List& l) {
         for (int i = 10; i < 20; ++i) l.push_back(entry_of("x" + std::to_string(i), SafetensorsDType::f32, {1}));
       },
       "'x14' and 5 more"},
  };
  const auto before = values_of(model);
  for (const Change& c : changes) {
    INFO(c.what);
    auto list = entries;
    c.change(list);
    write_zeros(folder / "bad", list);
    std::string expected = c.error;
    if (const auto place = expected.find("PATH"); place != std::string::npos)
      expected.replace(place, 4, folder / "bad");
    const std::string error = error_of([&] { nn::load_weights(model, folder / "bad"); });
    INFO(error);
    CHECK(contains(error, expected));
    CHECK(values_of(model) == before);
  }
  CHECK(contains(error_of([&] { nn::load_weights(model, folder / "none"); }), "FileError"));
  const std::string bytes = read_text_file(folder / "good");
  for (const std::size_t cut : {std::size_t{0}, std::size_t{5}, std::size_t{100}, bytes.size() - 1}) {
    write_text_file(folder / "bad", bytes.substr(0, cut));
    CHECK(contains(error_of([&] { nn::load_weights(model, folder / "bad"); }), "FileError"));
  }
  CHECK(values_of(model) == before);
}

TEST_CASE("weights: what matches is loaded when not strict, the rest is named", "[weights]") {
  const TemporaryFolder folder;
  const Small a = made_with_seed(7);
  auto some = tensors_of(a);
  some.erase(some.begin());
  some.push_back({"extra", zeros({2}), nn::FileLayout::same});
  nn::write_tensor_file(folder / "w", some, {{"k", "v"}});
  Small b;
  fill_all(b, 3);
  nn::LoadOptions options;
  options.is_strict = false;
  const nn::LoadedWeights loaded = nn::load_weights(b, folder / "w", options);
  CHECK(loaded.missing == std::vector<std::string>{"stem.conv.weight"});
  CHECK(loaded.unused == std::vector<std::string>{"extra"});
  CHECK(loaded.metadata == nn::Metadata{{"k", "v"}});
  CHECK(to_host<double>(b.head.weight) == to_host<double>(a.head.weight));
  for (const double value : to_host<double>(b.conv.weight)) CHECK(value == 3);
}

TEST_CASE("weights: a dry model checks a file and cannot be saved", "[weights]") {
  const TemporaryFolder folder;
  const Small real;
  nn::save_weights(real, folder / "w");
  Small model({dry(cpu), DType::f32});
  CHECK(nn::load_weights(model, folder / "w").missing.empty());
  CHECK(contains(error_of([&] { nn::save_weights(model, folder / "dry"); }), "DeviceError"));
  CHECK(folder.entries() == 1);
}
