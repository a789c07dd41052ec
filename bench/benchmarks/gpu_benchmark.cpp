// Times of operators on a device, with the arithmetic and memory rates they reach.
//
//   gpu_benchmark [DEVICE [SCALE [PARTS]]]        (cuda, 1, all: operators,optimizers,steps,libraries)
//
// Prints a line per operator, "name dtype ms figure unit": the best of several runs of many launches. SCALE divides the
// sizes (a smoke run on the cpu uses 64). bench/torch/gpu.py prints the same lines for PyTorch. `steps` trains small
// models, launch by launch and as a graph, and counts Thimble's own launches and the host's waits per step.
// `libraries` runs training steps and counts the products and convolutions that cuBLASLt and cuDNN computed, and the
// ones they refused within their declared workspaces, which Thimble's kernels computed instead. Every other part ends
// with such a line, too.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/quant/codes.h>
#include <thimble/nn/step/captured_step.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>

namespace thimble {
namespace {

void wait(memory::Device device) {
  if (device.is_cuda()) kernels::device_runtime(device).synchronize(device);
}

// Best seconds per call.
double seconds_of(memory::Device device, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  wait(device);
  double best = 1e30;
  for (int run = 0; run < 5; ++run) {
    const int calls = run == 0 ? 1 : std::clamp(static_cast<int>(0.05 / best), 1, 200);
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    wait(device);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / calls);
  }
  return best;
}

void report(const char* name, DType dtype, double seconds, double amount, const char* unit) {
  std::printf("%-22s %-6s %10.4f ms %9.1f %s\n", name, std::string(to_string(dtype)).c_str(), 1e3 * seconds,
              amount / seconds * 1e-9, unit);
}

/// Forward and backward with one operand.
void pass(Tensor x, const std::function<Tensor(const Tensor&)>& call) {
  x = x.detach();
  x.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = call(x);
  }
  tape.backward(y, y.detach());
}

void run(memory::Device device, std::int64_t scale) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto values = [&](const Shape& shape) { return normal(shape, 0, 1, dtype, device, next_random_site()); };
    const std::int64_t n = std::max<std::int64_t>(8, 4096 / scale), rows = std::max<std::int64_t>(8, 16384 / scale);
    const auto size = static_cast<double>(size_of(dtype));
    const Tensor a = values({n, n}), b = values({n, n});
    const double products = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    report("matmul", dtype, seconds_of(device, [&] { matmul(a, b); }), products, "Gop/s");

    const Tensor left = values({rows, 768}), mlp = values({768, 3072});
    const double mlp_products = 2.0 * static_cast<double>(rows) * 768 * 3072;
    report("matmul_mlp", dtype, seconds_of(device, [&] { matmul(left, mlp); }), mlp_products, "Gop/s");

    const Tensor x = values({rows, 1024}), y = values({rows, 1024});
    const double bytes = static_cast<double>(x.elements()) * size;
    report("add", dtype, seconds_of(device, [&] { x + y; }), 3 * bytes, "GB/s");
    report("gelu", dtype, seconds_of(device, [&] { gelu(x); }), 2 * bytes, "GB/s");
    report("softmax", dtype, seconds_of(device, [&] { softmax(x); }), 2 * bytes, "GB/s");
    report("sum_rows", dtype, seconds_of(device, [&] { sum(x, 0); }), bytes, "GB/s");
    const Tensor weight = full({1024}, 1, dtype, device), bias = full({1024}, 0, dtype, device);
    report("layer_norm", dtype, seconds_of(device, [&] { layer_norm(x, weight, bias); }), 2 * bytes, "GB/s");

    // GPT-2's sizes. The causal mask hides half of the scores; forward counts two products, backward five.
    const std::int64_t heads = 12, width = 64, length = std::max<std::int64_t>(16, 1024 / scale), batch = 16;
    const Shape sequences{batch, length, heads, width};
    const Tensor q = values(sequences), k = values(sequences), v = values(sequences), dy = values(sequences);
    const double product = static_cast<double>(batch * heads * length) * static_cast<double>(length * width);
    const ops::ScaledDotProductAttention causal{true};
    ops::ScaledDotProductAttention::Saved saved;
    const auto forward = [&] { causal.forward(q, k, v, {}, ops::Needs(7), saved); };
    report("attention", dtype, seconds_of(device, forward), 2 * product, "Gop/s");
    report("attention_grad", dtype, seconds_of(device, [&] { causal.backward(saved, dy, ops::Needs(7)); }), 5 * product,
           "Gop/s");
    saved = {};
    // Packed text with four documents per sequence attends to a quarter of the pairs; the other masks show all pairs.
    std::vector<std::int32_t> numbers;
    for (std::int64_t i = 0; i < batch * length; ++i) {
      numbers.push_back(static_cast<std::int32_t>(i % length * 4 / length));
    }
    const std::pair<std::string, Tensor> masks[] = {{"documents", from_host(numbers, {batch, length}, device)},
                                                    {"padding", full({batch, 1, 1, length}, 1, DType::boolean, device)},
                                                    {"bias", full({heads, length, length}, 0, dtype, device)}};
    for (const auto& [name, mask] : masks) {
      const double seen = name == "documents" ? product / 4 : product;
      const auto masked = [&, &mask = mask] { causal.forward(q, k, v, mask, ops::Needs(7), saved); };
      report(("attention_" + name).c_str(), dtype, seconds_of(device, masked), 2 * seen, "Gop/s");
      report(("attention_" + name + "_grad").c_str(), dtype,
             seconds_of(device, [&] { causal.backward(saved, dy, ops::Needs(7)); }), 5 * seen, "Gop/s");
      saved = {};
    }
    if (dtype == DType::f32 && device.is_cuda()) {
      const Tf32Scope fast(true);
      report("attention_tf32", dtype, seconds_of(device, forward), 2 * product, "Gop/s");
      report("attention_tf32_grad", dtype, seconds_of(device, [&] { causal.backward(saved, dy, ops::Needs(7)); }),
             5 * product, "Gop/s");
      saved = {};
    }

    const std::int64_t image = std::max<std::int64_t>(8, 56 / scale);
    const Tensor pixels = values({32, image, image, 64}), filters = values({64, 3, 3, 64});
    const double work = 2.0 * static_cast<double>(pixels.elements()) * 9 * 64;
    report("conv3x3", dtype, seconds_of(device, [&] { conv2d(pixels, filters, {}, {.padding = 1}); }), work, "Gop/s");

    const Tensor maps = values({32, image, image, 256});
    const Tensor gain = full({256}, 1, dtype, device), shift = full({256}, 0, dtype, device);
    const double map_bytes = static_cast<double>(maps.elements()) * size;
    report("batch_norm_relu", dtype, seconds_of(device, [&] { batch_norm_relu(maps, gain, shift, {}, {}); }),
           3 * map_bytes, "GB/s");
    report("batch_norm_relu_pass", dtype,
           seconds_of(device,
                      [&] { pass(maps, [&](const Tensor& t) { return batch_norm_relu(t, gain, shift, {}, {}); }); }),
           8 * map_bytes, "GB/s");
    report("dropout", dtype, seconds_of(device, [&] { dropout(x, 0.1); }), 2 * bytes, "GB/s");
    const std::int64_t words = std::max<std::int64_t>(16, 50304 / scale);
    const Tensor logits = values({rows / 4, words}), table = values({words, 768});
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < rows / 4; ++i)
      ids.push_back(i % 8 == 0 ? 1 : i * 7919 % words);  // every eighth id is 1
    const Tensor targets = from_host(ids, {rows / 4}, device);
    report("cross_entropy", dtype, seconds_of(device, [&] { cross_entropy(logits, targets); }),
           static_cast<double>(logits.elements()) * size, "GB/s");
    report("embedding_pass", dtype,
           seconds_of(device, [&] { pass(table, [&](const Tensor& t) { return embedding(t, targets); }); }),
           (3 * static_cast<double>(rows / 4) * 768 + static_cast<double>(table.elements())) * size, "GB/s");

    const Quantization how{DType::i8, ScaleBlocks::flat(256), DType::f32}, tensor{DType::i8, {}, DType::f32};
    const Tensor codes = quantize(x, how);
    const double moved = bytes + static_cast<double>(x.elements());
    report("quantize_256", dtype, seconds_of(device, [&] { quantize_into(codes, x, how); }), bytes + moved, "GB/s");
    report("quantize_tensor", dtype, seconds_of(device, [&] { quantize(x, tensor); }), bytes + moved, "GB/s");
    report("dequantize_256", dtype, seconds_of(device, [&] { dequantize_into(y, codes, how); }), moved, "GB/s");
  }
}

/// Linear layers from n to n features on n rows, in bf16, in FP8 with each scaling and in 8-bit integers. A pass is
/// forward and both gradients.
void run_linear_layers(memory::Device device, std::int64_t scale) {
  const Fp8Format formats[] = {{Fp8Scaling::delayed}, {Fp8Scaling::current}, {Fp8Scaling::block}};
  const char* const names[] = {"fp8", "fp8_current", "fp8_block"};
  for (const std::int64_t whole : {1024, 2048, 4096, 8192}) {
    const std::int64_t n = std::max<std::int64_t>(32, whole / scale / 16 * 16);
    const auto values = [&] { return normal({n, n}, 0, 1, DType::bf16, device, next_random_site()); };
    const auto label = [&](const char* name) { return std::string(name) + "_" + std::to_string(n); };
    const double work = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    Tensor x = values(), weight = values();
    const Tensor dy = values();
    x.require_grad(), weight.require_grad();
    const auto time = [&](const std::string& name, DType dtype, const std::function<Tensor()>& layer) {
      const auto forward = [&] {
        const NoGrad off;
        layer();
      };
      const auto pass = [&] {
        x.grad() = Tensor(), weight.grad() = Tensor();
        Tape tape;
        Tensor y;
        {
          const Recording on(tape);
          y = layer();
        }
        tape.backward(y, dy);
      };
      report(label(name.c_str()).c_str(), dtype, seconds_of(device, forward), work, "Gop/s");
      report(label((name + "_pass").c_str()).c_str(), dtype, seconds_of(device, pass), 3 * work, "Gop/s");
    };
    time("linear", DType::bf16, [&] { return linear(x, weight, {}); });
    for (std::size_t i = 0; i < std::size(formats); ++i) {
      const Fp8State state = formats[i].scaling == Fp8Scaling::delayed ? make_fp8_state(16, device) : Fp8State{};
      time(names[i], DType::f8e4m3, [&, i] { return fp8_linear(x, weight, {}, formats[i], state, true); });
    }
    x.grad() = Tensor(), weight.grad() = Tensor();

    using namespace nn::quant;
    const CodeScale codes{0.02F, 128, 0, 255}, out{2.0F, 128, 0, 255};
    Step step;
    step.kind = StepKind::linear;
    step.name = "linear";
    const PackedWeights packed = pack_weights(to_dtype(weight.detach(), DType::f32), zeros({n}, DType::f32, device),
                                              step, codes, &out, WeightScales::per_channel);
    const Codes input = to_codes(to_dtype(x.detach(), DType::f32), codes);
    const NoGrad off;
    report(label("int8").c_str(), DType::i8,
           seconds_of(device, [&] { conv_codes(input, packed, step, nullptr, &out); }), work, "Gop/s");
  }
}

/// Updates of one large matrix; the rate counts all bytes read and written.
void run_optimizers(memory::Device device, std::int64_t scale) {
  const std::int64_t rows = std::max<std::int64_t>(8, 16384 / scale);
  Tensor p = normal({rows, 1024}, 0, 1, DType::f32, device, next_random_site());
  p.require_grad();
  p.grad() = normal({rows, 1024}, 0, 1, DType::f32, device, next_random_site());
  const std::vector<optim::Named> list{{"p", p}};
  const auto n = static_cast<double>(p.elements());
  optim::Adam adam(list, {});
  optim::Adam adam8(list, {.moments = {.dtype = DType::u8}});
  optim::Adafactor adafactor(list, {});
  report("adam", DType::f32, seconds_of(device, [&] { adam.step(); }), 28 * n, "GB/s");
  report("adam8", DType::f32, seconds_of(device, [&] { adam8.step(); }), 16 * n, "GB/s");
  report("adafactor", DType::f32, seconds_of(device, [&] { adafactor.step(); }), 28 * n, "GB/s");
}

/// An update of 148 small parameters (GPT-2 124M has 148 tensors), which shows the cost of launches.
void run_small_updates(memory::Device device) {
  std::vector<optim::Named> list;
  for (int i = 0; i < 148; ++i) {
    Tensor p = normal({i % 2 == 0 ? 768 : 2304}, 0, 1, DType::f32, device, next_random_site());
    p.require_grad();
    p.grad() = normal(p.shape(), 0, 1, DType::f32, device, next_random_site());
    list.push_back({"p" + std::to_string(i), p});
  }
  optim::Adam adam(list, {});
  const double n = 148 * (768 + 2304) / 2;
  report("adam_148", DType::f32, seconds_of(device, [&] { adam.step(); }), 28 * n, "GB/s");
}

/// Training steps of a model, launch by launch and as a graph.
void run_steps(memory::Device device, const models::Setup& setup) {
  const memory::Stack stack =
      memory::make_resource(device, {.plans = nn::plan_steps(device, models::zero_batch_run(setup))});
  const ResourceScope scope(stack.top);
  RandomGenerator generator(1);
  const GeneratorScope random(generator);
  const std::unique_ptr<models::Model> model =
      models::make_model(setup.model, setup.sizes, models::tensor_options(setup, device));
  const std::unique_ptr<optim::Optimizer> optimizer = models::make_optimizer(setup, *model);
  const models::Batch batch = model->empty_batch(setup.batch, device);
  fill(batch.input, 1), fill(batch.target, 2);
  const auto loss_of = [&](std::int64_t) { return model->loss(batch); };
  const nn::StepOptions options = models::step_options(setup, model->is_text(), device);
  const auto eager = [&] {
    const memory::PlacedArena::Step placed(*stack.placed);
    nn::training_step(*optimizer, loss_of, options);
  };
  const std::string name = setup.model + "_";
  report((name + "eager").c_str(), setup.precision.dtype, seconds_of(device, eager), 1e9, "steps/s");
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  const std::uint64_t launches = runtime.launch_count(), waits = runtime.synchronization_count();
  eager();
  std::printf("%-16s %-5s launches_per_step %llu waits_per_step %llu\n", (name + "eager").c_str(),
              std::string(to_string(setup.precision.dtype)).c_str(),
              static_cast<unsigned long long>(runtime.launch_count() - launches),
              static_cast<unsigned long long>(runtime.synchronization_count() - waits));
  nn::CapturedStep recorded(*stack.placed, *optimizer, loss_of, options);
  for (int i = 0; i < 3; ++i) recorded.run();
  report((name + "graph").c_str(), setup.precision.dtype, seconds_of(device, [&] { recorded.run(); }), 1e9, "steps/s");
}

void run_all_steps(memory::Device device) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    models::Setup gpt, mlp, resnet;
    gpt.precision.dtype = mlp.precision.dtype = resnet.precision.dtype = dtype;
    gpt.model = "char-gpt", gpt.batch = 8;
    mlp.model = "mlp", mlp.batch = 64;
    resnet.model = "resnet18", resnet.batch = 16, resnet.sizes.image = 32;
    for (const models::Setup& setup : {gpt, mlp, resnet}) run_steps(device, setup);
  }
}

/// Prints the libraries' calls and refusals since `before`.
void report_libraries(const std::string& name, const std::string& dtype, memory::Device device,
                      const kernels::LibraryUse& before) {
  const kernels::LibraryUse now = kernels::device_runtime(device).library_use();
  const auto since = [](std::uint64_t later, std::uint64_t earlier) {
    return static_cast<unsigned long long>(later - earlier);
  };
  std::printf("%-22s %-6s cublaslt_calls %llu cublaslt_refusals %llu cudnn_calls %llu cudnn_refusals %llu\n",
              name.c_str(), dtype.c_str(), since(now.cublaslt.calls, before.cublaslt.calls),
              since(now.cublaslt.refusals, before.cublaslt.refusals), since(now.cudnn.calls, before.cudnn.calls),
              since(now.cudnn.refusals, before.cudnn.refusals));
}

/// One training step of each model.
void run_libraries(memory::Device device, std::int64_t scale) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* const name : {"resnet50", "googlenet", "vit-b16", "gpt2"}) {
      models::Setup setup;
      setup.model = name;
      setup.precision.dtype = dtype;
      setup.batch = std::max<std::int64_t>(2, 32 / scale);
      if (setup.model == "gpt2") setup.batch = 2, setup.sizes.sequence = std::max<std::int64_t>(16, 1024 / scale);
      const memory::Stack stack = memory::make_resource(device);
      const ResourceScope scope(stack.top);
      const kernels::LibraryUse before = kernels::device_runtime(device).library_use();
      models::random_run(setup)(device)->step();
      wait(device);
      report_libraries(setup.model + "_libraries", std::string(to_string(dtype)), device, before);
    }
  }
}

}  // namespace
}  // namespace thimble

int main(int count, char** arguments) {
  using namespace thimble;
  try {
    const memory::Device device = parse_device(count > 1 ? arguments[1] : "cuda");
    const std::int64_t scale = count > 2 ? std::atoll(arguments[2]) : 1;
    if (scale < 1) throw ValueError("SCALE: " + std::string(arguments[2]) + "; expected at least 1");
    const std::string parts = count > 3          ? arguments[3]
                              : device.is_cuda() ? "operators,optimizers,steps,libraries"
                                                 : "operators,optimizers";
    std::istringstream list(parts);
    for (std::string part; std::getline(list, part, ',');) {
      const kernels::LibraryUse before =
          device.is_cuda() ? kernels::device_runtime(device).library_use() : kernels::LibraryUse{};
      if (part == "operators") {
        run(device, scale);
        run_linear_layers(device, scale);
      } else if (part == "optimizers") {
        run_optimizers(device, scale);
        run_small_updates(device);
      } else if (part == "steps") {
        run_all_steps(device);
      } else if (part == "libraries") {
        run_libraries(device, scale);
      } else {
        throw ValueError("PARTS: '" + part + "' is not one of operators, optimizers, steps, libraries");
      }
      if (device.is_cuda() && part != "libraries") {
        report_libraries(part + "_libraries", "all", device, before);
      }
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "gpu_benchmark: %s\n", error.what());
    return 2;
  }
}
