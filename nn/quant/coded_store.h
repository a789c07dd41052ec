#pragma once
// Frozen weights in fewer bits (Dettmers et al. 2023, arXiv:2305.14314): each is decoded before it is used and goes
// after.
//
//   nn::TensorOptions on{.dtype = DType::bf16};
//   on.coded_weights = std::make_shared<nn::quant::CodedStore>(WeightCode::nf4);
//   Net net(..., on);          // a linear layer's weight becomes codes as soon as it is made
//   nn::load_weights(net, ...);
//   nn::add_lora(net, {...});  // and adapters are trained
//
// - It is the seam of parameters that are shared out over ranks or in a tier (core/tensor/parameter_store.h): forward,
//   backward and recomputation decode by the same calls, and a dry run predicts the bytes.
// - Codes are booked as parameters under the path of their layer, and the decoded weight, while it is here, too.
// - One weight is here at a time: decoding does not overlap with anything, so none is decoded ahead.
// - A weight that was written (loaded from a file) becomes codes again when it goes, rounded to them. An update in
//   training is a write as well, of which nothing smaller than a code's step is left: the weights are to be frozen.

#include <cstdint>
#include <vector>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/memory/offload/unit_store.h>

namespace thimble::nn::quant {

class CodedStore final : public memory::UnitStore {
 public:
  explicit CodedStore(WeightCode code) : UnitStore({.read_ahead = 0}), code_(code) {}

  WeightCode code() const noexcept { return code_; }
  /// The codes of a parameter of this store (core/ops/quant/weight_code.h).
  const Tensor& codes(const memory::Storage& storage) const { return parts_[storage.index_in_store()].codes; }
  /// Of all its parameters.
  std::size_t code_bytes() const noexcept;
  std::size_t bytes_elsewhere() const override { return 0; }

 private:
  struct Part {
    Tensor codes;
    std::int64_t elements = 0;
    DType dtype = DType::f32;  // of the decoded weight
  };

  void add(std::uint32_t parameter, const Tensor& tensor) override;
  void begin_write(std::uint32_t parameter, const memory::Storage& storage, const std::byte* at) override;
  void end_write(std::uint32_t) override {}
  void begin_read(std::uint32_t parameter, const memory::Storage& storage, std::byte* at) override;
  void end_read(std::uint32_t) override {}
  void drop(std::uint32_t parameter) noexcept override;

  WeightCode code_;
  std::vector<Part> parts_;
};

}  // namespace thimble::nn::quant
