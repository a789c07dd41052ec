#include <thimble/autograd/spare_tape.h>

#include <utility>
#include <vector>

namespace thimble {
namespace {

struct Spare {
  std::vector<std::unique_ptr<Tape>> tapes;
  ~Spare() { is_gone() = true; }  // later SpareTapes are destroyed, not kept

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

}  // namespace

SpareTape::SpareTape() {
  if (auto* const spare = Spare::here(); spare != nullptr && !spare->tapes.empty()) {
    tape_ = std::move(spare->tapes.back());
    spare->tapes.pop_back();
  }
  if (!tape_) tape_ = std::make_unique<Tape>();
}

SpareTape::~SpareTape() {
  if (tape_->is_observing()) return;
  tape_->reset();
  auto* const spare = Spare::here();
  if (spare != nullptr) spare->tapes.push_back(std::move(tape_));
}

void SpareTape::release() noexcept {
  if (auto* const spare = Spare::here()) spare->tapes.clear();
}

}  // namespace thimble
