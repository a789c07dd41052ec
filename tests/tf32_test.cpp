// TF32 is an option that is off, of a thread, and stated.

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/bench/training.h>
#include <thimble/core/context.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/core/random.h>
#include <thimble/core/tf32.h>

#include "catch.h"
#include "files.h"
#include "operator_table.h"

using namespace thimble;
using files_test::TemporaryFolder;
using thimble::testing::has_cuda;

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
  Generator generator(4);
  const GeneratorScope random(generator);
  const Tensor a = randn({64, 96}), b = randn({96, 32});
  const auto product = [&](DType dtype, Device device, bool is_allowed) {
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
  const auto error = [&](const std::vector<double>& got) {
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      sum += (got[i] - exact[i]) * (got[i] - exact[i]), size += exact[i] * exact[i];
    }
    return std::sqrt(sum / size);
  };
  CHECK(error(full) < 0x1p-21);
  CHECK(error(fast) < 0x1p-10);
}

TEST_CASE("tf32: training states it, and goes on as it began", "[tf32][cuda]") {
  bench::TrainOptions options;
  options.setup.model = "mlp";
  options.setup.batch = 2;
  options.data = "synthetic";
  options.steps = 1;
  options.eval_batches = 1;
  options.allows_tf32 = true;
  CHECK_THROWS_AS(bench::prepare_training(options), ValueError);  // on the cpu
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  options.device = cuda();
  options.save = folder / "a.safetensors";
  bench::train(bench::prepare_training(options));
  CHECK_FALSE(allows_tf32());
  options.resume = options.save;
  options.save.clear();
  options.steps = 2;
  CHECK(bench::prepare_training(options).first_step == 1);
  options.allows_tf32 = false;
  CHECK_THROWS_AS(bench::prepare_training(options), ValueError);
}
