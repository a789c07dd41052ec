#pragma once
// A pipeline stage that has several pieces of the chain, its chunks (Narayanan et al. 2021, arXiv:2104.04473).
//
//   pieces of the chain   0 1 2 3 4 5      two ranks, three chunks
//   rank 0                0   2   4        Pieces of rank 0: pieces 0, 2 and 4
//   rank 1                  1   3   5
//
// Each piece is a stage like any other (ModelOptions::stage), and runs by itself. Together they are one module, with
// the names and the order of the whole model, so optimizers, ranks and files treat it as one stage.

#include <memory>
#include <string_view>
#include <vector>

#include <thimble/models/model.h>

namespace thimble::models {

class Pieces final : public Model {
 public:
  /// `pieces`, at least one, belong to one model, in the order of its chain. Takes the first piece's options.
  explicit Pieces(std::vector<std::unique_ptr<Model>> pieces);

  /// Throw PlanError, because the layers between the pieces are on other ranks: run each piece by itself.
  Tensor forward(const Tensor& input) override;
  Tensor loss(const Batch& batch) override;
  Batch empty_batch(std::int64_t samples, memory::Device device) const override;
  bool is_text() const noexcept override;
  bool is_masked() const noexcept override;
  std::string_view hidden_layers() const noexcept override;
  bool has_head() const noexcept override { return pieces_.back()->has_head(); }
  bool has_stages() const noexcept override { return true; }
  SharedByStages shared_by_stages() override;
  bool is_tied() const noexcept override;
  std::vector<Model*> pieces() override { return pieces_; }
  void recompute_blocks(bool is_on = true) override;
  bool can_cut_sequence() const noexcept override;

 private:
  std::vector<Model*> pieces_;
};

}  // namespace thimble::models
