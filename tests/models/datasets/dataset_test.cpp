// What a program trains on: a batch is a function of its step, whether the host's part of it was made ahead or not.

#include <thimble/models/datasets/dataset.h>

#include <thimble/core/ops/copy.h>

#include "support/catch.h"

using namespace thimble;

namespace {

std::vector<std::vector<double>> values(const models::Batch& batch) {
  return {to_host<double>(batch.input), to_host<double>(batch.target)};
}

}  // namespace

TEST_CASE("dataset: a batch that was prepared is the batch") {
  for (const char* const name : {"resnet18", "char-gpt"}) {
    models::ModelOptions sizes;
    const auto model = models::make_model(name, sizes, {.device = dry(cpu)});
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto ahead = models::open_dataset("synthetic", *model, name, 5);
      const auto plain = models::open_dataset("synthetic", *model, name, 5);
      models::ModelOptions fitted = model->options();
      ahead->fit(fitted);
      for (models::Dataset* const data : {ahead.get(), plain.get()}) data->open(fitted, 4, 5);
      for (const std::int64_t step : {0, 1, 2, 7, 3}) {
        INFO(name << " in " << to_string(dtype) << ", step " << step);
        CHECK(values(ahead->batch(step, cpu, dtype)) == values(plain->batch(step, cpu, dtype)));
        ahead->prepare(step + 1, dtype);  // what comes next, or not
      }
      CHECK(ahead->batch(4, cpu, DType::f32).input.dtype() == plain->batch(4, cpu, DType::f32).input.dtype());
      CHECK(values(ahead->batch(4, cpu, DType::f32)) == values(plain->batch(4, cpu, DType::f32)));
      CHECK(values(ahead->batch(0, cpu, dtype)) != values(ahead->batch(1, cpu, dtype)));
    }
  }
}
