// The code of docs/generation.md.

#include <vector>

#include <thimble/models/generation/generate.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::testing;

TEST_CASE("generation document: tokens by hand", "[models][generating]") {
  const Threads alone;
  models::ModelOptions small;
  small.layers = 1, small.heads = 2, small.width = 32, small.vocabulary = 50, small.sequence = 32;
  const auto model = make_seeded<models::Decoder>("tiny-llama", small);
  model->eval();
  const std::vector<std::int64_t> prompt{3, 1, 4};
  std::vector<std::int64_t> written;

  nn::KvCacheSizes sizes = model->cache_sizes();  // layers, heads, and the dtype that changes no bit
  sizes.batch = 2, sizes.context = 32;
  models::Generation generation(*model, sizes, {.temperature = 0.7, .top_k = 20, .top_p = 0.9}, 5);
  generation.read_all(prompt);  // the same for both sequences
  for (int i = 0; i < 10; ++i) {
    const std::vector<std::int64_t> next = generation.draw();  // one for each
    generation.read(next);
    written.push_back(next[0]);
  }

  CHECK(written.size() == 10);
  CHECK(generation.cache().length() == 13);
  for (const std::int64_t token : written) CHECK((token >= 0 && token < 50));
}
