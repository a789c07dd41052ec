#pragma once
// Adam, AdamW and momentum whose state is 8-bit, or bf16 (optim/narrow_state.h). The updates are those of optim/adam.h
// and optim/sgd.h on the moments that the narrow state stands for; one pass per block reads, updates and rounds it.

#include <thimble/core/kernels/optimizer8.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/narrow_state.h>
#include <thimble/optim/sgd.h>

namespace thimble::optim {

/// State: 2 + 8 / 256 bytes per parameter element (bf16: 4), 8 where it is kept in full, and what `options.narrow`
/// takes.
class Adam8 final : public Optimizer {
 public:
  /// Throws ValueError for options out of range, DTypeError as NarrowUpdateState::add does.
  Adam8(std::vector<Named> parameters, AdamOptions options, NarrowState narrow = {});
  /// `<parameter>.first_moment`, `.first_moment_scale`, `.second_moment`, `.second_moment_scale`, and `.master` or
  /// `.compensation`.
  void list_state(std::size_t index, std::vector<Named>& list) const override;
  /// "adam8", "adamw8"; "adam_bf16", "adamw_bf16".
  const char* name() const noexcept override;
  bool takes_gradient_factor() const noexcept override { return true; }
  /// Names of the parameters whose moments are kept in full.
  std::vector<std::string> kept_full() const;

 private:
  std::vector<Tensor*> state_of(std::size_t index) override;
  void update(std::span<const std::size_t> indices) override;

  AdamOptions options_;
  NarrowState narrow_;
  std::vector<Moment> first_, second_;
  NarrowUpdateState update_;
  std::vector<kernels::Adam8Args> list_;      // of the update under way, in 8 bits; it has room for all
  std::vector<kernels::AdamArgs> full_list_;  // and what is not
};

/// State: 1 + 4 / 256 bytes per parameter element (bf16: 2), 4 where it is kept in full, and what `options.narrow`
/// takes.
class Momentum8 final : public Optimizer {
 public:
  /// Throws ValueError for options out of range, among them momentum 0, and as Adam8 does.
  Momentum8(std::vector<Named> parameters, SgdOptions options, NarrowState narrow = {});
  /// `<parameter>.momentum`, `.momentum_scale`, and `.master` or `.compensation`.
  void list_state(std::size_t index, std::vector<Named>& list) const override;
  /// "momentum8", "momentum_bf16".
  const char* name() const noexcept override;
  bool takes_gradient_factor() const noexcept override { return true; }
  std::vector<std::string> kept_full() const;

 private:
  std::vector<Tensor*> state_of(std::size_t index) override;
  void update(std::span<const std::size_t> indices) override;

  SgdOptions options_;
  NarrowState narrow_;
  std::vector<Moment> momentum_;
  NarrowUpdateState update_;
  std::vector<kernels::Momentum8Args> list_;  // of the update under way, in 8 bits; it has room for all
  std::vector<kernels::SgdArgs> full_list_;   // and what is not
};

/// kept_full() of an optimizer that has narrow state; none for any other.
std::vector<std::string> names_kept_full(const Optimizer& optimizer);

}  // namespace thimble::optim
