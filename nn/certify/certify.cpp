#include <thimble/nn/certify/certify.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/memory/units.h>

namespace thimble::nn {
namespace {

Digest digest_of_bytes(const void* from, std::size_t bytes) {
  DigestStream digest;
  digest.add(from, bytes);
  return digest.value();
}

template <class T>
ComparedTensor number(std::int64_t step, Compared kind, std::string name, const T& value) {
  return {step, kind, std::move(name), sizeof value, digest_of_bytes(&value, sizeof value)};
}

ComparedTensor tensor(std::int64_t step, Compared kind, std::string name, const Tensor& t) {
  return {step, kind, std::move(name), t.defined() ? t.bytes() : 0, digest_of(t)};
}

/// "optimizer 1: ", or "" for a single optimizer.
std::string prefix(std::size_t i, std::size_t count) {
  return count > 1 ? "optimizer " + std::to_string(i) + ": " : std::string();
}

struct Result {
  Trajectory trajectory;
  CertifiedRun run;
};

Result run(const MakeRun& make, memory::Device device, std::vector<memory::StepPlacement> placement,
           const CertifyOptions& options, bool is_planned) {
  memory::Options of_stack;
  of_stack.plans = std::move(placement);
  const memory::Stack stack = memory::make_resource(device, std::move(of_stack));
  Result result;
  {
    const ResourceScope scope(stack.top);
    const std::unique_ptr<TrainingRun> run = make(device);
    Witness witness(*run);
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < options.steps; ++i) {
      run_step(*run, stack);
      witness.note_step(result.trajectory);
      if (options.progress) options.progress(is_planned, i);
    }
    if (options.finishes) finish_run(*run, stack);
    result.run.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  result.run.peak_bytes = stack.arena->statistics().peak_committed_bytes;
  if (stack.placed != nullptr) result.run.placed = stack.placed->statistics();
  return result;
}

}  // namespace

std::string_view to_string(Compared kind) noexcept {
  constexpr std::string_view names[] = {"loss", "gradient", "parameter", "optimizer state", "statistics", "generator"};
  return names[static_cast<std::size_t>(kind)];
}

Witness::Witness(TrainingRun& run)
    : run_(run), note_([this](const std::shared_ptr<tape::Leaf>& leaf) { note_gradient(leaf); }), hook_(note_) {
  const RunView view = run.view();
  if (view.optimizers.empty()) throw ValueError("certify: the run shows nothing of itself (TrainingRun::view)");
  generator_ = view.generator;
  for (std::size_t i = 0; i < view.optimizers.size(); ++i) {
    for (const optim::Named& p : view.optimizers[i]->parameters()) {
      leaves_.push_back({p.tensor.leaf().get(), prefix(i, view.optimizers.size()) + p.name});
    }
  }
  std::sort(leaves_.begin(), leaves_.end(), [](const Watched& a, const Watched& b) { return a.leaf < b.leaf; });
  run.options().recording.watch = &hook_;
}

Witness::~Witness() { run_.options().recording.watch = nullptr; }

Digest Witness::calls() const {
  DigestStream digest;
  if (generator_ == nullptr) return digest.value();
  const std::vector<std::uint32_t>& calls = generator_->calls();
  for (std::uint32_t path = 0; path < calls.size(); ++path) {
    if (calls[path] == 0) continue;
    const std::uint32_t pair[] = {path, calls[path]};
    digest.add(pair, sizeof pair);
  }
  return digest.value();
}

void Witness::note_gradient(const std::shared_ptr<tape::Leaf>& leaf) {
  const auto found = std::lower_bound(leaves_.begin(), leaves_.end(), leaf.get(),
                                      [](const Watched& w, const tape::Leaf* of) { return w.leaf < of; });
  if (found == leaves_.end() || found->leaf != leaf.get()) return;  // in no optimizer
  std::string name = found->name;
  if (found->seen++ > 0) name += "[" + std::to_string(found->seen - 1) + "]";
  gradients_.push_back(tensor(step_, Compared::gradient, std::move(name), leaf->grad));
  const Digest now = calls();
  calls_.low += now.low, calls_.high += now.high;
}

void Witness::note_step(Trajectory& trajectory) {
  const ParameterUse use;
  const RunView view = run_.view();
  for (std::size_t i = 0; i < view.losses.size(); ++i) {
    trajectory.push_back(number(step_, Compared::loss, "loss" + (i > 0 ? std::to_string(i) : ""), view.losses[i]));
  }
  // Sorted, because segments may change the order in which the tape completes gradients.
  std::sort(gradients_.begin(), gradients_.end(),
            [](const ComparedTensor& a, const ComparedTensor& b) { return a.name < b.name; });
  for (ComparedTensor& gradient : gradients_) trajectory.push_back(std::move(gradient));
  gradients_.clear();
  for (Watched& w : leaves_) w.seen = 0;
  for (std::size_t i = 0; i < view.optimizers.size(); ++i) {
    optim::Optimizer& optimizer = *view.optimizers[i];
    const std::string of = prefix(i, view.optimizers.size());
    for (const optim::Named& p : optimizer.parameters()) {
      trajectory.push_back(tensor(step_, Compared::parameter, of + p.name, p.tensor));
    }
    if (optimizer.offloads_state()) optimizer.fetch_state();
    for (const optim::Named& s : optimizer.state()) {
      trajectory.push_back(tensor(step_, Compared::optimizer_state, of + s.name, s.tensor));
    }
    if (optimizer.offloads_state()) optimizer.put_state_away();
    trajectory.push_back(number(step_, Compared::optimizer_state, of + "updates", optimizer.step_count()));
  }
  if (view.scaler != nullptr) {
    const optim::GradScalerState& state = view.scaler->state();
    trajectory.push_back(number(step_, Compared::optimizer_state, "loss scale", state.scale));
    trajectory.push_back(number(step_, Compared::optimizer_state, "skipped steps", state.skipped_steps));
  }
  for (const NamedTensor& b : view.buffers) {
    trajectory.push_back(tensor(step_, Compared::statistics, b.name, b.tensor));
  }
  if (view.generator != nullptr) {
    trajectory.push_back(number(step_, Compared::generator, "step", view.generator->step()));
    trajectory.push_back(number(step_, Compared::generator, "calls", calls_));
  }
  calls_ = {};
  ++step_;
}

std::vector<Difference> compare(const Trajectory& plain, const Trajectory& other) {
  using Key = std::tuple<std::int64_t, Compared, std::string_view>;
  std::map<Key, std::pair<const ComparedTensor*, const ComparedTensor*>> pairs;
  for (const ComparedTensor& entry : plain) pairs[Key(entry.step, entry.kind, entry.name)].first = &entry;
  for (const ComparedTensor& entry : other) pairs[Key(entry.step, entry.kind, entry.name)].second = &entry;
  std::vector<Difference> differences;
  for (const auto& [key, pair] : pairs) {
    const bool is_missing = pair.first == nullptr || pair.second == nullptr;
    if (!is_missing && pair.first->bytes == pair.second->bytes && pair.first->digest == pair.second->digest) continue;
    differences.push_back({std::get<0>(key), std::get<1>(key), std::string(std::get<2>(key)), is_missing});
  }
  return differences;
}

std::string Certificate::text() const {
  constexpr std::size_t shown = 10;
  std::string text;
  if (differences.empty()) {
    text = bytes > 0 ? "every bit is equal\n" : "nothing was compared\n";
  } else {
    text = std::to_string(differences.size()) + " tensors differ; the first:\n";
    for (std::size_t i = 0; i < std::min(shown, differences.size()); ++i) {
      const Difference& d = differences[i];
      text += "  step " + std::to_string(d.step) + ": " + std::string(to_string(d.kind)) + " " + d.name +
              (d.is_missing ? " (one run has none)\n" : "\n");
    }
  }
  text += "compared over " + std::to_string(steps) + " steps, " + memory::exact_bytes(bytes) + ":";
  for (std::size_t i = 0; i < compared_count; ++i) {
    text +=
        (i > 0 ? ", " : " ") + std::to_string(tensors[i]) + " of " + std::string(to_string(static_cast<Compared>(i)));
  }
  text += "\npeak " + memory::exact_bytes(plain.peak_bytes) + " plain, " + memory::exact_bytes(planned.peak_bytes) +
          " under the plan";
  if (predicted_peak_bytes > 0) text += ", predicted " + memory::exact_bytes(predicted_peak_bytes);
  if (planned.placed.first_deviation) text += "\nleft its plan: " + to_string(*planned.placed.first_deviation);
  return text + "\n";
}

Certificate certify(const MakeRun& plain, const MakeRun& planned, memory::Device device,
                    std::vector<memory::StepPlacement> placement, const CertifyOptions& options) {
  if (options.steps < 1) throw ValueError("certify: " + std::to_string(options.steps) + " steps; at least 1");
  if (device.is_dry)
    throw DeviceError("certify: " + thimble::to_string(device) + " has no values; expected a real device");
  Result first = run(plain, device, {}, options, false);
  Result second = run(planned, device, std::move(placement), options, true);
  Certificate certificate;
  certificate.differences = compare(first.trajectory, second.trajectory);
  certificate.steps = options.steps;
  for (const ComparedTensor& entry : first.trajectory) {
    ++certificate.tensors[static_cast<std::size_t>(entry.kind)];
    certificate.bytes += entry.bytes;
  }
  certificate.plain = first.run;
  certificate.planned = second.run;
  return certificate;
}

Certificate certify(const MakeRun& make, memory::Device device, const Plan& plan, const CertifyOptions& options) {
  if (plan.packed_bytes > 0)
    throw PlanError("certify: the plan packs tensors, which rounds gradients; expected exact plans");
  const MakeRun planned = [&](memory::Device on) {
    std::unique_ptr<TrainingRun> run = make(on);
    plan.apply(run->options(), on);
    return run;
  };
  Certificate certificate = certify(make, planned, device, plan.placement, options);
  certificate.predicted_peak_bytes = plan.peak_bytes;
  return certificate;
}

namespace {

constexpr std::uint64_t c1 = 0x87C37B91114253D5ull, c2 = 0x4CF5AD432745937Full;
constexpr std::size_t block = 16;

constexpr std::uint64_t rotate(std::uint64_t x, int by) noexcept { return (x << by) | (x >> (64 - by)); }

constexpr std::uint64_t finish(std::uint64_t k) noexcept {
  k = (k ^ (k >> 33)) * 0xFF51AFD7ED558CCDull;
  k = (k ^ (k >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return k ^ (k >> 33);
}

/// Adds elements of any layout, buffered in 4 KiB.
void add_strided(const Tensor& t, const std::byte* at, DigestStream& digest) {
  const std::size_t size = size_of(t.dtype());
  std::array<std::byte, 4096> part;
  std::size_t used = 0;
  std::array<std::int64_t, max_rank> index{};
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    std::memcpy(part.data() + used, at + offset * static_cast<std::int64_t>(size), size);
    used += size;
    if (used + size > part.size()) digest.add(part.data(), std::exchange(used, 0));
    for (int axis = t.rank() - 1; axis >= 0; --axis) {
      std::int64_t& here = index[static_cast<std::size_t>(axis)];
      offset += t.strides()[axis];
      if (++here < t.shape()[axis]) break;
      offset -= here * t.strides()[axis];
      here = 0;
    }
  }
  digest.add(part.data(), used);
}

/// Copies GPU memory through a host buffer.
void add_downloaded(const Tensor& t, const std::byte* at, std::vector<std::byte>& part, DigestStream& digest) {
  for (std::size_t done = 0; done < t.bytes(); done += part.size()) {
    const std::size_t count = std::min(part.size(), t.bytes() - done);
    kernels::device_runtime(t.device()).download(part.data(), at + done, count);
    digest.add(part.data(), count);
  }
}

}  // namespace

void DigestStream::mix(std::uint64_t first, std::uint64_t second) noexcept {
  low_ ^= rotate(first * c1, 31) * c2;
  low_ = (rotate(low_, 27) + high_) * 5 + 0x52DCE729;
  high_ ^= rotate(second * c2, 33) * c1;
  high_ = (rotate(high_, 31) + low_) * 5 + 0x38495AB5;
}

void DigestStream::add(const void* from, std::size_t bytes) noexcept {
  const auto* at = static_cast<const unsigned char*>(from);
  const auto mix_block = [this](const unsigned char* words) {
    std::uint64_t two[2];
    std::memcpy(two, words, sizeof two);
    mix(two[0], two[1]);
  };
  const std::size_t before = bytes_ % block;
  bytes_ += bytes;
  if (before > 0) {
    const std::size_t taken = std::min(bytes, block - before);
    std::memcpy(rest_ + before, at, taken);
    at += taken, bytes -= taken;
    if (before + taken < block) return;
    mix_block(rest_);
  }
  for (; bytes >= block; at += block, bytes -= block) mix_block(at);
  if (bytes > 0) std::memcpy(rest_, at, bytes);
}

Digest DigestStream::value() const noexcept {
  std::uint64_t two[2] = {};
  std::memcpy(two, rest_, bytes_ % block);
  std::uint64_t low = low_ ^ (rotate(two[0] * c1, 31) * c2), high = high_ ^ (rotate(two[1] * c2, 33) * c1);
  low ^= bytes_, high ^= bytes_;
  low += high, high += low;
  low = finish(low), high = finish(high);
  low += high;
  return {low, high + low};
}

Digest digest_of(const Tensor& t) {
  DigestStream digest;
  if (t.defined() && t.elements() > 0) {
    if (t.device().is_cuda() && !t.device().is_dry && !t.is_contiguous()) {
      throw DeviceError("digest_of: " + describe(t) + " has gaps; expected a dense tensor on a GPU");
    }
    std::vector<std::byte> part(t.device().is_cuda() ? std::min<std::size_t>(t.bytes(), 1 << 20) : 0);
    fetch_parameters(t);
    launch(t.device(), [&](const Addresses& addresses) {
      const auto* const at = static_cast<const std::byte*>(addresses(t));
      if (t.device().is_cuda()) {
        add_downloaded(t, at, part, digest);
      } else if (t.is_contiguous()) {
        digest.add(at, t.bytes());
      } else {
        add_strided(t, at, digest);
      }
    });
  }
  if (t.scale()) {
    const Digest scale = digest_of(*t.scale());
    digest.add(&scale, sizeof scale);
  }
  return digest.value();
}

}  // namespace thimble::nn
