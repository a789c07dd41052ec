#pragma once
// Proves that a plan changes no bit of the user's program: runs it twice, plain and under the plan, and compares bit by
// bit everything that its steps make or change.
//
//   const nn::Certificate certificate = nn::certify(make_run, cpu, plan);
//   if (!certificate.holds()) std::puts(certificate.text().c_str());
//
// Policy
// - The runs follow each other, each in a separate arena, so memory never holds a second model. A run keeps 128 bits
//   (Digest) of every compared tensor and step.
// - Gradients are compared as backward completes them, before clipping, a fused update or a tier; with several
//   micro-batches, after each. Everything else is compared after a step.
// - Both runs are the whole program, with the same batches, rates and random numbers, at the user's sizes.

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

/// 128 bits of a tensor's bytes. Different bytes share a digest with a probability of about 2^-128, unless they were
/// made to collide.
struct Digest {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

/// Digests bytes that arrive in pieces of any size. MurmurHash3_x64_128 (Appleby, 2011; public domain), seed 0.
class DigestStream {
 public:
  void add(const void* from, std::size_t bytes) noexcept;
  Digest value() const noexcept;

 private:
  void mix(std::uint64_t first, std::uint64_t second) noexcept;

  std::uint64_t low_ = 0, high_ = 0;
  std::uint64_t bytes_ = 0;
  unsigned char rest_[16] = {};  // the first bytes_ % 16 bytes of the next block
};

/// Digests a tensor's elements in row-major order, whatever its strides, and its scale. Tensors that are undefined,
/// empty or on a dry device have the digest of no bytes. It allocates nothing on the tensor's device, and reads a GPU's
/// memory in pieces of a megabyte; a tensor on a GPU must be dense (DeviceError).
Digest digest_of(const Tensor& t);

/// Values that a step makes or changes. `generator` is its step, and the random calls of the pass by module path,
/// recorded at each completed gradient: a recomputed segment that makes more or fewer calls shows there.
enum class Compared : std::uint8_t { loss, gradient, parameter, optimizer_state, statistics, generator };
inline constexpr std::size_t compared_count = 6;
std::string_view to_string(Compared kind) noexcept;

/// One compared value after step `step`, from 0.
struct ComparedTensor {
  std::int64_t step = 0;
  Compared kind = Compared::loss;
  std::string name;
  std::size_t bytes = 0;
  Digest digest;
  friend bool operator==(const ComparedTensor&, const ComparedTensor&) = default;
};
/// By step; within a step by kind, and then by name or in the model's order.
using Trajectory = std::vector<ComparedTensor>;

/// Records a trajectory of a run's steps. The run must outlive it.
class Witness {
 public:
  /// Watches gradients through options().recording.watch. Throws ValueError if TrainingRun::view is empty.
  explicit Witness(TrainingRun& run);
  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  /// Called after a step: adds the values that it made and changed. Fetches state from a tier, and sends it back.
  void note_step(Trajectory& trajectory);

 private:
  void note_gradient(const std::shared_ptr<tape::Leaf>& leaf);
  Digest calls() const;

  TrainingRun& run_;
  const RandomGenerator* generator_ = nullptr;  // null if the run has none
  struct Watched {
    const tape::Leaf* leaf;
    std::string name;
    std::size_t seen = 0;  // in the current step
  };
  std::vector<Watched> leaves_;  // by address
  std::function<void(const std::shared_ptr<tape::Leaf>&)> note_;
  LeafHook hook_;
  std::vector<ComparedTensor> gradients_;  // of the current step
  Digest calls_;                           // summed over the step's gradients, so that their order does not matter
  std::int64_t step_ = 0;
};

/// A value that differs between two trajectories, or that one of them lacks. compare() orders them by step and kind.
struct Difference {
  std::int64_t step = 0;
  Compared kind = Compared::loss;
  std::string name;
  bool is_missing = false;  ///< one trajectory has no such value
  friend bool operator==(const Difference&, const Difference&) = default;
};
std::vector<Difference> compare(const Trajectory& plain, const Trajectory& other);

/// Measurements of one of the two runs.
struct CertifiedRun {
  std::size_t peak_bytes = 0;              ///< committed by its arena
  double ms = 0;                           ///< of all steps, comparison included
  memory::PlacedArena::Statistics placed;  ///< for the run under the plan
};

struct Certificate {
  std::vector<Difference> differences;
  std::int64_t steps = 0;
  std::array<std::size_t, compared_count> tensors{};  ///< compared in all steps, by kind
  std::size_t bytes = 0;                              ///< compared in all steps
  std::size_t predicted_peak_bytes = 0;               ///< of the plan, if it predicts one; or 0
  CertifiedRun plain, planned;

  /// Every bit is equal, and something was compared.
  bool holds() const noexcept { return differences.empty() && bytes > 0; }
  /// Some lines: the first differences, or that there are none; the compared values; both peaks.
  std::string text() const;
};

struct CertifyOptions {
  std::int64_t steps = 3;
  bool finishes = false;  ///< also runs the program's work after the steps, so that peaks are the whole program's
  /// Called after each step of either run.
  std::function<void(bool is_planned, std::int64_t step)> progress = nullptr;
};

/// Runs the program plain and under the plan, and compares the runs' views (TrainingRun::view). `make` makes runs that
/// follow no plan. Throws ValueError for fewer than one step, or runs with empty views; PlanError for a plan that packs
/// tensors, which changes bits by design; any error of the run.
Certificate certify(const MakeRun& make, memory::Device device, const Plan& plan, const CertifyOptions& options = {});

/// Compares two programs: `planned`, with these placements, against `plain`.
Certificate certify(const MakeRun& plain, const MakeRun& planned, memory::Device device,
                    std::vector<memory::StepPlacement> placement, const CertifyOptions& options = {});

}  // namespace thimble::nn
