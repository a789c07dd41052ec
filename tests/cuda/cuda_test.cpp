// CUDA devices: copies, training, bits, workspaces. On a GPU if there is one; in a build without CUDA on
// tests/emulated. The operators are in the operator table.

#include <bit>
#include <cmath>
#include <functional>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/memory/offload/pinned_tier.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/step/profile.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/model_runs.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace {

bool same_values(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = to_host<double>(a), y = to_host<double>(b);
  bool same = x.size() == y.size();
  for (std::size_t i = 0; same && i < x.size(); ++i) {
    same = std::bit_cast<std::uint64_t>(x[i]) == std::bit_cast<std::uint64_t>(y[i]);
  }
  return same;
}

Tensor noise(const Shape& shape, DType dtype = DType::f32) {
  RandomGenerator generator(7);
  const GeneratorScope scope(generator);
  return normal(shape, 0, 1, dtype, cpu, generator.next_site(0));
}

}  // namespace

TEST_CASE("cuda: bytes go there and back as they are", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::f8e4m3, DType::i32, DType::u8, DType::boolean}) {
    INFO(to_string(dtype));
    const Tensor here = to_dtype(noise({3, 5, 7}), dtype);
    const Tensor there = to_device(view::permute(here, {2, 0, 1}), cuda());
    CHECK(there.device() == cuda());
    CHECK(there.is_contiguous());
    CHECK(same_values(to_device(there, cpu), view::permute(here, {2, 0, 1})));
    CHECK(same_values(there, view::permute(here, {2, 0, 1})));  // copied by to_host
  }
  CHECK(item(from_host(std::vector<float>{2.5f}, {}, cuda())) == 2.5);
  CHECK(to_device(Tensor::empty({0, 3}), cuda()).elements() == 0);
  const Tensor large = noise({3'000'000});  // more than the pinned memory for uploads
  CHECK(same_values(to_device(to_device(large, cuda()), cpu), large));
  CHECK_THROWS_AS(copy_into(large, to_device(large, cuda())), DeviceError);
  CHECK_THROWS_AS(to_device(Tensor::empty({2}, DType::f32, dry(cuda())), cuda()), DeviceError);
  const memory::Pin pin(to_device(large, cuda()));
  CHECK_THROWS_AS(pin.as<float>(), DeviceError);  // the host cannot read it
}

TEST_CASE("cuda: a device that is not there is an error that names it", "[cuda]") {
  CHECK_THROWS_AS(memory::make_resource(cuda(200)), DeviceError);
  try {
    memory::make_resource(cuda(200));
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    CHECK((text.find("cuda:200") != std::string::npos || text.find("cudaGetDeviceCount") != std::string::npos));
  }
}

TEST_CASE("cuda: conversions, fills and copies have the CPU's bits", "[cuda]") {
  if (!has_cuda()) return;
  constexpr DType all[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2,
                           DType::i8,  DType::i32, DType::i64, DType::u8,   DType::boolean};
  std::vector<double> values{0.0,      -0.0,  1.0,  -2.5,  0.3,   447.9,    500.0,
                             -70000.0, 1e300, 3e-8, 127.5, 255.0, INFINITY, NAN};
  for (int i = 0; i < 40; ++i) values.push_back(std::ldexp(1.0 + 0.0371 * i, i - 20));
  const Tensor wide = from_host(values, {static_cast<std::int64_t>(values.size())});
  for (const DType from : all) {
    const Tensor here = to_dtype(wide, from), there = to_device(here, cuda());
    for (const DType to : all) {
      INFO(to_string(from) << " to " << to_string(to));
      CHECK(same_values(to_dtype(there, to), to_dtype(here, to)));
      const Tensor strided = view::slice(there, 0, 1, 40);
      CHECK(same_values(to_dtype(strided, to), to_dtype(view::slice(here, 0, 1, 40), to)));
    }
    const double value = is_floating(from) ? -1.7 : 1;
    CHECK(same_values(full({2, 3}, value, from, cuda()), full({2, 3}, value, from)));
  }
}

TEST_CASE("cuda: random numbers, dropout and sums have the CPU's bits", "[cuda]") {
  if (!has_cuda()) return;
  const RandomSite site{11, 3, 5, 77};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    INFO(to_string(dtype));
    CHECK(same_values(uniform({1003}, -1, 2, dtype, cuda(), site), uniform({1003}, -1, 2, dtype, cpu, site)));
    CHECK(same_values(bernoulli({1003}, 0.3, dtype, cuda(), site), bernoulli({1003}, 0.3, dtype, cpu, site)));
  }
  CHECK(same_values(randn({1003}, DType::f32, cuda(), site), randn({1003}, DType::f32, cpu, site)));
  const Tensor x = noise({300, 70});
  const Tensor there = to_device(x, cuda());
  for (const int axis : {0, 1}) CHECK(same_values(sum(there, axis), sum(x, axis)));
  const Tensor long_row = noise({2, 70'000});
  CHECK(same_values(sum(to_device(long_row, cuda()), 1), sum(long_row, 1)));
}

TEST_CASE("cuda: operators whose order is the CPU's have its bits", "[cuda]") {
  if (!has_cuda()) return;
  struct Case {
    const char* name;
    std::function<Tensor(const Tensor&)> call;
    bool is_quick = false;  // other bits in 16-bit dtypes: cuda_quick_test.cpp
  };
  const std::vector<Case> cases{
      {"exp", [](const Tensor& x) { return exp(x); }, true},
      {"tanh", [](const Tensor& x) { return tanh(x); }, true},
      {"gelu", [](const Tensor& x) { return gelu(x); }, true},
      {"broadcast", [](const Tensor& x) { return x * sum(x, 0, true); }},
      {"mean", [](const Tensor& x) { return mean(x, 1); }},
      {"variance", [](const Tensor& x) { return variance(x, 0); }},
      {"log_sum_exp", [](const Tensor& x) { return logsumexp(x, 1); }},
      {"max", [](const Tensor& x) { return max(x, 0); }},
      {"argmax", [](const Tensor& x) { return argmax(x, 1); }},
      {"dropout", [](const Tensor& x) { return dropout(x, 0.4); }},
      {"global average",
       [](const Tensor& x) {
         return global_avg_pool(view::reshape(x, {1, 10, 30, 70}));
       }},
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : cases) {
      if (c.is_quick && dtype != DType::f32) continue;
      INFO(c.name << " in " << to_string(dtype));
      const Tensor x = to_dtype(noise({300, 70}), dtype);
      const auto run = [&](memory::Device device) {
        RandomGenerator generator(5);
        const GeneratorScope scope(generator);
        return to_device(c.call(to_device(x, device)), cpu);
      };
      CHECK(same_values(run(cuda()), run(cpu)));
    }
  }
}

TEST_CASE("cuda: what a bad index names is NaN, and a bad target's loss is", "[cuda]") {
  if (!has_cuda()) return;
  const Tensor table = to_device(noise({4, 3}), cuda());
  const Tensor ids = from_host(std::vector<std::int64_t>{1, 9, -1, 3}, {4}, cuda());
  const std::vector<float> rows = to_host<float>(embedding(table, ids));
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(std::isnan(rows[i]) == (i / 3 == 1 || i / 3 == 2));
  const Tensor targets = from_host(std::vector<std::int64_t>{0, 3}, {2}, cuda());
  CHECK(std::isnan(item(cross_entropy(view::slice(table, 0, 0, 2), targets))));
}

TEST_CASE("cuda: optimizers have the CPU's bits", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    INFO(to_string(dtype));
    const auto run = [&](memory::Device device, bool is_adam) {
      Tensor p = to_device(noise({517}, dtype), device);
      p.require_grad();
      const std::vector<optim::Named> parameters{{"p", p}};
      std::unique_ptr<optim::Optimizer> optimizer;
      if (is_adam) {
        optim::AdamOptions options;
        options.weight_decay = 0.1;
        optimizer = std::make_unique<optim::Adam>(parameters, options);
      } else {
        optim::SgdOptions options;
        options.momentum = 0.9;
        options.weight_decay = 0.01;
        optimizer = std::make_unique<optim::Sgd>(parameters, options);
      }
      for (int step = 0; step < 3; ++step) {
        p.grad() = to_device(to_dtype(noise({517}), dtype), device);
        optimizer->step();
      }
      return to_device(p.detach(), cpu);
    };
    CHECK(same_values(run(cuda(), true), run(cpu, true)));
    CHECK(same_values(run(cuda(), false), run(cpu, false)));
  }
}

namespace {

// Trains on one batch and records the losses.
class Noted final : public nn::TrainingRun {
 public:
  Noted(const models::Setup& setup, memory::Device device, std::vector<double>& losses)
      : losses_(losses),
        generator_(setup.seed),
        scope_(generator_),
        model_(models::make_model(setup.model, setup.sizes, {device, setup.precision.dtype})),
        optimizer_(models::make_optimizer(setup, *model_)),
        batch_(model_->empty_batch(setup.batch, device)) {
    options_.clip_norm = 1;
    if (device.is_dry) return;
    const models::Batch batch = thimble::testing::make_batch(*model_, setup.batch);
    copy_into(batch_.input, to_device(batch.input, device));
    copy_into(batch_.target, to_device(batch.target, device));
  }
  nn::StepOptions& options() override { return options_; }
  void step() override {
    const Tensor loss = nn::training_step(
        *optimizer_, [this](std::int64_t) { return model_->loss(batch_); }, options_);
    if (loss.device().is_dry) return;
    const ResourceScope outside(default_resource(loss.device()));  // reading it allocates, and a dry run reads nothing
    losses_.push_back(item(loss));
  }
  std::int64_t parameters() const override { return model_->parameter_count(); }

 private:
  std::vector<double>& losses_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  models::Batch batch_;
  nn::StepOptions options_;
};

}  // namespace

TEST_CASE("cuda: models train as on the CPU, in as many bytes as predicted", "[cuda]") {
  if (!has_cuda()) return;
  models::ModelOptions text, image;
  text.layers = 1, text.heads = 2, text.width = 16, text.sequence = 12, text.vocabulary = 40, text.dropout = 0.1;
  image.image = 8, image.width = 4, image.classes = 5;
  struct Case {
    const char* model;
    models::ModelOptions sizes;
    const char* optimizer;
  };
  for (const Case& c : {Case{"char-gpt", text, "adamw"}, Case{"resnet18", image, "momentum"}}) {
    INFO(c.model);
    models::Setup setup;
    setup.model = c.model;
    setup.sizes = c.sizes;
    setup.batch = 2;
    setup.optimizer.name = c.optimizer;
    std::vector<double> losses;
    const nn::MakeRun make = [&](memory::Device device) { return std::make_unique<Noted>(setup, device, losses); };
    const nn::MemoryProfile predicted = nn::profile_training(dry(cuda()), make, 3);
    CHECK(losses.empty());
    const nn::MemoryProfile measured = nn::profile_training(cuda(), make, 3);
    const std::vector<double> there = losses;
    CHECK(predicted.peak_bytes == measured.peak_bytes);
    CHECK(predicted.peak_height_bytes == measured.peak_height_bytes);
    CHECK(predicted.peak_live_bytes == measured.peak_live_bytes);
    CHECK(predicted.peak_by_category == measured.peak_by_category);
    losses.clear();
    nn::profile_training(cpu, make, 3);
    REQUIRE(losses.size() == 3);
    REQUIRE(there.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(there[i] == Approx(losses[i]).epsilon(1e-3));
    CHECK(there[0] != there[2]);

    const std::vector<memory::StepPlacement> plans = nn::plan_steps(cuda(), make);
    losses.clear();
    const nn::MemoryProfile placed = nn::profile_training(cuda(), make, 3, false, plans);
    CHECK(losses == there);
    CHECK(placed.peak_height_bytes == nn::profile_training(dry(cuda()), make, 3, false, plans).peak_height_bytes);
  }
}

TEST_CASE("cuda: plans are made for a GPU's memory, wherever there is none", "[cuda]") {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 12, options.setup.sizes.vocabulary = 40;
  options.setup.batch = 2;
  options.device = cuda();
  options.costs.hardware = "h100-80gb";
  const models::PlanReport plan = models::make_plan(options);
  CHECK(plan.is_feasible);
  CHECK(plan.budget_bytes == std::size_t{80} << 30);
  const nn::MakeRun make = models::zero_batch_run(options.setup);
  const auto plans = nn::plan_steps(cuda(), make);
  CHECK(plan.plan.peak_bytes == nn::profile_training(dry(cuda()), make, 2, false, plans).peak_bytes);
  options.budget_bytes = 1 << 20;  // less than a granule: names the smallest plan, and that no technique fits
  const models::PlanReport refused = models::make_plan(options);
  CHECK_FALSE(refused.is_feasible);
  CHECK(std::string(refused.why_infeasible.what()).find("techniques fits") != std::string::npos);
  options.budget_bytes = 0;
  CHECK(models::make_plan(options, {.is_inference = true}).plan.peak_bytes ==
        nn::profile_training(dry(cuda()), models::inference_run(options.setup)).peak_bytes);
}

TEST_CASE("cuda: out of memory leaves everything as it was", "[cuda]") {
  if (!has_cuda()) return;
  const memory::Stack stack = memory::make_resource(cuda(), {.arena = {.capacity_bytes = std::size_t{4} << 20}});
  const ResourceScope scope(stack.top);
  const Tensor first = to_device(noise({500'000}), cuda());
  const memory::Arena::Statistics before = stack.arena->statistics();
  CHECK_THROWS_AS(Tensor::empty({3'000'000}, DType::f32, cuda()), OutOfMemory);
  CHECK(stack.arena->statistics() == before);
  CHECK(same_values(to_device(first, cpu), noise({500'000})));
  CHECK(Tensor::empty({400'000}, DType::f32, cuda()).elements() == 400'000);  // a smaller request succeeds
}

TEST_CASE("cuda: compaction moves tensors and keeps their values", "[cuda]") {
  if (!has_cuda()) return;
  const memory::Stack stack = memory::make_resource(cuda());
  const ResourceScope scope(stack.top);
  Tensor below = Tensor::empty({1000}, DType::f32, cuda());
  const Tensor small = to_device(noise({3000}), cuda());
  Tensor between = Tensor::empty({2'000'000}, DType::f32, cuda());
  const Tensor large = to_device(noise({1'500'000}), cuda());
  below = between = Tensor();
  CHECK(stack.arena->compact() == small.bytes() + large.bytes());
  CHECK(same_values(to_device(small, cpu), noise({3000})));
  CHECK(same_values(to_device(large, cpu), noise({1'500'000})));
  CHECK(stack.arena->trim() > 0);
  CHECK(same_values(to_device(large, cpu), noise({1'500'000})));
}

TEST_CASE("cuda: workspaces are functions of the arguments, in every build", "[cuda]") {
  using namespace thimble::kernels;
  GemmArgs args;
  args.m = 64, args.n = 32, args.k = 16;
  args.a_row_stride = 16, args.b_row_stride = 32, args.c_row_stride = 32;
  CHECK(is_library_gemm(args));
  CHECK(cuda_gemm_workspace_bytes(args, 1) == 16 * 64 * 32);
  CHECK(cuda_gemm_workspace_bytes(args, 7) == 16 * 64 * 32);
  args.m = args.n = 1 << 14;
  args.c_row_stride = args.b_row_stride = args.n;
  CHECK(cuda_gemm_workspace_bytes(args, 1) == max_gemm_workspace_bytes);
  for (const auto& change : std::vector<std::function<void(GemmArgs&)>>{
           [](GemmArgs& a) { a.dtype = a.c_dtype = DType::f64; }, [](GemmArgs& a) { a.c_dtype = DType::f64; },
           [](GemmArgs& a) { a.batch_rank = 2; }, [](GemmArgs& a) { a.a_column_stride = 2; },
           [](GemmArgs& a) { a.activation = Activation::gelu_erf, a.accumulate = true; },
           [](GemmArgs& a) { a.pre_activation = &a; },
           [](GemmArgs& a) { a.dtype = DType::f16, a.c_dtype = DType::bf16; },
           [](GemmArgs& a) { a.activation = Activation::relu, a.accumulate = true; }, [](GemmArgs& a) { a.k = 0; }}) {
    GemmArgs other = args;
    change(other);
    CHECK_FALSE(is_library_gemm(other));
    CHECK(cuda_gemm_workspace_bytes(other, 1) == 0);
  }
  for (const auto& change : std::vector<std::function<void(GemmArgs&)>>{
           [](GemmArgs& a) { a.activation = Activation::gelu_erf; }, [](GemmArgs& a) { a.dtype = DType::bf16; },
           [](GemmArgs& a) { a.activation = Activation::gelu_tanh, a.pre_activation = &a; }}) {
    GemmArgs other = args;
    change(other);
    CHECK(is_library_gemm(other));
    CHECK(cuda_gemm_workspace_bytes(other, 1) == max_gemm_workspace_bytes);
  }
  ConvForwardArgs conv;
  conv.shape.images = 1, conv.shape.height = conv.shape.width = 8, conv.shape.channels = 4, conv.shape.filters = 8;
  CHECK(cuda_conv_forward_bytes(conv, 1) == 3328);  // 4 (256 + 512 + 32), rounded up to 256
  conv.shape.pad_top = 1;
  CHECK(cuda_conv_forward_bytes(conv, 1) == 0);
  // Dry and real sizes agree: a build's own table, if present, names the same functions.
  if (matmul_cuda) CHECK(matmul_cuda->gemm_workspace_bytes == matmul_cuda_sizes.gemm_workspace_bytes);
  if (attention_cuda) CHECK(attention_cuda->backward_bytes == attention_cuda_sizes.backward_bytes);
  CHECK(&matmul_kernels(dry(cuda())) == &matmul_cuda_sizes);
}

TEST_CASE("cuda: tensors go to the host's pinned memory and come back", "[cuda][offload]") {
  if (!has_cuda()) return;
  const auto tier = std::make_shared<memory::PinnedTier>(cuda(), std::size_t{1} << 20);
  const memory::Stack stack = memory::make_resource(cuda());
  const ResourceScope scope(stack.top);
  const Tensor expected = noise({50, 100});
  for (int round = 0; round < 3; ++round) {
    memory::Offloaded away = memory::offload(to_device(expected, cuda()), tier);
    CHECK(stack.ledger->bytes() == expected.bytes());
    away.complete();
    CHECK(stack.ledger->bytes() == 0);
    const Tensor other = full({50, 100}, 3.0, DType::f32, cuda());  // reuses the bytes
    away.prefetch();
    CHECK(same_values(to_device(away.fetch(), cpu), expected));
    CHECK(tier->statistics().live_bytes == 0);
  }
  CHECK(tier->statistics().committed_bytes == std::size_t{1} << 20);  // one slab: its whole bound
  CHECK(tier->statistics().bytes_read == 3 * expected.bytes());
  CHECK_THROWS_AS(memory::offload(to_device(noise({300'000}), cuda()), tier), FileError);
  CHECK_THROWS_AS(tier->wait(77), ValueError);
  memory::Offloaded dropped = memory::offload(to_device(expected, cuda()), tier);
  dropped.drop();
  CHECK(tier->statistics().live_bytes == 0);
}

TEST_CASE("cuda: a dry pinned tier counts as a real one does", "[cuda][offload]") {
  memory::PinnedTier tier(dry(cuda()), 2000);
  const memory::Ticket first = tier.write(nullptr, 700), second = tier.write(nullptr, 900);
  CHECK_THROWS_AS(tier.write(nullptr, 1), FileError);
  tier.drop(first);
  const memory::Ticket again = tier.write(nullptr, 600);  // in the same 1024 bytes
  tier.read(again, nullptr);
  tier.wait(second);
  CHECK(tier.statistics().committed_bytes == 2048);
  CHECK(tier.statistics().live_bytes == 1500);
  CHECK((tier.statistics().writes == 3 && tier.statistics().bytes_written == 2200));
  CHECK((tier.statistics().reads == 1 && tier.statistics().bytes_read == 600));
  CHECK_THROWS_AS(memory::PinnedTier(cpu, 1000), DeviceError);
}
