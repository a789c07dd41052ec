#include <thimble/models/pieces.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>

namespace thimble::models {
namespace {

[[noreturn]] void refuse_cut(const char* what, std::size_t count) {
  throw PlanError(std::string(what) + ": a stage in " + std::to_string(count) +
                  " chunks, with those of other stages between them; expected one of its pieces()");
}

}  // namespace

Pieces::Pieces(std::vector<std::unique_ptr<Model>> pieces) : Model(pieces.front()->options()) {
  for (std::unique_ptr<Model>& piece : pieces) {
    pieces_.push_back(piece.get());
    child(std::move(piece));
  }
}

Tensor Pieces::forward(const Tensor&) { refuse_cut("forward", pieces_.size()); }
Tensor Pieces::loss(const Batch&) { refuse_cut("loss", pieces_.size()); }

Batch Pieces::empty_batch(std::int64_t samples, memory::Device device) const {
  return pieces_.front()->empty_batch(samples, device);
}

bool Pieces::is_text() const noexcept { return pieces_.front()->is_text(); }
bool Pieces::is_masked() const noexcept { return pieces_.front()->is_masked(); }
std::string_view Pieces::hidden_layers() const noexcept { return pieces_.front()->hidden_layers(); }
bool Pieces::is_tied() const noexcept { return pieces_.front()->is_tied(); }
bool Pieces::can_cut_sequence() const noexcept { return pieces_.front()->can_cut_sequence(); }

// The first piece and the last are on two ranks.
Model::SharedByStages Pieces::shared_by_stages() {
  SharedByStages shared = pieces_.front()->shared_by_stages();
  return shared.first.empty() ? pieces_.back()->shared_by_stages() : shared;
}

void Pieces::recompute_blocks(bool is_on) {
  for (Model* const piece : pieces_) piece->recompute_blocks(is_on);
}

}  // namespace thimble::models
