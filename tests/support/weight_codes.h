#pragma once
// Encodes and decodes weights as tensors.

#include <cstdint>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/core/tensor/tensor.h>

namespace weight_code_test {

/// The codes of a dense weight.
inline thimble::Tensor encode_weight(const thimble::Tensor& weight, thimble::WeightCode code) {
  const auto bytes = static_cast<std::int64_t>(coded_bytes(code, weight.elements()));
  const auto coded =
      thimble::Tensor::empty({bytes}, thimble::DType::u8, weight.device(), thimble::memory::Category::parameter);
  const thimble::memory::Pin pin(weight);
  thimble::encode_weight(code, pin.data(), weight.dtype(), weight.elements(), coded);
  return coded;
}

inline thimble::Tensor decode_weight(const thimble::Tensor& coded, thimble::WeightCode code,
                                     const thimble::Shape& shape, thimble::DType dtype) {
  const auto weight = thimble::Tensor::empty(shape, dtype, coded.device());
  const thimble::memory::WritePin pin(weight);
  thimble::decode_weight(code, coded, pin.data(), dtype, weight.elements());
  return weight;
}

}  // namespace weight_code_test
