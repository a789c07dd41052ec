// A rank's bytes: predicted by a dry run of only that rank, measured among all ranks, and in closed form.

#include <optional>

#include <thimble/autograd/functions.h>
#include <thimble/bench/experiments/watched_ranks.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/shard_store.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>

#include "dist/by_rank.h"
#include "support/catch.h"

using namespace thimble;

namespace {

struct Net final : nn::Module {
  nn::Linear &a, &b, &c;
  explicit Net(const nn::TensorOptions& on)
      : a(child<nn::Linear>("a", 96, 512, on)),
        b(child<nn::Linear>("b", 512, 200, on)),
        c(child<nn::Linear>("c", 200, 10, on)) {}
  Tensor loss(const Tensor& x) { return mean(square(c(relu(b(relu(a(x))))))); }
};

struct Case {
  DType dtype;
  int zero;
  std::int64_t micro_batches;
  double clip;
  std::size_t bucket_bytes;
};

struct Bytes {
  memory::CategoryBytes after_update{}, peaks{};
  std::size_t committed = 0;
  std::uint64_t sent = 0;
  std::int64_t parameters = 0, shard = 0, buckets = 0, tensors = 0;
};

Bytes train(const Case& c, dist::Communicator& ranks, memory::Device device) {
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(3);
  const GeneratorScope draws(generator);
  std::optional<ParameterStoreScope> shares;
  if (c.zero == 3) shares.emplace(std::make_shared<dist::ShardStore>(ranks));
  Net net(nn::TensorOptions{device, c.dtype});
  shares.reset();
  dist::DataParallel parallel(ranks, net.trainable(), {.zero = c.zero, .buckets = {.bytes = c.bucket_bytes}});
  optim::Adam adam(parallel.parameters(), {.rate = 1e-3, .narrow = optim::NarrowUpdate::master});
  Bytes bytes;
  bench::WatchedRanks watched(parallel, [&] { bytes.after_update = stack.ledger->bytes_by_category(); });
  nn::StepOptions options;
  options.clip_norm = c.clip;
  options.micro_batches = c.micro_batches;
  options.micro_samples = 4;
  options.ranks = &watched;
  const Tensor x = full({4, 96}, 0.5, c.dtype, device, memory::Category::input);
  for (int step = 0; step < 2; ++step) {
    nn::training_step(
        adam, [&](std::int64_t) { return net.loss(x); }, options);
  }
  for (std::size_t k = 0; k < memory::category_count; ++k)
    bytes.peaks[k] = stack.ledger->max_allocated(static_cast<memory::Category>(k));
  bytes.committed = stack.arena->statistics().peak_committed_bytes;
  bytes.sent = ranks.volume().bytes_sent;
  bytes.parameters = net.parameter_count();
  bytes.tensors = static_cast<std::int64_t>(net.parameters().size());
  bytes.buckets = static_cast<std::int64_t>(parallel.buckets().size());
  for (const dist::Bucket& bucket : parallel.buckets()) bytes.shard += bucket.shard_elements(ranks.rank());
  return bytes;
}

std::size_t at(const memory::CategoryBytes& bytes, memory::Category category) {
  return bytes[static_cast<std::size_t>(category)];
}

}  // namespace

TEST_CASE("rank bytes: a dry rank alone says what each of N ranks measures", "[dist]") {
  for (const Case& c :
       {Case{DType::f32, 0, 1, 0, 1 << 16}, Case{DType::f32, 1, 1, 1, 1 << 16}, Case{DType::bf16, 2, 1, 1, 1 << 16},
        Case{DType::f32, 2, 3, 0, 1 << 14}, Case{DType::f32, 0, 2, 1, 0}, Case{DType::f32, 3, 1, 1, 1 << 16},
        Case{DType::bf16, 3, 2, 0, 25 << 20}, Case{DType::bf16, 1, 2, 0, 25 << 20}}) {
    for (int count = 1; count <= 8; ++count) {
      INFO("ZeRO-" << c.zero << ", " << c.micro_batches << " micro-batches, " << count << " ranks");
      const auto measured = testing::by_rank(count, [&](auto& ranks) { return train(c, ranks, cpu); });
      std::int64_t shards = 0;
      for (int r = 0; r < count; ++r) {
        INFO("rank " << r);
        const auto alone = dist::make_dry(r, count);
        const Bytes predicted = train(c, *alone, dry(cpu));
        const Bytes& found = measured[static_cast<std::size_t>(r)];
        CHECK(predicted.committed == found.committed);
        CHECK(predicted.peaks == found.peaks);
        CHECK(predicted.after_update == found.after_update);
        CHECK(predicted.sent == found.sent);
        shards += found.shard;
      }
      CHECK(shards == measured[0].parameters);
    }
  }
}

// 2 bytes of parameter, 2 of gradient, 12 of state: 16 P; 4 P + 12 P / N; 2 P + 14 P / N; 16 P / N (Rajbhandari et al.
// 2020, figure 1). P / N is a shard, which is equal on all ranks up to a grain per bucket, in stage 3 per parameter.
TEST_CASE("rank bytes: model state by the closed forms", "[dist]") {
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int count : {1, 2, 4, 8}) {
      for (int r = 0; r < count; ++r) {
        INFO("ZeRO-" << zero << ", rank " << r << " of " << count);
        const auto alone = dist::make_dry(r, count);
        const Bytes bytes = train({DType::bf16, zero, 1, 0, 25 << 20}, *alone, dry(cpu));
        const auto p = static_cast<std::size_t>(bytes.parameters);
        const auto shard = static_cast<std::size_t>(zero == 0 ? bytes.parameters : bytes.shard);
        CHECK(at(bytes.after_update, memory::Category::parameter) == (zero < 3 ? 2 * p : 2 * shard));
        CHECK(at(bytes.after_update, memory::Category::gradient) == (zero < 2 ? 2 * p : 2 * shard));
        CHECK(at(bytes.after_update, memory::Category::optimizer) == 12 * shard);
        CHECK(at(bytes.after_update, memory::Category::communication) == 0);
        const std::int64_t cuts = zero < 3 ? bytes.buckets : bytes.tensors;
        CHECK(bytes.shard <= bytes.parameters / count + 1 + cuts * dist::shard_grain);
      }
    }
  }
}

// A ring's volume: a rank sends (N - 1) / N of all gradients for their sums, and as much of the results.
TEST_CASE("rank bytes: what ranks send is a ring's volume", "[dist]") {
  for (const int count : {2, 3, 8}) {
    for (int zero = 0; zero <= 2; ++zero) {
      std::uint64_t sent = 0, small = 0;
      std::int64_t parameters = 0;
      for (int r = 0; r < count; ++r) {
        const auto alone = dist::make_dry(r, count);
        const Bytes bytes = train({DType::f32, zero, 1, 0, 1 << 16}, *alone, dry(cpu));
        sent += bytes.sent;
        parameters = bytes.parameters;
        small += static_cast<std::uint64_t>(2 * (count - 1)) * sizeof(float);  // the losses of two steps
      }
      const auto n = static_cast<std::uint64_t>(count);
      CHECK(sent == 2 * 2 * 4 * static_cast<std::uint64_t>(parameters) * (n - 1) + small);
    }
  }
}
