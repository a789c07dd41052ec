// TF32 is an option that is off, of a thread, and stated.

#include <cmath>
#include <thread>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"

using namespace thimble;
using files_test::TemporaryFolder;
using thimble::testing::has_cuda;

namespace {

double relative_error(const std::vector<double>& got, const std::vector<double>& exact) {
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    sum += (got[i] - exact[i]) * (got[i] - exact[i]), size += exact[i] * exact[i];
  }
  return std::sqrt(sum / size);
}

}  // namespace

TEST_CASE("tf32: off, unless a scope of the thread allows it", "[tf32]") {
  CHECK_FALSE(allows_tf32());
  {
    const Tf32Scope on(true);
    CHECK(allows_tf32());
    bool elsewhere = true;
    std::thread([&] { elsewhere = allows_tf32(); }).join();
    CHECK_FALSE(elsewhere);
    {
      const Tf32Scope off(false);
      CHECK_FALSE(allows_tf32());
    }
    CHECK(allows_tf32());
  }
  CHECK_FALSE(allows_tf32());
}

TEST_CASE("tf32: products stay within its rounding, other dtypes and the CPU do not change", "[tf32][cuda]") {
  RandomGenerator generator(4);
  const GeneratorScope random(generator);
  const Tensor a = randn({64, 96}), b = randn({96, 32});
  const auto product = [&](DType dtype, memory::Device device, bool is_allowed) {
    const Tf32Scope scope(is_allowed);
    return to_host<double>(matmul(to_device(to_dtype(a, dtype), device), to_device(to_dtype(b, dtype), device)));
  };
  CHECK(product(DType::f32, cpu, true) == product(DType::f32, cpu, false));
  if (!has_cuda()) return;
  CHECK(product(DType::bf16, cuda(), true) == product(DType::bf16, cuda(), false));
  CHECK(product(DType::f64, cuda(), true) == product(DType::f64, cuda(), false));
  const std::vector<double> exact = product(DType::f64, cpu, false);
  const std::vector<double> full = product(DType::f32, cuda(), false), fast = product(DType::f32, cuda(), true);
  CHECK(fast == product(DType::f32, cuda(), true));
  CHECK(relative_error(full, exact) < 0x1p-21);
  CHECK(relative_error(fast, exact) < 0x1p-10);
}

namespace {

struct AttentionRun {
  std::vector<std::vector<double>> values;  ///< result, gradients of q, k and v; none of a dry run
  std::size_t peak_bytes;
};

AttentionRun run_attention(DType dtype, memory::Device device, std::int64_t width, bool is_allowed) {
  const Tf32Scope scope(is_allowed);
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope resource(stack.top);
  const auto noise = [&](unsigned number) {
    const Shape shape{2, 70, 2, width};
    if (device.is_dry) return Tensor::empty(shape, dtype, device);
    return to_device(to_dtype(normal(shape, 0, 1, DType::f32, cpu, {7, 0, 0, number}), dtype), device);
  };
  AttentionRun run;
  const Tensor q = noise(1), k = noise(2), v = noise(3), dy = noise(4);
  const ops::ScaledDotProductAttention op{true, {}, 0.1, {11, 3, 5, 0x5eed5eedu}};
  ops::ScaledDotProductAttention::Saved saved;
  const Tensor y = op.forward(q, k, v, {}, Needs(7), saved);
  Gradients gradients = op.backward(std::move(saved), dy, Needs(7));
  run.peak_bytes = stack.arena->statistics().peak_height_bytes;
  if (device.is_dry) return run;
  run.values = {to_host<double>(y)};
  for (int i = 0; i < 3; ++i) run.values.push_back(to_host<double>(gradients[i]));
  return run;
}

}  // namespace

TEST_CASE("tf32: attention stays within its rounding, where it has kernels in it", "[tf32][attention][cuda]") {
  const auto same = [](DType dtype, memory::Device device, std::int64_t width) {
    return run_attention(dtype, device, width, true).values == run_attention(dtype, device, width, false).values;
  };
  CHECK(same(DType::f32, cpu, 64));
  const std::size_t bytes = run_attention(DType::f32, dry(cuda()), 64, false).peak_bytes;
  CHECK(run_attention(DType::f32, dry(cuda()), 64, true).peak_bytes == bytes);
  if (!has_cuda()) return;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) CHECK(same(dtype, cuda(), 64));
  for (const std::int64_t width : {8, 20, 144}) CHECK(same(DType::f32, cuda(), width));
  const AttentionRun full = run_attention(DType::f32, cuda(), 64, false);
  const AttentionRun fast = run_attention(DType::f32, cuda(), 64, true);
  const AttentionRun exact = run_attention(DType::f64, cpu, 64, false);
  CHECK(full.peak_bytes == bytes);
  CHECK(fast.peak_bytes == bytes);
  for (std::size_t i = 0; i < 4; ++i) {
    INFO("result " << i);
    CHECK(relative_error(full.values[i], exact.values[i]) < 0x1p-20);
    CHECK(relative_error(fast.values[i], exact.values[i]) < 0x1p-10);
    CHECK(relative_error(fast.values[i], exact.values[i]) > 0x1p-14);  // it is TF32
  }
}

TEST_CASE("tf32: training states it, and goes on as it began", "[tf32][cuda]") {
  models::TrainOptions options;
  options.setup.model = "mlp";
  options.setup.batch = 2;
  options.data = "synthetic";
  options.steps = 1;
  options.eval_batches = 1;
  options.allows_tf32 = true;
  CHECK_THROWS_AS(models::prepare_training(options), ValueError);  // on the cpu
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  options.device = cuda();
  options.save = folder / "a.safetensors";
  models::train(models::prepare_training(options));
  CHECK_FALSE(allows_tf32());
  options.resume = options.save;
  options.save.clear();
  options.steps = 2;
  CHECK(models::prepare_training(options).first_step == 1);
  options.allows_tf32 = false;
  CHECK_THROWS_AS(models::prepare_training(options), ValueError);
}

TEST_CASE("tf32: a text model trains with it in the bytes of a plan without", "[tf32][cuda]") {
  if (!has_cuda()) return;
  models::TrainOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 32;  // heads of 16
  options.setup.sizes.sequence = 24, options.setup.sizes.dropout = 0.1;
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 1;
  options.device = cuda();
  const auto report = [&](bool is_allowed) {
    options.allows_tf32 = is_allowed;
    const models::TrainReport got = models::train(models::prepare_training(options));
    CHECK(got.measured_peak_bytes == got.predicted_peak_bytes);
    return got;
  };
  const models::TrainReport full = report(false), fast = report(true);
  CHECK(fast.predicted_peak_bytes == full.predicted_peak_bytes);
  CHECK(fast.loss_last != full.loss_last);
  CHECK(fast.loss_last == Approx(full.loss_last).epsilon(1e-3));
}

TEST_CASE("tf32: plans for a GPU count with its rate where it is switched on", "[tf32]") {
  models::PlanOptions options;
  options.setup.model = "gpt2";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2;
  options.costs.hardware = "a100-40gb";
  options.device = cuda();
  const models::PlanReport plain = models::make_plan(options);
  options.allows_tf32 = true;
  const models::PlanReport fast = models::make_plan(options);
  CHECK(fast.plan.step_s < 0.5 * plain.plan.step_s);
  CHECK(fast.plan.peak_bytes == plain.plan.peak_bytes);
  options.setup.dtype = DType::bf16;
  const double narrow = models::make_plan(options).plan.step_s;
  options.allows_tf32 = false;
  CHECK(models::make_plan(options).plan.step_s == narrow);
  CHECK(narrow < fast.plan.step_s);
  options.allows_tf32 = true;
  options.device = cpu;
  options.costs.hardware.clear();
  CHECK_THROWS_AS(models::make_plan(options), ValueError);
  CHECK_FALSE(allows_tf32());
}
