#pragma once
// A few steps of a setup, on one rank of several or on a single rank, and their results, for comparison bit for bit.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/nn/step/step.h>

#include "dist/by_rank.h"
#include "support/catch.h"

namespace thimble::testing {

struct StepsResult {
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> tensors;  ///< parameters and buffers
};

inline StepsResult run_steps(const models::Setup& setup, dist::Communicator* ranks, int steps = 3) {
  models::TrainedParts parts(setup, cpu, ranks);
  RandomGenerator words(5);
  const GeneratorScope scope(words);
  models::Batch all = parts.model->empty_batch(setup.batch, cpu);
  const models::ModelOptions& sizes = parts.model->options();
  const auto classes = static_cast<double>(parts.model->is_text() ? sizes.vocabulary : sizes.classes);
  const auto draw = [&](const Tensor& like) {  // ids, classes, or numbers of images
    const Tensor numbers = uniform(like.shape(), 0, like.dtype() == DType::i64 ? classes : 1, DType::f64);
    return to_dtype(numbers, like.dtype());
  };
  StepsResult result;
  const std::int64_t count = data_ranks(setup) * setup.micro_batches;
  for (int step = 0; step < steps; ++step) {
    all.input = draw(all.input);
    all.target = draw(all.target);
    const GeneratorScope own(parts.generator);
    const Tensor loss = nn::training_step(
        *parts.optimizer,
        [&](std::int64_t i) {
          return parts.loss(models::micro_batch(all, parts.parallel ? parts.parallel->number(i) : i, count));
        },
        parts.options);
    result.losses.push_back(to_host<double>(to_dtype(loss, DType::f64))[0]);
  }
  const ParameterUse use;
  const auto note = [&](const nn::NamedTensor& named) {
    fetch_parameters(named.tensor);
    const Tensor t = contiguous(named.tensor.detach());
    std::vector<std::byte>& bytes = result.tensors[named.name];
    bytes.resize(t.bytes());
    std::memcpy(bytes.data(), memory::Pin(t).data(), bytes.size());
  };
  for (const nn::NamedTensor& p : parts.model->parameters()) note(p);
  for (const nn::NamedTensor& b : parts.model->buffers()) note(b);
  return result;
}

/// The setup for one rank with all stages, shards and micro-batches.
inline models::Setup alone(models::Setup setup) {
  setup.micro_batches *= data_ranks(setup);
  setup.layout.ranks = 1;
  setup.layout.zero = 0;
  return setup;
}

/// The results of all ranks, run on threads, in the order of ranks.
inline std::vector<StepsResult> run_ranks_steps(const models::Setup& setup) {
  return by_rank(setup.layout.ranks, [&](dist::Communicator& ranks) {
    models::Setup own = setup;
    own.layout.rank = ranks.rank();
    return run_steps(own, &ranks);
  });
}

/// Runs the setup on threads and checks each rank's losses and tensors against `one`, and that together they have all
/// tensors. Returns the number of ranks with each tensor.
inline std::map<std::string, int> check_ranks_have(const models::Setup& setup, const StepsResult& one) {
  std::map<std::string, int> owners;
  for (const StepsResult& own : run_ranks_steps(setup)) {
    CHECK(own.losses == one.losses);
    CHECK(own.tensors.size() < one.tensors.size());
    for (const auto& [name, bytes] : own.tensors) {
      INFO(name);
      ++owners[name];
      REQUIRE(one.tensors.count(name) == 1);
      CHECK((bytes == one.tensors.at(name)));
    }
  }
  REQUIRE(owners.size() == one.tensors.size());
  return owners;
}

}  // namespace thimble::testing
