#pragma once
// The proof that a plan changes no bit of the user's own program: the run is made twice, plain and under the plan, and
// everything that its steps make or change is compared, bit by bit.
//
//   const nn::Certificate certificate = nn::certify(make_run, cpu, plan);
//   if (!certificate.holds()) std::puts(certificate.text().c_str());
//
// Policy
// - One run after the other, each in an arena of its own that dies with it: there is never a second model in memory.
//   A run keeps 128 bits (Digest) of every compared tensor and step.
// - Gradients are taken where they are complete (a hook of backward), before clipping and before a fused update or a
//   tier takes them; with several micro-batches after each. Everything else is taken after a step.
// - Both runs are the whole program: the same batches, rates, random numbers, at the user's sizes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/tensor/tensor.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

/// 128 bits of the bytes of a tensor. Equal for equal bytes; unequal ones share a digest with a probability of about
/// 2^-128, unless they were made to collide.
struct Digest {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

/// A digest of bytes that come in pieces; where they are cut makes no difference. MurmurHash3_x64_128 (Appleby, 2011;
/// public domain), seed 0.
class DigestStream {
 public:
  void add(const void* from, std::size_t bytes) noexcept;
  Digest value() const noexcept;

 private:
  void mix(std::uint64_t first, std::uint64_t second) noexcept;

  std::uint64_t low_ = 0, high_ = 0;
  std::uint64_t bytes_ = 0;
  unsigned char rest_[16] = {};  // of a block that is not full; bytes_ % 16 of them
};

/// Of a tensor's elements in row-major order, whatever its strides, and of its scale. Of an undefined tensor, of one
/// without elements and of one on a dry device it is that of no bytes. Nothing is allocated on the tensor's device;
/// from a GPU the bytes come in pieces of a megabyte, and a tensor there must be dense (DeviceError).
Digest digest_of(const Tensor& t);

/// What a step makes or changes. The generator's are its step and the random calls of the pass, by module path, as they
/// stand whenever a gradient is complete: a call more or less in what runs again shows there.
enum class Compared : std::uint8_t { loss, gradient, parameter, optimizer_state, statistics, generator };
inline constexpr std::size_t compared_count = 6;
std::string_view to_string(Compared kind) noexcept;

/// One of them, after a step (from 0).
struct ComparedTensor {
  std::int64_t step = 0;
  Compared kind = Compared::loss;
  std::string name;
  std::size_t bytes = 0;
  Digest digest;
  friend bool operator==(const ComparedTensor&, const ComparedTensor&) = default;
};
/// In order of steps; within one, a kind's tensors stand together, by name or in the model's order.
using Trajectory = std::vector<ComparedTensor>;

/// Tells a trajectory of a run's steps. It must live no longer than the run.
class Witness {
 public:
  /// Asks to be shown gradients: options().recording.watch. Throws ValueError for a run that shows nothing of itself
  /// (TrainingRun::view).
  explicit Witness(TrainingRun& run);
  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  /// After a step: adds what it made and changed. State that waits in a tier is fetched for that and sent back.
  void note_step(Trajectory& trajectory);

 private:
  void note_gradient(const std::shared_ptr<Leaf>& leaf);
  Digest calls() const;

  TrainingRun& run_;
  const RandomGenerator* generator_ = nullptr;  // null: the run has none
  struct Watched {
    const Leaf* leaf;
    std::string name;
    std::size_t seen = 0;  // in the step that is under way
  };
  std::vector<Watched> leaves_;  // by address
  std::function<void(const std::shared_ptr<Leaf>&)> note_;
  LeafHook hook_;
  std::vector<ComparedTensor> gradients_;  // of the step that is under way
  Digest calls_;                           // added up over its gradients, in whatever order they come
  std::int64_t step_ = 0;
};

/// What differs between two trajectories: of entries that both have, those with other bytes, and those that one of them
/// lacks. By step, then by kind.
struct Difference {
  std::int64_t step = 0;
  Compared kind = Compared::loss;
  std::string name;
  bool is_missing = false;  ///< one of the two has no such tensor
  friend bool operator==(const Difference&, const Difference&) = default;
};
std::vector<Difference> compare(const Trajectory& plain, const Trajectory& other);

/// How one of the two runs was.
struct CertifiedRun {
  std::size_t peak_bytes = 0;      ///< committed by its arena
  double ms = 0;                   ///< of all steps, noting included
  PlacedArena::Statistics placed;  ///< of the run under the plan
};

struct Certificate {
  std::vector<Difference> differences;
  std::int64_t steps = 0;
  std::array<std::size_t, compared_count> tensors{};  ///< compared, by kind, all steps together
  std::size_t bytes = 0;                              ///< the same
  std::size_t predicted_peak_bytes = 0;               ///< of the plan; 0: it says none
  CertifiedRun plain, planned;

  /// Every bit is equal, and something was compared.
  bool holds() const noexcept { return differences.empty() && bytes > 0; }
  /// Some lines: the first that differ, or that nothing does; what was compared; both peaks.
  std::string text() const;
};

struct CertifyOptions {
  std::int64_t steps = 3;
  bool finishes = false;  ///< what comes after the steps is run, too: the peaks are then those of the whole program
  /// Told after each step of either run.
  std::function<void(bool is_planned, std::int64_t step)> progress = nullptr;
};

/// Runs the program plain and under the plan. `make` makes runs that follow no plan; what they show of themselves
/// (TrainingRun::view) is compared. Throws ValueError for fewer than one step, or runs that show nothing; PlanError for
/// a plan that packs tensors, which is meant to change bits; what the run throws.
Certificate certify(const MakeRun& make, memory::Device device, const Plan& plan, const CertifyOptions& options = {});

/// The same of any two programs, of which one is to be held against the other, `planned` with these placements.
Certificate certify(const MakeRun& plain, const MakeRun& planned, memory::Device device,
                    std::vector<StepPlacement> placement, const CertifyOptions& options = {});

}  // namespace thimble::nn
