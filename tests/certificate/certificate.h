#pragma once
// The certificate that a memory technique changes no bit: trains a net for some steps with and without the technique
// and compares all bytes that a step makes or changes. Also fails every allocation of a step under the technique, one
// by one.
//
// Terms
//   technique     a way of running a step in other memory: segments, a plan of the tape, a placement, ...
//   trajectory    everything that the steps made and changed, as bytes under names
//   certificate   the differences of a trajectory from the plain run's; it holds when there are none

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/plan.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/step/profile.h>

namespace thimble::certificate {

/// A small net as a chain of stages, so that a technique can cut it anywhere, with its data and its optimizer.
class Net : public nn::Module {
 public:
  virtual std::size_t stage_count() const = 0;
  /// Input of stage 0.
  virtual Tensor input(std::int64_t micro_batch) const = 0;
  /// Runs one stage. The last one returns the mean loss, one element.
  virtual Tensor run(std::size_t stage, const Tensor& x, std::int64_t micro_batch) = 0;
  virtual std::unique_ptr<optim::Optimizer> make_optimizer() const = 0;
  virtual std::int64_t samples() const = 0;
  /// Scales the loss; null without scaling.
  virtual std::unique_ptr<optim::GradScaler> make_scaler() const { return nullptr; }
  /// The paths under which the net draws random numbers.
  virtual std::vector<PathId> random_paths() const = 0;
  /// Makes some operators send their saved tensors to `tier` from now on.
  void offload_to(std::shared_ptr<memory::Tier> tier) { tier_ = std::move(tier); }

 protected:
  std::shared_ptr<memory::Tier> tier_;  // null while everything stays
};
using MakeNet = std::function<std::unique_ptr<Net>(memory::Device)>;

/// Runs the stages of a net in order, from its input to its loss.
using Forward = std::function<Tensor(Net&, std::int64_t micro_batch)>;
Tensor run_plain(Net& net, std::int64_t micro_batch);
/// Segments of k stages.
Forward every_kth(std::size_t k, FatePolicy policy = drop_all);
/// Segments of sqrt(n) stages.
Forward square_root(FatePolicy policy = drop_all);
/// A segment around the net, one around each half, and so on down to one around each stage.
Forward nested(FatePolicy policy = drop_all);

struct Technique {
  std::string name = {};
  Forward forward = run_plain;
  std::shared_ptr<const TapePlan> plan = nullptr;  ///< null for no plan
  std::int64_t micro_batches = 1;
  double clip_norm = 0;
  nn::FusedUpdate fuses = nn::FusedUpdate::off;
  bool is_placed = false;                             ///< replays steps in a placed arena
  std::vector<memory::StepPlacement> placement = {};  ///< defaults to a dry run's plans
  bool moves_blocks = false;                          ///< moves every block before every allocation
  bool offloads = false;             ///< keeps saved tensors of some operators on a disk until backward
  bool offloads_parameters = false;  ///< keeps parameters on a disk between uses
  bool offloads_gradients = false;   ///< keeps gradients on a disk until their parameter's update
  bool sends_state = false;          ///< sends all state to a disk and back before every step
  /// For mutants: called after the loss is recorded, and after the last gradient is complete.
  std::function<void(Net&)> after_forward = nullptr, before_update = nullptr;
};

/// The kinds of results and changes of a step.
using Item = nn::Compared;
using nn::Difference;

struct Entry {
  int step;
  Item item;
  std::string name;
  std::vector<std::byte> bytes;
  friend bool operator==(const Entry&, const Entry&) = default;
};
/// By step, then in an order that does not depend on the technique.
using Trajectory = std::vector<Entry>;

/// Evidence that the technique was in force.
struct Figures {
  std::size_t recomputed = 0;  ///< nodes of the last recording that ran again
  std::size_t activation_peak_bytes = 0, gradient_peak_bytes = 0, parameter_peak_bytes = 0;
  std::uint64_t moved_blocks = 0;
  std::uint64_t tier_writes = 0;
  std::size_t leaked_bytes = 0;  ///< still allocated after everything was destroyed
  memory::PlacedArena::Statistics placed;
};

struct Training {
  Trajectory trajectory;
  Figures figures;
};
constexpr int certified_steps = 3;

/// Trains a net under a technique, in a separate arena filled with NaN, on thread_count() threads. Throws the steps'
/// errors.
Training train(const MakeNet& make, const Technique& technique, int steps = certified_steps,
               memory::Device device = cpu);

/// Makes runs of a net under a technique on any device, for nn::Planner and nn::plan_steps.
nn::MakeRun make_runs(const MakeNet& make, const Technique& technique);

struct Certificate {
  std::vector<Difference> differences;
  Figures plain, figures;
  bool holds() const noexcept { return differences.empty(); }
  /// Whether an item differs in `step`; in any step if that is negative.
  bool names(Item item, int step = -1) const;
  /// One line for each of the first ten differences.
  std::string text() const;
};

/// The differences of two trajectories, by their digests (nn/certify/certify.h).
std::vector<Difference> compare(const Trajectory& plain, const Trajectory& other);

class Certifier {
 public:
  explicit Certifier(MakeNet make, memory::Device device = cpu) : make_(std::move(make)), device_(device) {}
  const MakeNet& net() const noexcept { return make_; }

  /// Compares a technique on thread_count() threads with the plain run on one thread, on the same device, with equal
  /// micro-batches and clipping.
  Certificate certify(const Technique& technique);

 private:
  MakeNet make_;
  memory::Device device_;
  std::map<std::pair<std::int64_t, double>, Training> plain_;  // by micro-batches and clipping
};

/// `count` plans of the step under `technique`, with nested segments and fates drawn at random.
std::vector<std::shared_ptr<const TapePlan>> draw_plans(const MakeNet& make, const Technique& technique,
                                                        std::size_t count, std::uint64_t seed,
                                                        memory::Device device = cpu);

/// The memory requests that fail: tensors, or a placed arena's requests to the arena below it.
enum class FailPlace : std::uint8_t { tensors, below_placed };

/// Results of failing each allocation of a step.
struct FailureWalk {
  std::uint64_t requests = 0;  ///< of one step
  std::size_t clean = 0;       ///< OutOfMemory, with everything unchanged
  std::size_t partial = 0;     ///< PartialUpdateError: an unsecured fused update, or gradients or parameters on a disk
  std::size_t untyped = 0;     ///< any other error, or none
  std::size_t changed = 0;     ///< OutOfMemory, but parameters, optimizer, statistics or generator had changed
  std::size_t leaked = 0;      ///< bytes were left behind
  std::size_t leftovers = 0;   ///< a gradient, a tape, a transaction or a path was left behind
  std::size_t different = 0;   ///< the retried step gave other bits
  Figures figures;
};

/// Fails each request of a net's second step once, and retries the step every time.
FailureWalk walk_failures(const MakeNet& make, const Technique& technique, FailPlace place = FailPlace::tensors,
                          memory::Device device = cpu);

/// Sets the number of kernel threads for a scope.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(thread_count()) { set_thread_count(threads); }
  ~ThreadScope() { set_thread_count(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

}  // namespace thimble::certificate
