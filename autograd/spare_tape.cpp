#include <thimble/autograd/spare_tape.h>

#include <utility>

namespace thimble {
namespace spare_tape_detail {

struct Spare {
  std::unique_ptr<Tape> tape;
  ~Spare() { is_gone() = true; }  // scopes that end later keep none

  static bool& is_gone() noexcept {
    thread_local bool gone = false;
    return gone;
  }
  static Spare* here() noexcept {
    if (is_gone()) return nullptr;
    thread_local Spare spare;
    return &spare;
  }
};

}  // namespace spare_tape_detail

SpareTape::SpareTape() {
  if (auto* const spare = spare_tape_detail::Spare::here()) tape_ = std::move(spare->tape);
  if (!tape_) tape_ = std::make_unique<Tape>();
}

SpareTape::~SpareTape() {
  if (tape_->is_observing()) return;
  tape_->reset();
  auto* const spare = spare_tape_detail::Spare::here();
  if (spare != nullptr && !spare->tape) spare->tape = std::move(tape_);
}

void SpareTape::release() noexcept {
  if (auto* const spare = spare_tape_detail::Spare::here()) spare->tape.reset();
}

}  // namespace thimble
