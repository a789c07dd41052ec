#include <thimble/nn/quant/coded_store.h>

#include <thimble/core/tensor/context.h>

namespace thimble::nn::quant {

std::size_t CodedStore::code_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Part& part : parts_) bytes += part.codes.defined() ? part.codes.bytes() : 0;
  return bytes;
}

void CodedStore::add(std::uint32_t parameter, const Tensor& tensor) {
  const PathScope path(tensor.storage()->path());
  parts_.resize(parameter + 1);
  parts_[parameter] = {Tensor::empty({static_cast<std::int64_t>(coded_bytes(code_, tensor.elements()))}, DType::u8,
                                     tensor.device(), Category::parameter),
                       tensor.elements(), tensor.dtype()};
}

void CodedStore::begin_write(std::uint32_t parameter, const memory::Storage&, const std::byte* at) {
  const Part& part = parts_[parameter];
  encode_weight(code_, at, part.dtype, part.elements, part.codes);
}

void CodedStore::begin_read(std::uint32_t parameter, const memory::Storage&, std::byte* at) {
  const Part& part = parts_[parameter];
  decode_weight(code_, part.codes, at, part.dtype, part.elements);
}

void CodedStore::drop(std::uint32_t parameter) noexcept {
  if (parameter < parts_.size()) parts_[parameter] = {};
}

}  // namespace thimble::nn::quant
