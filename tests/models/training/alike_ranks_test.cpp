// Ranks started with differing options, each row against rank 0's: all refuse with one text before planning, or the row
// allows the difference and the files match equal ranks.

#include <functional>
#include <string>
#include <vector>

#include <thimble/core/files/file.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/plan_file.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/sanitizer.h"

using namespace thimble;
using files_test::TemporaryFolder;

namespace {

std::string text_of(char first) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 23);
  text[1000] = first;
  return text;
}

models::RunOptions options_of(const TemporaryFolder& folder) {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  models::ModelOptions& sizes = options.setup.sizes;
  sizes.layers = 2, sizes.width = 32, sizes.heads = 2, sizes.sequence = 16;
  options.setup.batch = 4;
  options.setup.layout.ranks = 2;
  options.data = folder / "text";
  options.steps = 3;
  options.eval_batches = 1;
  options.save = folder / "run";
  return options;
}

models::RunOptions of_rank(models::RunOptions options, dist::Communicator& ranks) {
  options.ranks = &ranks;
  options.setup.layout.rank = ranks.rank();
  return options;
}

using Change = std::function<void(models::RunOptions&)>;

}  // namespace

TEST_CASE("ranks that were started differently are refused by name on all of them", "[dist]") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "text", text_of('a'));
  write_file_atomically(folder / "other", text_of('b'));
  models::RunOptions one = options_of(folder);
  one.setup.layout.ranks = 1;
  for (const std::uint64_t seed : {1, 2}) {
    one.setup.seed = seed;
    one.save = folder / ("checkpoint" + std::to_string(seed)),
    one.save_weights = folder / ("weights" + std::to_string(seed));
    models::Engine(one).run();
  }
  struct Row {
    const char* text;
    Change change;
    Change on_all = {};  // applied first
  };
  const auto with_resume = [&](models::RunOptions& o) { o.resume = folder / "checkpoint1", o.steps = 6; };
  const auto with_weights = [&](models::RunOptions& o) { o.setup.weights = folder / "weights1"; };
  const auto lossy = [](models::RunOptions& o) {
    o.setup.packing.is_allowed = true;
    o.budget_bytes = 64 << 20;
  };
  const auto three = [](models::RunOptions& o) { o.setup.layout.zero = 3; };
  const auto llama = [](models::RunOptions& o) {
    o.setup.model = "tiny-llama", o.setup.sizes.key_heads = 2, o.setup.sizes.hidden = 64;
  };
  const auto adapted = [&](models::RunOptions& o) { with_weights(o), o.save.clear(), o.setup.lora.rank = 2; };
  const std::vector<Row> rows{
      {"model char-gpt and tiny-llama", [](auto& o) { o.setup.model = "tiny-llama"; }},
      {"`sequence` 16 and 8", [](auto& o) { o.setup.sizes.sequence = 8; }},
      {"`layers` 2 and 3", [](auto& o) { o.setup.sizes.layers = 3; }},
      {"`heads` 2 and 4", [](auto& o) { o.setup.sizes.heads = 4; }},
      {"`width` 32 and 64", [](auto& o) { o.setup.sizes.width = 64; }},
      {"`kv_heads` 2 and 1", [](auto& o) { o.setup.sizes.key_heads = 1; }, llama},
      {"`mlp` 64 and 48", [](auto& o) { o.setup.sizes.hidden = 48; }, llama},
      {"`window` 0 and 4", [](auto& o) { o.setup.sizes.window = 4; }},
      {"epsilon of the model none and 0.5", [](auto& o) { o.setup.sizes.function.epsilon = 0.5; }},
      {"`head` full and chunked", [](auto& o) { o.setup.sizes.head = models::Head::chunked; }},
      {"`feed_forward` full and tiled", [](auto& o) { o.setup.sizes.feed_forward = models::FeedForward::tiled; }},
      {"`dropout` 0 and 0.1", [](auto& o) { o.setup.sizes.dropout = 0.1; }},
      {"`batch` 4 and 8", [](auto& o) { o.setup.batch = 8; }},
      {"`micro_batches` of a rank 1 and 2, `micro_batches` 2 and 4", [](auto& o) { o.setup.micro_batches = 2; }},
      {"`seed` 1 and 2", [](auto& o) { o.setup.seed = 2; }},
      {"`data` ", [&](auto& o) { o.data = folder / "other"; }},
      {"sum of `weights` none and ", with_weights},
      {"sum of `weights` ", [&](auto& o) { o.setup.weights = folder / "weights2"; }, with_weights},
      {"sum of `resume` ",
       [&](auto& o) {
         write_file_atomically(folder / "older", files_test::read_text_file(folder / "checkpoint1"));
         models::RunOptions longer = options_of(folder);
         longer.setup.layout.ranks = 1, longer.steps = 4, longer.save = folder / "older",
         longer.resume = folder / "older";
         longer.eval_batches = 0;
         models::Engine(longer).run();
         o.resume = folder / "older";
       },
       with_resume},
      {"`optimizer` adamw and sgd", [](auto& o) { o.setup.optimizer.name = "sgd"; }},
      {"`state` f32 and bf16", [](auto& o) { o.setup.optimizer.state = DType::bf16; }},
      {"`rate` ", [](auto& o) { o.setup.optimizer.rate = 0.25; }},
      {"`beta2` 0.99 and 0.5", [](auto& o) { o.setup.optimizer.beta2 = 0.5; }},
      {"`weight_decay` 0.1 and 0", [](auto& o) { o.setup.optimizer.weight_decay = 0; }},
      {"`clip_norm` 1 and 0.5", [](auto& o) { o.setup.optimizer.clip_norm = 0.5; }},
      {"`schedule` constant and cosine", [](auto& o) { o.schedule = "cosine"; }},
      {"`warmup` 0 and 1", [](auto& o) { o.warmup = 1; }},
      {"`min_rate` 0 and 0.001", [](auto& o) { o.min_rate = 0.001; }, [](auto& o) { o.schedule = "cosine"; }},
      {"`steps` 3 and 4", [](auto& o) { o.steps = 4; }},
      {"`precision` none and O1", [](auto& o) { set_precision(o.setup, "O1"); }},
      {"`dtype` f32 and bf16", [](auto& o) { o.setup.precision.dtype = DType::bf16; }},
      {"`loss_scale` ", [](auto& o) { o.setup.precision.loss_scale = optim::GradScalerOptions{}; }},
      {"`lora_rank` none and 2", [](auto& o) { o.setup.lora.rank = 2; }, with_weights},
      {"`zero` 0 and 1", [](auto& o) { o.setup.layout.zero = 1; }},
      {"`bucket_bytes` 26214400 and 0", [](auto& o) { o.setup.layout.bucket_bytes = 0; }},
      {"`tp` 1 and 2", [](auto& o) { o.setup.layout.tp = 2; }},
      {"`pp` 1 and 2", [](auto& o) { o.setup.layout.pp = 2; }},
      {"`cp` 1 and 2", [](auto& o) { o.setup.layout.cp = 2; }},
      {"`eval_every` 0 and 2", [](auto& o) { o.eval_every = 2; }},
      {"`eval_batches` 1 and 2", [](auto& o) { o.eval_batches = 2; }},
      {"`sample` 0 and 3", [](auto& o) { o.sample = 3; }},
      {"`save` ", [](auto& o) { o.save = ""; }},
      {"`save_every` 0 and 1", [](auto& o) { o.save_every = 1; }},
      {"`keep` 1 and 2", [](auto& o) { o.keep = 2; }},
      {"`save_adapters` none and ", [&](auto& o) { o.save_adapters = folder / "a"; }, adapted},
      {"`save_weights` none and ", [&](auto& o) { o.save_weights = folder / "w"; }},
      {"`allows_lossy` bf16 and i8", [](auto& o) { o.setup.packing.dtype = DType::i8; }, lossy},
      {"`budget_bytes` 67108864 and 1073741824", [](auto& o) { o.budget_bytes = 1 << 30; }, lossy},
      {"`budget_bytes` none and 1073741824", [](auto& o) { o.budget_bytes = 1 << 30; }, three},
      {"`budget_bytes` none and 1073741824", [](auto& o) { o.budget_bytes = 1 << 30; },
       [](auto& o) { o.setup.layout.tp = 2; }},
      {"`budget_bytes` none and 1073741824", [](auto& o) { o.budget_bytes = 1 << 30; },
       [](auto& o) { o.setup.layout.pp = 2, o.setup.micro_batches = 2; }},
      {"`read_ahead` 1 and 0", [](auto& o) { o.setup.offload.read_ahead = 0; }, three},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    models::RunOptions first = options_of(folder);
    if (row.on_all) row.on_all(first);
    models::RunOptions other = first;
    row.change(other);
    const auto texts = testing::by_rank(2, [&](dist::Communicator& ranks) -> std::string {
      try {
        models::Engine(of_rank(ranks.rank() == 1 ? other : first, ranks)).plan();
      } catch (const ValueError& error) {
        return error.what();
      }
      return "";
    });
    INFO(texts[0]);
    CHECK(texts[0] == texts[1]);
    CHECK(texts[0].starts_with("train: expected the same on all ranks, got on ranks 0 and 1 "));
    CHECK(texts[0].find(row.text) != std::string::npos);
  }
}

TEST_CASE("ranks may differ in what changes no bit", "[dist]") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "text", text_of('a'));
  write_file_atomically(folder / "copy", text_of('a'));
  const std::vector<Change> rows{
      [](auto&) {},
      [](auto& o) { o.is_strict = true, o.budget_bytes = 1 << 30; },
      [](auto& o) { o.budget_bytes = 1 << 30; },
      [](auto& o) { o.setup.recomputes_blocks = true; },
      [&](auto& o) { o.data = folder / "copy"; },
      [&](auto& o) { o.log = folder / "curves"; },
  };
  std::string expected;
  for (const Change& change : rows) {
    models::RunOptions first = options_of(folder), other = first;
    change(other);
    dist::run_ranks(
        2, [&](dist::Communicator& ranks) { models::Engine(of_rank(ranks.rank() == 1 ? other : first, ranks)).run(); });
    const std::string file = files_test::read_text_file(first.save);
    if (expected.empty()) expected = file;
    CHECK((file == expected));
  }
}
