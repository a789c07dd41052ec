#include <thimble/nn/files/tensor_io.h>

#include <span>

#include <thimble/core/bytes.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/core/launch.h>
#include <thimble/core/view.h>

namespace thimble::nn {
namespace tensor_io_detail {

void append(SafetensorsWriter& file, const NamedTensor& named) {
  Tensor t = to_device(named.tensor.detach(), cpu);
  if (named.layout == FileLayout::oihw) t = view::permute(t, {0, 3, 1, 2});  // (O, I, KH, KW)
  t = contiguous(t);
  if (t.elements() == 0) return;
  const Pin pin(t);
  file.append(named.name, {static_cast<const std::byte*>(pin.data()), t.bytes()});
}

std::string text(std::span<const std::int64_t> sizes) {
  std::string list;
  for (const std::int64_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
  return "(" + list + ")";
}

}  // namespace tensor_io_detail

Shape file_shape(const Shape& memory, FileLayout layout) {
  if (layout == FileLayout::same) return memory;
  if (memory.rank() != 4) {
    throw ShapeError("file_shape: " + to_string(memory) + " is no convolution's weight (O, KH, KW, I)");
  }
  return {memory[0], memory[3], memory[1], memory[2]};
}

void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                       Numbers numbers) {
  std::vector<SafetensorsEntry> entries;
  for (const NamedTensor& named : tensors) {
    const Tensor& t = named.tensor;
    if (t.device().is_dry) throw DeviceError(path + ": tensor " + quote(named.name) + " is on a dry device, no values");
    if (t.scale()) throw DTypeError(path + ": tensor " + quote(named.name) + " is quantized; its scales are not saved");
    const Shape shape = file_shape(t.shape(), named.layout);
    SafetensorsEntry entry;
    entry.name = named.name;
    entry.dtype = to_safetensors_dtype(t.dtype());
    entry.shape.assign(shape.begin(), shape.end());
    entries.push_back(std::move(entry));
  }
  SafetensorsWriter file(path, std::move(entries), metadata);
  for (const NamedTensor& named : tensors) tensor_io_detail::append(file, named);
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
    throw ShapeError(operation + ": tensor " + quote(target.name) + " is " + tensor_io_detail::text(entry.shape) +
                     " in the file, the model needs " + tensor_io_detail::text(sizes));
  }
  const DType dtype = loadable_dtype(entry);
  const bool may_convert = conversion == Conversion::floating && is_floating(dtype) && is_floating(t.dtype());
  if (dtype != t.dtype() && !may_convert) {
    throw DTypeError(operation + ": tensor " + quote(target.name) + " is " + std::string(to_string(dtype)) +
                     " in the file, the model needs " + std::string(to_string(t.dtype())));
  }
  if (t.scale()) throw DTypeError(operation + ": tensor " + quote(target.name) + " is quantized in the model");
}

void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const NamedTensor& target) {
  const Tensor& t = target.tensor;
  if (t.elements() == 0 || t.device().is_dry) return;
  Tensor read = Tensor::empty(file_shape(t.shape(), target.layout), loadable_dtype(entry), cpu);
  {
    const WritePin pin(read);
    file.read(entry, {static_cast<std::byte*>(pin.data()), read.bytes()});
  }
  if (target.layout == FileLayout::oihw) read = view::permute(read, {0, 2, 3, 1});  // (O, KH, KW, I)
  copy_into(t, to_device(read, t.device()));
}

}  // namespace thimble::nn
