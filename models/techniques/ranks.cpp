// Ranks that train together: shards of layers and of the sequence, stages, sharded state (docs/distributed.md).

#include <thimble/core/error.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::models {
namespace {

constexpr std::int64_t max_ranks = 65536;
constexpr const char* of_adapters_why = "models with adapters are whole";

/// " in groups of `tp` 2"; empty for groups of one rank.
std::string in_groups(const Setup& setup) {
  return group_size(setup) > 1 ? " in groups of " + technique(setup.layout.cp > 1 ? "cp" : "tp").said(setup) : "";
}

void check_divisor(const Setup& setup, const char* option, int shards) {
  if (shards >= 1 && (setup.layout.ranks <= 1 || setup.layout.ranks % shards == 0)) return;
  throw ValueError(std::string(option) + ": " + std::to_string(shards) + " with `ranks` " +
                   std::to_string(setup.layout.ranks) +
                   "; expected a divisor of the ranks, or any number of shards on one rank");
}

void check_ranks(const Setup& setup, bool) {
  const std::string begin = "`ranks`: " + std::to_string(setup.layout.ranks);
  if (setup.layout.ranks < 1 || setup.layout.rank < 0 || setup.layout.rank >= setup.layout.ranks) {
    throw ValueError(begin + ", of which this is rank " + std::to_string(setup.layout.rank) +
                     "; expected at least 1, and ranks from 0 to one less");
  }
  const int alike = group_size(setup) * setup.layout.pp;
  if (setup.layout.ranks == 1 || alike < 1 || setup.layout.ranks % alike != 0)
    return;  // check_divisor and check_stages report these
  const std::int64_t micro_batches = setup.micro_batches == auto_micro_batches ? 1 : setup.micro_batches;
  const std::int64_t samples = data_ranks(setup) * micro_batches;
  if (setup.batch % samples == 0) return;
  throw ValueError(begin + in_groups(setup) +
                   (micro_batches > 1 ? " with `micro_batches` " + std::to_string(micro_batches) + " each" : "") +
                   " do not divide `batch` " + std::to_string(setup.batch) + "; expected a multiple of " +
                   std::to_string(samples));
}

void check_stages(const Setup& setup, bool) {
  if (setup.layout.pp >= 1 &&
      (setup.layout.ranks <= 1 || setup.layout.ranks % (group_size(setup) * setup.layout.pp) == 0))
    return;
  throw ValueError("`pp`: " + std::to_string(setup.layout.pp) + " with `ranks` " + std::to_string(setup.layout.ranks) +
                   in_groups(setup) + "; expected as many stages as divide the ranks, or any number on one rank");
}

void check_chunks(const Setup& setup, bool) {
  const bool is_interleaved = setup.layout.pipeline == "interleaved";
  if (setup.layout.pipeline != "1f1b" && setup.layout.pipeline != "gpipe" && !is_interleaved) {
    throw ValueError("`pipeline`: '" + setup.layout.pipeline + "' is not one of 1f1b, gpipe, interleaved");
  }
  const std::string begin = "`chunks`: " + std::to_string(setup.layout.chunks);
  if (!is_interleaved && setup.layout.chunks != 1) {
    throw ValueError(begin + " with `pipeline` " + setup.layout.pipeline + "; expected 1, or `pipeline` interleaved");
  }
  if (!is_interleaved) return;
  if (setup.layout.chunks < 2) throw ValueError(begin + " with `pipeline` interleaved; expected at least 2");
  if (setup.micro_batches % least_micro_batches(setup) != 0) {
    throw ValueError("`micro_batches`: " + std::to_string(setup.micro_batches) +
                     " with `pipeline` interleaved and `pp` " + std::to_string(setup.layout.pp) +
                     "; expected a multiple of the stages");
  }
}

/// Stage 3 shards parameters, and some optimizers need whole ones.
int last_stage_of_zero(const Setup& setup, bool is_text) {
  return is_elementwise(optimizer_name(setup, is_text)) ? 3 : 2;
}

void check_zero(const Setup& setup, bool is_text) {
  const int stage = setup.layout.zero, last = last_stage_of_zero(setup, is_text);
  if (stage >= 0 && stage <= last) return;
  throw ValueError(
      "`zero`: stage " + std::to_string(stage) +
      (stage == 3 ? " shards parameters, and " + optimizer_name(setup, is_text) + " needs whole ones" : "") +
      "; expected 0 to " + std::to_string(last));
}

std::vector<Variant> stages_of_zero(const LeverFacts& facts) {
  const int last = last_stage_of_zero(facts.setup, facts.model.is_text());
  std::vector<Variant> list;
  for (int stage = facts.setup.layout.zero + 1; stage <= last && facts.setup.layout.ranks > 1; ++stage) {
    list.push_back({std::to_string(stage)});
  }
  return list;
}

/// Written only for transformers.
template <auto Member>
std::optional<Saved> saved_of(const Setup& setup, const Model& model) {
  if (model.options().heads == 0) return std::nullopt;
  return Saved{fields::value_of<Member>(setup), fields::value_of<Member>(Setup())};
}

std::optional<Saved> saved_stages(const Setup&, const Model& model) {
  if (!model.is_tied()) return std::nullopt;
  return Saved{model.options().stage.count > 1 ? several_stages : "1", "1"};
}

constexpr const char* of_one_rank = "those of one rank with as many shards";

const Technique rank_techniques[] = {
    {.flag = {"ranks", "--ranks N",
              "Ranks that train together, each on its share of the batch; mpirun and srun set it (1)",
              fields::number<&LayoutSetup::ranks, 1, max_ranks>, "everyday"},
     .example = {"2"},
     .check = check_ranks},
    {.flag = {"tp", "--tp N", "Tensor-parallel degree (1)", fields::number<&LayoutSetup::tp, 1, max_ranks>},
     .example = {"2"},
     .check = [](const Setup& s, bool) { check_divisor(s, "`tp`", s.layout.tp); },
     .excludes = {{"lora_rank", of_adapters_why}},
     .identity = {OnRanks::alike, OnResume::told, "tp", saved_of<&LayoutSetup::tp>},
     .document = {"blocks and the vocabulary in shards, on as many ranks ([ranks](distributed.md))", of_one_rank}},
    {.flag = {"sequence_parallel", "--sequence-parallel",
              "With --tp: shard norms, dropout and sums between layers along the sequence",
              fields::toggle<&LayoutSetup::sequence_parallel>},
     .example = {"on"},
     .needs = {{"tp", "`tp` 2 or more"}},
     .identity = {OnRanks::free, OnResume::told, "sequence_parallel", saved_of<&LayoutSetup::sequence_parallel>},
     .document = {"norms, dropout and sums between layers in shards of the sequence", of_one_rank}},
    {.flag = {"cp", "--cp N", "Context-parallel degree: shards of the sequence, in attention of the heads (1)",
              fields::number<&LayoutSetup::cp, 1, max_ranks>},
     .example = {"2"},
     .check = [](const Setup& s, bool) { check_divisor(s, "`cp`", s.layout.cp); },
     .excludes = {{"tp", "only sequences of whole layers are cut by heads"}, {"lora_rank", of_adapters_why}},
     .identity = {OnRanks::alike, OnResume::told, "cp", saved_of<&LayoutSetup::cp>},
     .document = {"shards of the sequence, in attention of the heads", of_one_rank}},
    {.flag = {"pp", "--pp N", "Pipeline stages (1)", fields::number<&LayoutSetup::pp, 1, max_ranks>},
     .example = {"2"},
     .check = check_stages,
     .excludes = {{"lora_rank", of_adapters_why}, {"offload", "tensors of a stage stay"}},
     .identity = {OnRanks::alike, OnResume::told, "stages", saved_stages},
     .document = {"a chain of blocks in stages", "those of one rank with as many stages"}},
    {.flag = {"pipeline", "--pipeline NAME", "Pipeline schedule: 1f1b, gpipe, or interleaved with --chunks (1f1b)",
              fields::plain_text<&LayoutSetup::pipeline>},
     .detail_of = "pp",
     .needs = {{"pp", "`pp` 2 or more"}},
     .identity = {OnRanks::alike}},
    {.flag = {"chunks", "--chunks N", "Chunks of each stage in the interleaved schedule, at least 2 there (1)",
              fields::number<&LayoutSetup::chunks, 1, max_ranks>},
     .detail_of = "pp",
     .check = check_chunks,
     .identity = {OnRanks::alike}},
    {.flag = {"zero", "--zero N", "ZeRO stage: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters (0)",
              fields::number<&LayoutSetup::zero, 0, 3>},
     .example = {"2"},
     .check = check_zero,
     .identity = {OnRanks::alike},
     .variants = stages_of_zero,
     .document = {"optimizer state, gradients and parameters in shards, on several ranks",
                  "those of the ranks without it"}},
    {.flag = {"bucket_bytes",
              "--bucket SIZE",
              "Bytes of gradients that ranks reduce together; 0: each gradient separately (25 MiB)",
              {[](Setup& s, const std::string& name, const std::string& text) {
                 s.layout.bucket_bytes = parse_bytes(name, text);
               },
               fields::value_of<&LayoutSetup::bucket_bytes>}},
     .detail_of = "zero",
     .identity = {OnRanks::alike}}};

}  // namespace

std::span<const Technique> of_ranks() { return rank_techniques; }

}  // namespace thimble::models
