#include "operator_table.h"
#include "near.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>

#include "catch.h"
#include "emulated/block.h"

namespace thimble::testing {
namespace {

// Distinct, reproducible values: a golden-ratio sequence spreads them evenly, so that none is at a maximum or a kink.
std::vector<double> spread(const Operand& operand, std::size_t which) {
  if (!operand.values.empty()) return operand.values;
  std::vector<double> values(static_cast<std::size_t>(operand.shape.elements()));
  double at = 0.137 + 0.291 * static_cast<double>(which);
  for (double& value : values) {
    at = std::fmod(at + 0.6180339887498949, 1.0);
    value = operand.low + (operand.high - operand.low) * at;
    if (operand.is_integer) value = std::floor(operand.low + (operand.high - operand.low + 1) * at);
    if (operand.is_bool) value = at < 0.5 ? 0 : 1;
  }
  return values;
}

bool can_take_gradient(const Operand& operand) {
  return operand.takes_gradient && !operand.is_integer && !operand.is_bool;
}

// Operand i is a leaf if bit i of `leaves` is set.
std::vector<Tensor> make_operands(const OperatorCase& row, DType dtype, memory::Device device, std::uint32_t leaves) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < row.operands.size(); ++i) {
    const Operand& operand = row.operands[i];
    const DType own = operand.is_integer ? DType::i64 : operand.is_bool ? DType::boolean : dtype;
    Tensor t = Tensor::empty(operand.shape, own, device);
    if (!device.is_dry) copy_into(t, to_device(to_dtype(from_host(spread(operand, i), operand.shape), own), device));
    if (((leaves >> i) & 1u) && can_take_gradient(operand)) t.require_grad();
    tensors.push_back(t);
  }
  return tensors;
}

struct Outcome {
  Tensor y;
  std::vector<Tensor> gradients;  // undefined without a gradient
  std::int64_t tape_bytes = 0;    // of distinct storages held by the tape
};

// The call is in a segment with `policy`, or in none if that is null.
Outcome run_once(const OperatorCase& row, DType dtype, memory::Device device, std::uint32_t leaves,
                 FatePolicy policy = nullptr) {
  const std::vector<Tensor> operands = make_operands(row, dtype, device, leaves);
  current_generator().start_pass();
  Outcome outcome;
  Tape tape;
  {
    const Recording on(tape);
    if (policy != nullptr) {
      const SegmentScope segment(policy);
      outcome.y = row.run(operands);
    } else {
      outcome.y = row.run(operands);
    }
  }
  outcome.tape_bytes = static_cast<std::int64_t>(tape.kept_bytes(memory::Category::activation));
  const bool is_recorded = tape.node_count() > 0 && leaves != 0 && row.has_gradient;
  if (is_recorded) {
    Tensor seed = Tensor::empty(outcome.y.shape(), outcome.y.dtype(), device);
    if (!device.is_dry) {
      const Operand like{outcome.y.shape(), -1, 1};
      copy_into(seed, from_host(spread(like, 9), outcome.y.shape(), device));
    }
    tape.backward(outcome.y, seed);
  }
  for (const Tensor& t : operands) outcome.gradients.push_back(t.requires_grad() ? t.grad() : Tensor());
  return outcome;
}

std::uint32_t all_leaves(const OperatorCase& row) {
  std::uint32_t leaves = 0;
  for (std::size_t i = 0; i < row.operands.size(); ++i) {
    if (can_take_gradient(row.operands[i])) leaves |= 1u << i;
  }
  return row.has_gradient ? leaves : 0;
}

// Equal bits, so that NaN equals NaN.
bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (a.elements() == 0) return true;
  const Tensor da = contiguous(a.detach()), db = contiguous(b.detach());
  const memory::Pin pa(da), pb(db);
  return std::memcmp(pa.data(), pb.data(), da.bytes()) == 0;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  bool same = same_bits(a.y, b.y);
  for (std::size_t i = 0; i < a.gradients.size(); ++i) same = same && same_bits(a.gradients[i], b.gradients[i]);
  return same;
}

void check_values(const OperatorCase& row) {
  const std::map<DType, double> tolerances{
      {DType::f64, 1e-10}, {DType::f32, 2e-6}, {DType::f16, 4e-3}, {DType::bf16, 3e-2}};
  for (const auto& [dtype, tolerance] : tolerances) {
    if (!row.supports_low_precision && size_of(dtype) < 4) continue;
    INFO("dtype " << to_string(dtype));
    const std::vector<Tensor> operands = make_operands(row, dtype, cpu, 0);
    current_generator().start_pass();
    const Tensor y = row.run(operands);
    std::vector<HostArray> host;  // values after conversion to the dtype
    for (const Tensor& t : operands) host.push_back({t.shape(), to_host<double>(t)});
    std::vector<double> expected;
    if (row.reference) {
      expected = row.reference(host);
    } else {
      std::vector<Tensor> exact;
      for (const Tensor& t : operands) exact.push_back(is_floating(t.dtype()) ? to_dtype(t, DType::f64) : t);
      current_generator().start_pass();
      expected = to_host<double>(row.run(exact));
    }
    const std::vector<double> got = to_host<double>(y);
    REQUIRE(got.size() == expected.size());
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
      if (std::isinf(expected[i]) && expected[i] == got[i]) continue;
      worst = thimble_test::worse(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
    }
    INFO("largest error relative to 1 + |value|: " << worst);
    CHECK(worst <= tolerance * row.tolerance);
  }
}

void check_bytes(const OperatorCase& row) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    if (!row.supports_low_precision && size_of(dtype) < 4) continue;
    INFO("dtype " << to_string(dtype));
    const auto stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    const std::vector<Tensor> operands = make_operands(row, dtype, cpu, all_leaves(row));
    current_generator().start_pass();
    Tape tape;
    {
      const Recording on(tape);
      const Tensor y = row.run(operands);
    }
    const auto booked = static_cast<std::int64_t>(stack.ledger->bytes(memory::Category::activation));
    CHECK(static_cast<std::int64_t>(tape.kept_bytes()) == booked);
    const std::int64_t e = static_cast<std::int64_t>(size_of(dtype)), s = dtype == DType::f64 ? 8 : 4;
    if (row.kept_bytes) CHECK(booked == row.kept_bytes(e, s));
    tape.clear();
    CHECK(stack.ledger->bytes(memory::Category::activation) == 0);
  }
}

void check_dry(const OperatorCase& row, memory::Device device) {
  // Creating the operands copies values only on the real side, so events are compared from the operator on.
  const auto operator_events = [&](memory::Device device) {
    memory::Options options;
    options.trace = true;
    const auto stack = memory::make_resource(device, options);
    const ResourceScope scope(stack.top);
    const std::vector<Tensor> operands = make_operands(row, DType::f32, device, all_leaves(row));
    const Tensor seed_like = row.run(operands);
    Tensor seed = Tensor::empty(seed_like.shape(), seed_like.dtype(), device);
    if (!device.is_dry) fill(seed, 2);
    current_generator().start_pass();
    stack.trace->restart();
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = row.run(operands);
    }
    if (tape.node_count() > 0 && row.has_gradient && all_leaves(row) != 0) tape.backward(y, seed);
    return stack.trace->events();
  };
  CHECK(operator_events(device) == operator_events(dry(device)));
}

// Puts one operand at a time on a dry device: the call is refused, and the message names both devices and the fix.
void check_mixed_devices(const OperatorCase& row) {
  const std::vector<Tensor> here = make_operands(row, DType::f32, cpu, 0);
  for (std::size_t i = 0; i < here.size() && here.size() > 1; ++i) {
    std::vector<Tensor> mixed = here;
    mixed[i] = to_device(here[i], dry(cpu));
    INFO("operand " << i << " on a dry device");
    CHECK_THROWS_WITH(row.run(mixed), Catch::Contains("operands on different devices") && Catch::Contains(" on cpu") &&
                                          Catch::Contains(" on dry(cpu)") && Catch::Contains("the trainer passes"));
  }
}

// The largest difference of two tensors' values, relative to 1 + |value|; infinities and NaN equal their kind.
double largest_difference(const Tensor& expected, const Tensor& got) {
  const std::vector<double> a = to_host<double>(expected.detach()), b = to_host<double>(got.detach());
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    worst = thimble_test::worse(worst, std::abs(a[i] - b[i]) / (1 + std::abs(a[i])));
  }
  return worst;
}

// On a CUDA device with poisoned memory: values and gradients near the CPU's, the dry run's events, repeatable bits; on
// tests/emulated also in other orders of threads, blocks and items.
void check_cuda(const OperatorCase& row) {
  const std::map<DType, double> tolerances{
      {DType::f64, 1e-10}, {DType::f32, 4e-6}, {DType::f16, 4e-3}, {DType::bf16, 3e-2}};
  const std::uint32_t leaves = all_leaves(row);
  for (const auto& [dtype, tolerance] : tolerances) {
    if (!row.supports_low_precision && size_of(dtype) < 4) continue;
    INFO("on " << to_string(cuda()) << ", dtype " << to_string(dtype));
    const auto stack = memory::make_resource(cuda(), {.arena = {.poison = true}});
    const ResourceScope scope(stack.top);
    const Outcome there = run_once(row, dtype, cuda(), leaves), here = run_once(row, dtype, cpu, leaves);
    CHECK(there.y.device() == cuda());
    CHECK(there.tape_bytes == here.tape_bytes);
    const double of_values = largest_difference(here.y, there.y);
    CHECK(of_values <= tolerance * row.tolerance);
    for (std::size_t i = 0; i < here.gradients.size(); ++i) {
      INFO("gradient of operand " << i);
      REQUIRE(here.gradients[i].defined() == there.gradients[i].defined());
      if (!here.gradients[i].defined()) continue;
      const double of_gradient = largest_difference(here.gradients[i], there.gradients[i]);
      CHECK(of_gradient <= 4 * tolerance * row.tolerance);
    }
    if (dtype != DType::f32) continue;
    const auto on_host = [](const Outcome& outcome) {
      Outcome copy{to_device(outcome.y.detach(), cpu), {}, 0};
      for (const Tensor& g : outcome.gradients) copy.gradients.push_back(g.defined() ? to_device(g, cpu) : g);
      return copy;
    };
    for (const emulated::Order order :
         {emulated::Order::ascending, emulated::Order::descending, emulated::Order::random}) {
      const emulated::SettingsScope other;
      emulated::settings().order = order;
      CHECK(same_bits(on_host(there), on_host(run_once(row, dtype, cuda(), leaves))));
      if (!is_emulated()) break;
    }
  }
  INFO("events on " << to_string(cuda()));
  check_dry(row, cuda());
}

}  // namespace

bool is_emulated() {
  return has_cuda() && kernels::device_runtime(cuda()).devices().front().name.find("emulated") != std::string::npos;
}

bool has_cuda() {
  static const bool has = [] {
    try {
      memory::make_resource(cuda());
      return true;
    } catch (const DeviceError& error) {
      WARN("rows are not run on a CUDA device: " << error.what());
      return false;
    }
  }();
  return has;
}

Operand integers(const Shape& shape, double low, double high) { return {shape, low, high, true, false, false, {}}; }
Operand constant(const Shape& shape, double low, double high) { return {shape, low, high, false, false, false, {}}; }

void check_near(const Tensor& there, const Tensor& here, double tolerance) {
  REQUIRE(there.shape() == here.shape());
  REQUIRE(there.dtype() == here.dtype());
  const std::vector<double> got = to_host<double>(there), expected = to_host<double>(here);
  const double worst = thimble_test::largest_difference(got, expected);
  CHECK(worst <= tolerance * thimble_test::largest_of(expected));
  CHECK(std::isfinite(worst));
}

void check_operator(const OperatorCase& row) {
  INFO("operator row: " << row.name);
  RandomGenerator generator(1234);
  const GeneratorScope scope(generator);
  check_values(row);
  check_bytes(row);
  check_dry(row, cpu);
  check_mixed_devices(row);
  if (has_cuda() && row.why_cpu_alone.empty()) check_cuda(row);

  const std::uint32_t leaves = all_leaves(row);
  const int threads_before = thread_count();
  set_thread_count(1);
  const Outcome one = run_once(row, DType::f32, cpu, leaves);
  for (const int threads : {2, 5}) {
    INFO(threads << " threads");
    set_thread_count(threads);
    CHECK(same_bits(one, run_once(row, DType::f32, cpu, leaves)));
  }
  set_thread_count(threads_before);
  {
    INFO("every block moved before every allocation");
    const auto stack = memory::make_resource(
        cpu, {.arena = {.poison = true, .compaction = memory::Arena::Compaction::before_every_allocation}});
    const ResourceScope moving(stack.top);
    Tensor below = Tensor::empty({1000});  // freed when the operands are above it
    OperatorCase moved = row;
    moved.run = [&](std::span<const Tensor> operands) {
      below = Tensor();
      return row.run(operands);
    };
    CHECK(same_bits(one, run_once(moved, DType::f32, cpu, leaves)));
    const bool has_blocks = std::any_of(row.operands.begin(), row.operands.end(),
                                        [](const Operand& operand) { return operand.shape.elements() > 0; });
    CHECK((stack.arena->statistics().moved_blocks > 0) == has_blocks);
  }
  if (leaves == 0) return;

  constexpr FatePolicy fates[] = {drop_all, [](const OpType&) { return Fate::keep_output; },
                                  [](const OpType&) { return Fate::keep_saved; },
                                  [](const OpType&) { return Fate::keep; }};
  for (const FatePolicy& policy : fates) {
    INFO("in a segment, fate " << (&policy - fates));
    CHECK(same_bits(one, run_once(row, DType::f32, cpu, leaves, policy)));
  }
  for (std::size_t i = 0; i < row.operands.size(); ++i) {
    if (!((leaves >> i) & 1u)) continue;
    INFO("operand " << i << " alone");
    const Outcome alone = run_once(row, DType::f32, cpu, 1u << i);
    CHECK(same_bits(one.y, alone.y));
    CHECK(same_bits(one.gradients[i], alone.gradients[i]));
    CHECK(alone.tape_bytes <= one.tape_bytes);
  }
  if (row.is_gradcheck_exact) {
    GradcheckOptions options;
    options.operands = leaves;
    const auto call = [&](std::span<const Tensor> in) { return row.run(in); };
    const GradcheckResult result = gradcheck(call, make_operands(row, DType::f64, cpu, 0), options);
    INFO(result.report);
    CHECK(result.passed);
  } else {
    CHECK_FALSE(row.why_no_gradcheck.empty());
  }
}

}  // namespace thimble::testing
