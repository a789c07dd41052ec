// The barriers of the kernels on the emulated device: equal bits in every order of threads, blocks and items, no races,
// and a test that notices each missing barrier and each missing wait for asynchronous loads. So are swapped lanes in
// the maps of tensor cores. And bank conflicts.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/ops/quant/fp8_linear.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/random.h>
#include <thimble/cuda/kernel/tensor_core.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/quant/quantized_model.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/clip.h>

#include "emulated/block.h"
#include "support/catch.h"

using namespace thimble;

namespace emulated_barriers_test {

using emulated::CallSite;
using emulated::Order;
using Bytes = std::vector<std::uint8_t>;

Tensor noise(const Shape& shape, std::uint32_t number, DType dtype = DType::f32) {
  return to_device(to_dtype(normal(shape, 0, 1, DType::f32, cpu, {7, 0, 0, number}), dtype), cuda());
}

Bytes bytes_of(const std::vector<Tensor>& tensors) {
  Bytes all;
  for (const Tensor& t : tensors) {
    if (!t.defined()) continue;
    const Tensor here = contiguous(to_device(t.detach(), cpu));
    const memory::Pin pin(here);
    const auto* const data = static_cast<const std::uint8_t*>(pin.data());
    all.insert(all.end(), data, data + here.bytes());
  }
  return all;
}

/// The bytes of f(leaves) and of the leaves' gradients.
Bytes with_gradients(std::vector<Tensor> leaves, const std::function<Tensor(const std::vector<Tensor>&)>& f) {
  for (Tensor& leaf : leaves) leaf.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = f(leaves);
  }
  tape.backward(y, noise(y.shape(), 99, y.dtype()));
  std::vector<Tensor> all{y};
  for (const Tensor& leaf : leaves) all.push_back(leaf.grad());
  return bytes_of(all);
}

Bytes attention_of(DType dtype, std::int64_t queries, std::int64_t keys, std::int64_t width, bool is_causal,
                   bool allows_tf32 = false, std::int64_t heads = 1, const Tensor& mask = {}) {
  const Tf32Scope tf32(allows_tf32);
  const Shape of_queries{1, queries, heads, width}, of_keys{1, keys, 1, width};
  const ops::ScaledDotProductAttention op{is_causal, 0.2, 0.1, {11, 3, 5, 0x5eed5eedu}};
  ops::ScaledDotProductAttention::Saved saved;
  const Tensor out = op.forward(noise(of_queries, 1, dtype), noise(of_keys, 2, dtype), noise(of_keys, 3, dtype), mask,
                                ops::Needs(7), saved);
  const Tensor lse = saved.lse;
  ops::Gradients gradients = op.backward(std::move(saved), noise(of_queries, 4, dtype), ops::Needs(7));
  return bytes_of({out, lse, gradients[0], gradients[1], gradients[2]});
}

/// Documents of 1, 63 and 86 tokens.
Tensor documents() {
  std::vector<std::int32_t> numbers(150, 5);
  std::fill(numbers.begin(), numbers.begin() + 64, 3);
  numbers[0] = 1;
  return from_host(numbers, {1, 150}, cuda());
}

Bytes embedding_of() {
  std::vector<std::int64_t> ids;
  for (std::int64_t p = 0; p < 4200; ++p) ids.push_back(p % 3 == 0 ? 3 : p * 7 % 11);  // row 3: more than one round
  const Tensor places = from_host(ids, {4200}, cuda());
  return with_gradients({noise({12, 40}, 1)}, [&](const auto& x) { return embedding(x[0], places); });
}

Bytes adafactor_of() {
  std::vector<optim::Named> list;
  for (const Shape& shape : {Shape{17'000, 8}, Shape{700, 70}, Shape{5000}}) {
    Tensor p = noise(shape, static_cast<std::uint32_t>(list.size()));
    p.require_grad();
    p.grad() = noise(shape, 50 + static_cast<std::uint32_t>(list.size()));
    list.push_back({"p" + std::to_string(list.size()), p});
  }
  optim::Adafactor optimizer(list, {});
  optimizer.step();
  std::vector<Tensor> all;
  for (const optim::Named& state : optimizer.state()) all.push_back(state.tensor);
  for (const optim::Named& p : list) all.push_back(p.tensor);
  return bytes_of(all);
}

Bytes clipped() {
  std::vector<optim::Named> list;
  for (const std::int64_t n : {9000, 300, 8}) {
    Tensor p = noise({n}, 1);
    p.require_grad();
    p.grad() = noise({n}, 50 + static_cast<std::uint32_t>(n));
    list.push_back({"p" + std::to_string(n), p});
  }
  const Tensor sums = optim::gradient_square_sums(list);
  optim::clip_gradients(list, sums, 1.0);
  std::vector<Tensor> all{sums};
  for (const optim::Named& p : list) all.push_back(p.tensor.grad());
  return bytes_of(all);
}

/// Three steps of delayed scaling with growing largest values.
Bytes delayed_scale() {
  const Tensor history = zeros({3}, DType::f32, cuda()), scale = zeros({1}, DType::f32, cuda());
  const Tensor next = zeros({1}, DType::f32, cuda()),
               steps = to_device(from_host(std::vector<std::int64_t>{0}, {1}), cuda());
  for (int step = 0; step < 3; ++step) {
    const Tensor x = mul(noise({40, 1000}, 1), step + 1.0);
    launch(cuda(), [&](const Addresses& at) {
      kernels::Fp8ScaleArgs a;
      a.values = at(x), a.count = 40'000, a.dtype = DType::f32;
      a.scale = static_cast<float*>(at(scale)), a.next_scale = static_cast<float*>(at(next));
      a.history = static_cast<float*>(at(history)), a.length = 3;
      a.steps = static_cast<std::int64_t*>(at(steps)), a.step = step;
      kernels::fp8_kernels(cuda()).scale(a);
    });
  }
  return bytes_of({history, scale, next});
}

Bytes turned_codes() {
  const Fp8Use use{{Fp8Scaling::current, DType::f8e4m3, DType::f8e5m2, 0}, {}, 0, false};
  const Fp8Sides sides = fp8_encode_sides(noise({70, 130}, 1), Fp8Role::x, use, {}, true, true);
  return bytes_of({sides.plain, sides.turned});
}

Bytes column_codes() {
  const Tensor codes = quantize(noise({70, 37}, 1), {DType::i8, {16, 1}, DType::f32});
  return bytes_of({codes, *codes.scale()});
}

Bytes convolved_codes() {
  using namespace nn::quant;
  Step step;
  step.name = "layer";
  step.window.kernel = {3, 3}, step.window.padding = {1, 1};
  const auto whole = [](const Shape& shape, DType dtype, double factor) {
    return to_dtype(mul(noise(shape, 5), factor), dtype);
  };
  const CodeScale in{0.02F, 113, 0, 255}, out{0.7F, 90, 0, 255};
  const PackedWeights weights = pack_codes(whole({70, 3, 3, 12}, DType::i8, 30), mul(abs(noise({70}, 6)), 1e-3),
                                           whole({70}, DType::i32, 1000), step, in, &out);
  const Codes x{to_dtype(add(mul(abs(noise({2, 9, 9, 12}, 7)), 50.0), 10.0), DType::u8), in};
  return bytes_of({conv_codes(x, weights, step, nullptr, &out).tensor});
}

struct Work {
  std::string name;
  std::function<Bytes()> run;
};

std::vector<Work> works() {
  return {
      {"attention", [] { return attention_of(DType::f32, 40, 40, 20, true); }},
      {"attention, bf16 on tensor cores", [] { return attention_of(DType::bf16, 150, 150, 32, false); }},
      {"attention, wide rows", [] { return attention_of(DType::bf16, 48, 70, 144, true); }},
      {"attention, TF32", [] { return attention_of(DType::f32, 80, 80, 32, true, true); }},
      {"attention, queries' heads that share keys",
       [] { return attention_of(DType::bf16, 70, 70, 32, true, false, 2); }},
      {"attention, documents", [] { return attention_of(DType::bf16, 150, 150, 32, true, false, 1, documents()); }},
      {"attention, a mask",
       [] {
         return attention_of(DType::bf16, 70, 70, 32, true, false, 2, noise({70, 70}, 5));
       }},
      {"rotary positions",
       [] {
         return bytes_of({rotary(noise({2, 5, 3, 16}, 1))});
       }},
      {"product",
       [] {
         return bytes_of({matmul(noise({40, 50}, 1), noise({50, 36}, 2))});
       }},
      {"sum of columns",
       [] {
         return bytes_of({column_sum(noise({2100, 40}, 1))});
       }},
      {"sum",
       [] {
         return bytes_of({sum(noise({2100, 40}, 1), 0)});
       }},
      {"sum in f64",
       [] {
         return bytes_of({sum(noise({2100, 40}, 1, DType::f64), 0)});
       }},
      {"sum of more rows than a round has",
       [] {
         return bytes_of({sum(noise({8400, 24}, 1), 0)});
       }},
      {"sum of long rows",
       [] {
         return bytes_of({sum(noise({2, 9000}, 1), 1), sum(noise({33, 70}, 1), 0)});
       }},
      {"largest",
       [] {
         return bytes_of({thimble::max(noise({900, 40}, 1), 0)});
       }},
      {"batch norm",
       [] {
         return with_gradients({noise({2, 600, 40}, 1), noise({40}, 2), noise({40}, 3)},
                               [](const auto& x) { return batch_norm(x[0], x[1], x[2], {}, {}, {}); });
       }},
      {"batch norm, channel by channel",
       [] {
         return with_gradients({noise({2, 600, 42}, 1), noise({42}, 2), noise({42}, 3)},
                               [](const auto& x) { return batch_norm(x[0], x[1], x[2], {}, {}, {}); });
       }},
      {"batch norm of many stretches",
       [] {
         return bytes_of({batch_norm(noise({1, 70000, 1}, 1), noise({1}, 2), noise({1}, 3), {}, {}, {})});
       }},
      {"layer norm",
       [] {
         return with_gradients({noise({9, 300}, 1), noise({300}, 2), noise({300}, 3)},
                               [](const auto& x) { return layer_norm(x[0], x[1], x[2]); });
       }},
      {"layer norm, a team for each row",
       [] {
         return with_gradients({noise({3, 1300}, 1), noise({1300}, 2), noise({1300}, 3)},
                               [](const auto& x) { return layer_norm(x[0], x[1], x[2]); });
       }},
      {"running sums of long lines",
       [] {
         return with_gradients({noise({2, 1300}, 1)}, [](const auto& x) { return cumsum(x[0], 1); });
       }},
      {"embedding", embedding_of},
      {"Adafactor", adafactor_of},
      {"clipping", clipped},
      {"scale of FP8", delayed_scale},
      {"codes of FP8, turned", turned_codes},
      {"codes of columns", column_codes},
      {"convolution of codes", convolved_codes},
  };
}

struct Setting {
  Order order;
  std::uint64_t seed;
};
constexpr Setting all_orders[] = {{Order::ascending, 1}, {Order::descending, 1}, {Order::random, 1}};

/// A work's result in one order, and the findings of that run.
struct Result {
  Bytes bytes;
  std::vector<std::string> findings;
};
Result run(const Work& work, const Setting& setting, const CallSite* disabled = nullptr,
           std::map<CallSite, std::uint64_t>* sites = nullptr) {
  const emulated::SettingsScope scope;
  Result result;
  emulated::settings() = {setting.order, setting.seed, disabled, sites, nullptr, &result.findings};
  const auto stack = memory::make_resource(cuda(), {.arena = {.poison = true}});
  const ResourceScope memory(stack.top);
  result.bytes = work.run();
  return result;
}

/// The calls of sync() and wait() in the kernels' sources, as file:line.
std::set<std::string> sites_of_sources() {
  std::set<std::string> all;
  static const std::regex call(R"(\b(sync|loads\.wait)\(\))");
  for (const auto& entry : std::filesystem::recursive_directory_iterator("cuda")) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".cu") && !path.ends_with(".cuh") && !path.ends_with(".h")) continue;
    std::ifstream file(path);
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const std::string code = line.substr(0, line.find("//"));
      if (code.find("void sync") != std::string::npos || !std::regex_search(code, call)) continue;
      all.insert(path + ":" + std::to_string(number));
    }
  }
  return all;
}

std::string text_of(const CallSite& site) { return site.file + ":" + std::to_string(site.line); }

}  // namespace emulated_barriers_test

using namespace emulated_barriers_test;

TEST_CASE("emulated: kernels have the same bits in every order, no races, and no barrier too many",
          "[cuda][emulated]") {
  std::map<CallSite, std::vector<std::size_t>> users;  // works by the sites that they call
  const std::vector<Work> all = works();
  std::vector<Bytes> expected;
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO(all[i].name);
    std::map<CallSite, std::uint64_t> sites;
    expected.push_back(run(all[i], all_orders[0], nullptr, &sites).bytes);
    CHECK(!expected.back().empty());
    for (const Setting& setting : all_orders) {
      INFO("order " << static_cast<int>(setting.order));
      const Result result = run(all[i], setting);
      CHECK(result.findings == std::vector<std::string>{});
      const bool is_same = result.bytes == expected.back();
      CHECK(is_same);
    }
    for (const auto& [site, count] : sites) users[site].push_back(i);
  }
  std::set<std::string> called;
  for (const auto& [site, indices] : users) called.insert(text_of(site));
  CHECK(called == sites_of_sources());

  // Disabling any one of them gives a finding, or other bits in some order. `thimble_tests -s` shows the list.
  const auto why_missed = [&](const CallSite& site, const std::vector<std::size_t>& indices) -> std::string {
    for (const std::size_t i : indices) {
      for (const Setting& setting : all_orders) {
        const Result result = run(all[i], setting, &site);
        if (!result.findings.empty()) return result.findings.front();
        if (result.bytes != expected[i]) return all[i].name + ": other bits";
      }
    }
    return {};
  };
  std::string status, survivors;
  for (const auto& [site, indices] : users) {
    const std::string why = why_missed(site, indices);
    status += text_of(site) + ": " + why + "\n";
    if (why.empty()) survivors += text_of(site) + "\n";
  }
  INFO("without\n" << status << "left out without being missed:\n" << survivors);
  CHECK(survivors.empty());
}

TEST_CASE("emulated: a lane that is swapped in a map of tensor cores is found", "[cuda][emulated]") {
  const Work works[] = {{"bf16", [] { return attention_of(DType::bf16, 20, 40, 16, true); }},
                        {"TF32", [] { return attention_of(DType::f32, 20, 40, 16, true, true); }}};
  Bytes expected[2];
  for (int i = 0; i < 2; ++i) expected[i] = run(works[i], all_orders[1]).bytes;
  for (const std::string_view map : emulated::lane_maps) {
    for (const auto& [lane, with] : {std::pair(0, 1), {2, 6}, {3, 11}, {5, 21}, {31, 15}, {30, 8}}) {
      INFO(map << ", lanes " << lane << " and " << with);
      emulated::lane_swap = {map, lane, with};
      bool differs = false;
      for (int i = 0; i < 2; ++i) differs = differs || run(works[i], all_orders[1]).bytes != expected[i];
      emulated::lane_swap = {};
      CHECK(differs);
    }
  }
}

TEST_CASE("emulated: shared memory of products and attention is reached with few bank conflicts", "[cuda][emulated]") {
  // Passes of all accesses relative to the fewest possible. Rows of f32 attention were once a power of two apart.
  struct Row {
    Work work;
    double most;
  };
  const Row rows[] = {
      {{"product",
        [] {
          return bytes_of({matmul(noise({64, 64}, 1), noise({64, 64}, 2))});
        }},
       1.02},
      {{"attention in f32", [] { return attention_of(DType::f32, 64, 64, 64, false); }}, 1.02},
      {{"attention in f32, causal", [] { return attention_of(DType::f32, 48, 48, 128, true); }}, 1.02},
      {{"attention in f64", [] { return attention_of(DType::f64, 32, 32, 64, false); }}, 1.02},
      {{"attention in bf16", [] { return attention_of(DType::bf16, 128, 128, 64, true); }}, 1.02},
      {{"attention in TF32", [] { return attention_of(DType::f32, 64, 64, 64, true, true); }}, 1.02},
  };
  for (const Row& row : rows) {
    const emulated::SettingsScope scope;
    std::map<std::string, emulated::BankCount> counts;
    emulated::settings().banks = &counts;
    row.work.run();
    for (const auto& [kernel, count] : counts) {
      if (count.accesses == 0) continue;
      INFO(row.work.name << ", " << kernel << ": " << count.accesses << " accesses of warps in " << count.passes
                         << " passes, at best " << count.fewest);
      CHECK(static_cast<double>(count.passes) <= row.most * static_cast<double>(count.fewest));
    }
    CHECK(!counts.empty());
  }
}
