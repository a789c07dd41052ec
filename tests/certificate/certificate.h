#pragma once
// The certificate that a memory technique changes no bit: a net is trained for some steps without the technique and
// with it, and everything that a step makes or changes is compared bytewise. Also: every allocation of a step under the
// technique fails in turn.
//
// Terms
//   technique     a way of running a step in other bytes: segments, a plan of the tape, a placement, ...
//   trajectory    everything that the steps made and changed, as bytes under names
//   certificate   in what a trajectory differs from that of the plain run; it holds when in nothing

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
  /// What stage 0 takes.
  virtual Tensor input(std::int64_t micro_batch) const = 0;
  /// Runs one stage. The last one gives the mean loss, one element.
  virtual Tensor run(std::size_t stage, const Tensor& x, std::int64_t micro_batch) = 0;
  virtual std::unique_ptr<optim::Optimizer> make_optimizer() const = 0;
  virtual std::int64_t samples() const = 0;
  /// What the loss is scaled with; none: it is not.
  virtual std::unique_ptr<optim::GradScaler> make_scaler() const { return nullptr; }
  /// The paths that random numbers are drawn under.
  virtual std::vector<PathId> random_paths() const = 0;
  /// From now on some operators send what they save to `tier`.
  void offload_to(std::shared_ptr<Tier> tier) { tier_ = std::move(tier); }

 protected:
  std::shared_ptr<Tier> tier_;  // null: everything stays
};
using MakeNet = std::function<std::unique_ptr<Net>(memory::Device)>;

/// The stages of a net in order, from its input to its loss.
using Forward = std::function<Tensor(Net&, std::int64_t micro_batch)>;
Tensor run_plain(Net& net, std::int64_t micro_batch);
/// Segments of k stages.
Forward every_kth(std::size_t k, FatePolicy policy = drop_all);
/// Segments of sqrt(n) stages.
Forward square_root(FatePolicy policy = drop_all);
/// A segment around all, one around each half, and so on down to one around each stage.
Forward nested(FatePolicy policy = drop_all);

struct Technique {
  std::string name = {};
  Forward forward = run_plain;
  std::shared_ptr<const TapePlan> plan = nullptr;  ///< null: none is followed
  std::int64_t micro_batches = 1;
  double clip_norm = 0;
  nn::FusedUpdate fuses = nn::FusedUpdate::off;
  bool is_placed = false;                     ///< steps are replayed in a placed arena
  std::vector<StepPlacement> placement = {};  ///< by these plans; empty: by those of a dry run
  bool moves_blocks = false;                  ///< every block is moved before every allocation
  bool offloads = false;                      ///< saved tensors of some operators are on a disk until backward
  bool offloads_parameters = false;           ///< parameters are on a disk between uses
  bool offloads_gradients = false;            ///< gradients are on a disk until their parameter is updated
  bool sends_state = false;                   ///< all state goes to a disk and back before every step
  /// For mutants: called when the loss is recorded, and when the last gradient is complete.
  std::function<void(Net&)> after_forward = nullptr, before_update = nullptr;
};

/// What a step makes or changes.
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

/// What a run did besides: whether the technique was in force.
struct Figures {
  std::size_t recomputed = 0;  ///< nodes of the last recording that ran again
  std::size_t activation_peak_bytes = 0, gradient_peak_bytes = 0, parameter_peak_bytes = 0;
  std::uint64_t moved_blocks = 0;
  std::uint64_t tier_writes = 0;
  std::size_t leaked_bytes = 0;  ///< that were still there when everything had died
  PlacedArena::Statistics placed;
};

struct Training {
  Trajectory trajectory;
  Figures figures;
};
constexpr int certified_steps = 3;

/// Trains a net under a technique, in an arena of its own that is filled with NaN, on thread_count() threads. Throws
/// what the steps throw.
Training train(const MakeNet& make, const Technique& technique, int steps = certified_steps,
               memory::Device device = cpu);

/// Makes runs of a net under a technique on any device, for nn::Planner and nn::plan_steps.
nn::MakeRun make_runs(const MakeNet& make, const Technique& technique);

struct Certificate {
  std::vector<Difference> differences;
  Figures plain, figures;
  bool holds() const noexcept { return differences.empty(); }
  /// Whether an item differs in a step; in any when `step` is negative.
  bool names(Item item, int step = -1) const;
  /// One line per difference, the first ten.
  std::string text() const;
};

/// In what two trajectories differ, by their digests (nn/certify/certify.h).
std::vector<Difference> compare(const Trajectory& plain, const Trajectory& other);

/// Gives certificates for a net.
class Certifier {
 public:
  explicit Certifier(MakeNet make, memory::Device device = cpu) : make_(std::move(make)), device_(device) {}
  const MakeNet& net() const noexcept { return make_; }

  /// Holds a technique on thread_count() threads against the plain run on one, on the same device, with the same
  /// micro-batches and clipping.
  Certificate certify(const Technique& technique);

 private:
  MakeNet make_;
  memory::Device device_;
  std::map<std::pair<std::int64_t, double>, Training> plain_;  // by micro-batches and clipping
};

/// `count` plans of the step under `technique`, with nested segments and fates drawn at random.
std::vector<std::shared_ptr<const TapePlan>> random_plans(const MakeNet& make, const Technique& technique,
                                                          std::size_t count, std::uint64_t seed,
                                                          memory::Device device = cpu);

/// Which requests for memory fail: those of tensors, or those that a placed arena makes of the arena below it.
enum class FailPlace : std::uint8_t { tensors, below_placed };

/// What happened when each allocation of a step failed in turn.
struct FailureWalk {
  std::uint64_t requests = 0;  ///< of one step
  std::size_t clean = 0;       ///< failures with OutOfMemory and everything as it was
  std::size_t partial = 0;     ///< with PartialUpdateError, which only an unsecured fused update may throw
  std::size_t untyped = 0;     ///< with anything else, or with nothing
  std::size_t changed = 0;     ///< OutOfMemory, but parameters, optimizer, statistics or generator had changed
  std::size_t leaked = 0;      ///< bytes were left behind
  std::size_t leftovers = 0;   ///< a gradient, a tape, a transaction or a path was
  std::size_t different = 0;   ///< the step tried again gave other bits
  Figures figures;
};

/// Fails every request of a net's second step in turn, once each, and tries the step again every time.
FailureWalk walk_failures(const MakeNet& make, const Technique& technique, FailPlace place = FailPlace::tensors,
                          memory::Device device = cpu);

/// A number of kernel threads for a scope.
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
