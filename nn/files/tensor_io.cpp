#include <thimble/nn/files/tensor_io.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/units.h>

namespace thimble::nn {

std::span<std::byte> FileStaging::room(std::vector<std::byte>& piece, std::size_t least_bytes) {
  const std::size_t bytes = std::max(file_piece_bytes, least_bytes);
  try {
    if (piece.size() < bytes) piece.resize(bytes);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("file: the heap has no " + std::to_string(bytes) + " bytes for a piece of a tensor",
                      {bytes, 0, 0, 0, 0});
  }
  return piece;
}

namespace {

// A tensor as rows that are equally long in file and memory but may differ in order. With FileLayout::oihw a row is a
// filter: (O, KH, KW, I) in memory is (O, I, KH, KW) in a file. Otherwise a row is an element.
struct Rows {
  Rows(const Shape& memory, FileLayout layout) {
    if (layout == FileLayout::oihw) {
      inputs = memory.back();
      for (int axis = 1; axis + 1 < memory.rank(); ++axis) pixels *= memory[axis];
    }
    count = elements() == 0 ? 0 : memory.elements() / elements();
  }
  std::int64_t elements() const noexcept { return inputs * pixels; }

  std::int64_t count = 0, inputs = 1, pixels = 1;
};

// Transposes each of `rows` rows: (a, b) elements of `size` bytes become (b, a).
void transpose(const std::byte* from, std::byte* to, std::int64_t rows, std::int64_t a, std::int64_t b,
               std::size_t size) {
  for (std::int64_t r = 0; r < rows; ++r, from += static_cast<std::size_t>(a * b) * size) {
    for (std::int64_t j = 0; j < b; ++j) {
      for (std::int64_t i = 0; i < a; ++i, to += size) {
        std::memcpy(to, from + static_cast<std::size_t>(i * b + j) * size, size);
      }
    }
  }
}

// Calls body(first, count) for as many rows of `row_bytes` bytes at a time as fit the staging.
template <class Body>
void each_piece(const Rows& rows, std::size_t row_bytes, Body&& body) {
  const std::size_t fit = std::max<std::size_t>(1, file_piece_bytes / std::max<std::size_t>(1, row_bytes));
  const auto most = static_cast<std::int64_t>(fit);
  for (std::int64_t first = 0; first < rows.count; first += most) body(first, std::min(most, rows.count - first));
}

// A dense tensor on the CPU: its bytes pass through the staging only if the layout differs.
void append_here(SafetensorsWriter& file, const NamedTensor& named, FileStaging& staging) {
  const Tensor& t = named.tensor;
  const memory::Pin pin(t);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(pin.data()), t.bytes());
  if (named.layout == FileLayout::same) return file.append(named.name, bytes);
  const Rows rows(t.shape(), named.layout);
  const std::size_t size = size_of(t.dtype()), row_bytes = static_cast<std::size_t>(rows.elements()) * size;
  each_piece(rows, row_bytes, [&](std::int64_t first, std::int64_t count) {
    const std::size_t begin = static_cast<std::size_t>(first) * row_bytes;
    const auto piece_bytes = static_cast<std::size_t>(count) * row_bytes;
    const auto piece = staging.of_file(piece_bytes).first(piece_bytes);
    transpose(bytes.data() + begin, piece.data(), count, rows.pixels, rows.inputs, size);
    file.append(named.name, piece);
  });
}

// A GPU tensor comes to the CPU in pieces of whole rows, temporaries of the CPU's resource.
void append(SafetensorsWriter& file, const NamedTensor& named, FileStaging& staging) {
  const Tensor& t = named.tensor;
  if (t.elements() == 0) return;
  if (t.device().is_cpu() && t.is_contiguous()) return append_here(file, named, staging);
  const Tensor dense = contiguous(t);
  const std::int64_t rows = dense.rank() == 0 ? 1 : dense.size(0);
  const std::int64_t row_bytes = static_cast<std::int64_t>(dense.bytes()) / rows;
  const std::int64_t most =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(file_piece_bytes) / std::max<std::int64_t>(1, row_bytes));
  for (std::int64_t first = 0; first < rows; first += most) {
    const Tensor part = dense.rank() == 0 ? dense : view::slice(dense, 0, first, std::min(first + most, rows));
    append_here(file, {named.name, to_device(part, cpu), named.layout}, staging);
  }
}

SafetensorsEntry entry_of(const std::string& path, const NamedTensor& named) {
  const Tensor& t = named.tensor;
  if (t.device().is_dry) throw DeviceError(path + ": tensor " + quote(named.name) + " is on a dry device, no values");
  if (t.scale()) throw DTypeError(path + ": tensor " + quote(named.name) + " is quantized; its scales are not saved");
  const Shape shape = file_shape(t.shape(), named.layout);
  SafetensorsEntry entry;
  entry.name = named.name;
  entry.dtype = to_safetensors_dtype(t.dtype());
  entry.shape.assign(shape.begin(), shape.end());
  return entry;
}

// Reads into the storage of a dense tensor on the CPU, through the staging if layout or dtype differ.
void read_here(const SafetensorsReader& file, const SafetensorsEntry& entry, const NamedTensor& target,
               FileStaging& staging) {
  const Tensor& t = target.tensor;
  const DType from = loadable_dtype(entry);
  const memory::WritePin pin(t);
  auto* const to = static_cast<std::byte*>(pin.data());
  if (from == t.dtype() && target.layout == FileLayout::same) return file.read(entry, {to, t.bytes()});
  const Rows rows(t.shape(), target.layout);
  const std::size_t size = size_of(from);
  const std::size_t row_bytes = static_cast<std::size_t>(rows.elements()) * size;
  const std::size_t target_row_bytes = static_cast<std::size_t>(rows.elements()) * size_of(t.dtype());
  each_piece(rows, row_bytes, [&](std::int64_t first, std::int64_t count) {
    const auto piece_bytes = static_cast<std::size_t>(count) * row_bytes;
    const auto piece = staging.of_file(piece_bytes).first(piece_bytes);
    file.read_part(entry, static_cast<std::uint64_t>(first) * row_bytes, piece);
    const std::byte* values = piece.data();
    if (target.layout == FileLayout::oihw) {
      std::byte* const turned = staging.of_tensor(piece_bytes).data();
      transpose(values, turned, count, rows.inputs, rows.pixels, size);
      values = turned;
    }
    convert(values, from, to + static_cast<std::size_t>(first) * target_row_bytes, t.dtype(), count * rows.elements());
  });
}

std::string text(std::span<const std::int64_t> sizes) {
  std::string list;
  for (const std::int64_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
  return "(" + list + ")";
}

}  // namespace

Shape file_shape(const Shape& memory, FileLayout layout) {
  if (layout == FileLayout::same) return memory;
  if (memory.rank() != 4 && memory.rank() != 3) {
    throw ShapeError("file_shape: " + to_string(memory) + " is no convolution's weight, (O, KH, KW, I) or (O, K, I)");
  }
  Shape shape = memory;
  shape.erase(memory.rank() - 1);
  shape.insert(1, memory.back());
  return shape;
}

void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                       Numbers numbers) {
  write_tensor_file(
      path, tensors, {}, metadata, [](FunctionRef<void(const NamedTensor&)>) {}, numbers);
}

void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& here,
                       const std::vector<NamedTensor>& outline, const Metadata& metadata,
                       FunctionRef<void(FunctionRef<void(const NamedTensor&)>)> each, Numbers numbers) {
  std::vector<SafetensorsEntry> entries;
  for (const std::vector<NamedTensor>* list : {&here, &outline}) {
    for (const NamedTensor& named : *list) entries.push_back(entry_of(path, named));
  }
  SafetensorsWriter file(path, std::move(entries), metadata);
  FileStaging staging;
  const auto add = [&](const NamedTensor& named) { append(file, named, staging); };
  for (const NamedTensor& named : here) add(named);
  each(add);
  if (numbers == Numbers::finite && !file.not_finite().empty()) {
    throw NotFiniteError(path + ": not written: tensor " + quote(file.not_finite()) + " holds a NaN or an infinity");
  }
  file.commit();
}

void check_file_tensor(const std::string& operation, const SafetensorsEntry& entry, const NamedTensor& target,
                       Conversion conversion) {
  const Tensor& t = target.tensor;
  const Shape shape = file_shape(t.shape(), target.layout);
  const std::span<const std::int64_t> sizes(shape.begin(), shape.end());
  if (!std::equal(sizes.begin(), sizes.end(), entry.shape.begin(), entry.shape.end())) {
    throw ShapeError(operation + ": tensor " + quote(target.name) + " is " + text(entry.shape) +
                     " in the file, the model needs " + text(sizes));
  }
  const DType dtype = loadable_dtype(entry);
  const bool may_convert = conversion == Conversion::floating && is_floating(dtype) && is_floating(t.dtype());
  if (dtype != t.dtype() && !may_convert) {
    throw DTypeError(operation + ": tensor " + quote(target.name) + " is " + std::string(to_string(dtype)) +
                     " in the file, the model needs " + std::string(to_string(t.dtype())));
  }
  if (t.scale()) throw DTypeError(operation + ": tensor " + quote(target.name) + " is quantized in the model");
}

void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const NamedTensor& target,
                      FileStaging& staging) {
  const Tensor& t = target.tensor;
  if (t.elements() == 0 || t.device().is_dry) return;
  if (t.device().is_cpu() && t.is_contiguous()) {
    read_here(file, entry, target, staging);
    return;
  }
  const NamedTensor read{target.name, Tensor::empty(t.shape(), t.dtype(), cpu), target.layout};
  read_here(file, entry, read, staging);
  copy_into(t, to_device(read.tensor, t.device()));
}

namespace {

bool is_magnitude(double x) { return std::isfinite(x) && x >= 0; }
bool is_scale(double x) { return x == 0 || (x >= kernels::fp8_scale_min && x <= kernels::fp8_scale_max); }

// A user's parameters and buffers may have these names. A prefix identifies an optimizer's state, a shape FP8's.
bool is_optimizer(const NamedTensor& t) { return t.name.starts_with("optimizer."); }
bool is_scales(const NamedTensor& t) { return t.tensor.shape() == Shape{3}; }
bool is_matrix_of_3(const NamedTensor& t) { return t.tensor.rank() == 2 && t.tensor.size(0) == 3; }

struct Rule {
  std::string_view name;
  std::optional<DType> dtype;  // defaults to any floating dtype
  bool (*fits)(const NamedTensor&);
  bool (*allows)(double);
  const char* allowed;
};
constexpr const char* magnitudes = "finite numbers >= 0";
constexpr Rule rules[] = {{"fp8_amax", DType::f32, is_matrix_of_3, is_magnitude, magnitudes},
                          {"fp8_scale", DType::f32, is_scales, is_scale, "0 and 2^-60 to 2^100"},
                          {"fp8_steps", DType::i64, is_matrix_of_3, is_magnitude, "counts >= 0"},
                          {"first_moment_scale", DType::f32, is_optimizer, is_magnitude, magnitudes},
                          {"second_moment_scale", DType::f32, is_optimizer, is_magnitude, magnitudes},
                          {"momentum_scale", DType::f32, is_optimizer, is_magnitude, magnitudes},
                          {"second_moment", std::nullopt, is_optimizer, is_magnitude, magnitudes},
                          {"row_moment", std::nullopt, is_optimizer, is_magnitude, magnitudes},
                          {"column_moment", std::nullopt, is_optimizer, is_magnitude, magnitudes}};

const Rule* rule_of(const NamedTensor& target) {
  const std::string_view name = std::string_view(target.name).substr(target.name.rfind('.') + 1);
  const DType dtype = target.tensor.dtype();
  for (const Rule& rule : rules) {
    const bool is_meant = rule.dtype ? *rule.dtype == dtype : is_floating(dtype);
    if (rule.name == name && is_meant && rule.fits(target)) return &rule;
  }
  return nullptr;
}

// "(1, 0)"
std::string place(const Shape& shape, std::int64_t i) {
  std::string list;
  for (int axis = shape.rank() - 1; axis >= 0; i /= shape[axis--]) {
    list = std::to_string(i % shape[axis]) + (list.empty() ? "" : ", ") + list;
  }
  return "(" + list + ")";
}

}  // namespace

void check_state_numbers(const std::string& operation, const SafetensorsReader& file, const SafetensorsEntry& entry,
                         const NamedTensor& target, FileStaging& room) {
  const Rule* const rule = rule_of(target);
  if (rule == nullptr || target.tensor.device().is_dry || target.tensor.elements() == 0) return;
  const DType from = loadable_dtype(entry), dtype = target.tensor.dtype();
  std::array<std::int64_t, 512> there;  // room for elements of any dtype
  std::array<double, 512> values;
  const std::size_t size = size_of(from);
  const std::span<std::byte> staging = room.of_file();
  for (std::uint64_t begin = 0; begin < entry.bytes(); begin += staging.size()) {
    const auto piece =
        staging.first(static_cast<std::size_t>(std::min<std::uint64_t>(staging.size(), entry.bytes() - begin)));
    file.read_part(entry, begin, piece);
    for (std::size_t at = 0; at < piece.size(); at += size * values.size()) {
      const std::size_t some = std::min(values.size(), (piece.size() - at) / size);
      convert(piece.data() + at, from, there.data(), dtype, static_cast<std::int64_t>(some));
      convert(there.data(), dtype, values.data(), DType::f64, static_cast<std::int64_t>(some));
      const auto read = std::span(values).first(some);
      const auto wrong = std::find_if_not(read.begin(), read.end(), rule->allows);
      if (wrong == read.end()) continue;
      const auto index = static_cast<std::int64_t>((begin + at) / size) + (wrong - read.begin());
      throw ValueError(operation + ": tensor " + quote(target.name) + " has " + format_short(*wrong) + " at " +
                       place(target.tensor.shape(), index) + "; expected " + rule->allowed);
    }
  }
}

}  // namespace thimble::nn
