// Your transformer on four ranks, in a budget per rank: with ZeRO 3, then with ZeRO 2 and layers in two shards (tensor
// parallelism), each with the bits of one rank. Ranks are threads, or the processes of mpirun:
//
//   own_model_on_ranks                     four threads
//   mpirun -n 4 own_model_on_ranks         four processes
//
// Exits with 1 if a loss differs from one rank's, or a peak from its prediction.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/thimble.h>

using namespace thimble;

constexpr std::int64_t vocabulary = 64, sequence = 64, width = 128, heads = 4, samples = 32, steps = 6;

/// x + attention(norm(x)), then x + mlp(norm(x)).
class Layer : public nn::Module {
 public:
  Layer()
      : norm1_(child<nn::LayerNorm>("norm1", width)),
        qkv_(child<nn::Linear>("qkv", width, 3 * width)),
        out_(child<nn::Linear>("out", width, width)),
        norm2_(child<nn::LayerNorm>("norm2", width)),
        up_(child<nn::Linear>("up", width, 4 * width)),
        down_(child<nn::Linear>("down", 4 * width, width)) {}
  Tensor operator()(const Tensor& x) {  // (B, T, C)
    const Tensor h = x + nn::run_sharded(norm1_(x), out_, [&](const Tensor& y) {
                       const Tensor qkv = qkv_(y);
                       return out_(attention(qkv, heads * qkv.size(2) / (3 * width)));  // a shard has some of the heads
                     });
    return h + nn::run_sharded(norm2_(h), down_, [&](const Tensor& y) { return down_(gelu(up_(y))); });
  }

 private:
  nn::LayerNorm& norm1_;
  nn::Linear &qkv_, &out_;
  nn::LayerNorm& norm2_;
  nn::Linear &up_, &down_;
};

class Net : public nn::Module {
 public:
  Net() : tokens_(child<nn::Embedding>("tokens", vocabulary, width)) {
    for (int i = 0; i < 6; ++i) layers_.push_back(&child<Layer>("layer" + std::to_string(i)));
    head_ = &child<nn::Linear>("head", width, vocabulary);
  }
  Tensor operator()(const Tensor& ids) {  // (B, T) -> (B T, vocabulary)
    Tensor x = tokens_(ids);
    for (Layer* const layer : layers_) x = (*layer)(x);
    return reshape((*head_)(x), {ids.size(0) * ids.size(1), vocabulary});
  }

 private:
  nn::Embedding& tokens_;
  std::vector<Layer*> layers_;
  nn::Linear* head_;
};

struct Batch {
  Tensor ids, next;  // (B, T)
};

/// Sequences count up, each from a different start. Steps of 1, 2 and 3 alternate.
Batch make_batch(std::int64_t step, memory::Device device) {
  std::vector<std::int64_t> ids, next;
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t t = 0; t < sequence; ++t) {
      ids.push_back((7 * step + 5 * b + (b % 3 + 1) * t) % vocabulary);
      next.push_back((7 * step + 5 * b + (b % 3 + 1) * (t + 1)) % vocabulary);
    }
  }
  return {from_host(ids, {samples, sequence}, device), from_host(next, {samples, sequence}, device)};
}

Batch micro_batch(const Batch& batch, std::int64_t index, std::int64_t count) {
  const std::int64_t n = samples / count;
  return {slice(batch.ids, 0, index * n, (index + 1) * n), slice(batch.next, 0, index * n, (index + 1) * n)};
}

const nn::TrainedProgram<Net, Batch> program{
    .model = [](memory::Device) { return std::make_unique<Net>(); },
    .optimizer =
        [](Net& net) { return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 3e-3}); },
    .loss =
        [](Net& net, const Batch& batch) {
          return cross_entropy(net(batch.ids), reshape(batch.next, {batch.next.elements()}));
        },
    .batch = make_batch,
    .micro_batch = micro_batch};

/// The losses of all steps, or an empty vector if the peak differs from its prediction.
std::vector<double> train(nn::TrainerOptions options, std::string* plan = nullptr) {
  options.steps = steps;
  nn::Trainer<Net, Batch> trainer(program, options);
  if (plan != nullptr) *plan = trainer.plan().text();
  std::vector<double> losses;
  trainer.run([&](const nn::Progress& p) { losses.push_back(p.loss); });
  return trainer.peak_bytes() == trainer.plan().peak_bytes ? losses : std::vector<double>();
}

/// Whether the losses equal, bit for bit, the losses of one rank that computes all micro-batches and all shards.
bool is_alike(dist::Communicator& ranks, nn::RankOptions on_ranks) {
  nn::RankOptions of_one = on_ranks;
  of_one.zero = 0;
  const std::vector<double> alone =
      train({.step = {.micro_batches = ranks.size() / on_ranks.tensor_parallel}, .ranks = of_one});
  on_ranks.ranks = &ranks;
  const std::vector<std::size_t> free = nn::Trainer<Net, Batch>(program, {.ranks = on_ranks}).plan().rank_peak_bytes;
  const std::size_t budget = *std::max_element(free.begin(), free.end()) * 7 / 10;
  std::string plan;
  const std::vector<double> together = train({.budget_bytes = budget, .ranks = on_ranks}, &plan);
  if (ranks.rank() == 0) {
    std::printf("ZeRO %d, layers in %d shard(s): %s", on_ranks.zero, on_ranks.tensor_parallel, plan.c_str());
    for (std::size_t i = 0; i < together.size(); ++i) {
      std::printf("step %zu  loss on one rank %.9g, on %d %.9g\n", i + 1, alone[i], ranks.size(), together[i]);
    }
  }
  return !alone.empty() && alone == together;
}

int main() {
  bool is_good = true;
  const auto body = [&](dist::Communicator& ranks) {
    const nn::RankOptions in_shards{.zero = 2,
                                    .tensor_parallel = 2,
                                    .sharded = {{"tokens", nn::Sharding::vocabulary},
                                                {"qkv", nn::Sharding::column, 3},
                                                {"out", nn::Sharding::row},
                                                {"up", nn::Sharding::column},
                                                {"down", nn::Sharding::row}}};
    if (!is_alike(ranks, {.zero = 3}) || !is_alike(ranks, in_shards)) is_good = false;
  };
  dist::find_launch() ? dist::run_launched(body) : dist::run_ranks(4, body);
  return is_good ? 0 : 1;
}
