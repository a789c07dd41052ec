// Techniques inside the model: chunked heads, attention windows, tiled feed-forward layers, recomputed blocks.

#include <thimble/core/error.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::models {
namespace {

constexpr const char* of_tiles = "the shards of its layers are whole products";

std::string head_of(const ModelOptions& sizes) { return sizes.head == Head::full ? "full" : "chunked"; }
std::string layers_of(const ModelOptions& sizes) { return sizes.feed_forward == FeedForward::full ? "full" : "tiled"; }

void check_head(const Setup& setup, bool is_text) {
  if (setup.sizes.head != Head::chunked) return;
  if (group_size(setup) == 1 && !may_chunk_head(setup)) {
    throw ValueError("`head`: chunked is not for " + loss_scale_option(setup) +
                     ": it makes gradients in f16 before the loss scale; expected full");
  }
  if (!is_text) {
    throw ValueError("`head`: chunked is for models over tokens; " + setup.model +
                     " has only scores per class; expected full");
  }
}

std::vector<Variant> tiles(const LeverFacts& facts) {
  const ModelOptions& sizes = facts.model.options();
  const bool can_tile = facts.setup.sizes.build != Build::textbook && sizes.heads > 0 && facts.setup.lora.rank == 0 &&
                        !fp8_layers(facts.setup, dry(cpu)) && !(sizes.image > 0 && sizes.dropout > 0);
  return can_tile ? std::vector<Variant>{{"tiled"}} : std::vector<Variant>{};
}

const Technique layer_techniques[] = {
    {.flag = {"head",
              "--head H",
              "Text models: full computes all logits at once, chunked some rows at a time (full)",
              {[](Setup& s, const std::string& name, const std::string& text) {
                 s.sizes.head = parse_choice(name, text, "full", "chunked") ? Head::full : Head::chunked;
               },
               [](const Setup& s) { return head_of(s.sizes); }}},
     .example = {"chunked"},
     .check = check_head,
     .excludes = {{"tp", "its ranks have a shard of the vocabulary each"},
                  {"cp", "its ranks have a shard of the tokens each"}},
     .identity = {OnRanks::free, OnResume::told, "head",
                  [](const Setup&, const Model& model) -> std::optional<Saved> {
                    if (!model.is_text()) return std::nullopt;
                    return Saved{head_of(model.options()), ""};
                  }},
     .variants = [](const LeverFacts&) -> std::vector<Variant> { return {{"chunked"}}; },
     .words = [](const Setup&) -> std::string { return ", chunked head"; },
     .document = {"a loss head without its logits", "the loss is equal, a gradient summed in another order"}},
    {.flag = {"window",
              "--window N",
              "Text models: attention window in tokens (unlimited)",
              {[](Setup& s, const std::string& name, const std::string& text) {
                 s.sizes.window = parse_integer(name, text, 1, fields::max_size);
               },
               [](const Setup& s) { return std::to_string(s.sizes.window); }},
              "model",
              FlagSet::sizes},
     .example = {"5"},
     .is_about_training = false,
     .words = [](const Setup& s) { return ", a window of " + std::to_string(s.sizes.window); }},
    {.flag =
         {"feed_forward",
          "--feed-forward F",
          "Transformers: full keeps inner activations, tiled computes some tokens at a time, again in backward (full)",
          {[](Setup& s, const std::string& name, const std::string& text) {
             const bool is_full = parse_choice(name, text, "full", "tiled");
             s.sizes.feed_forward = is_full ? FeedForward::full : FeedForward::tiled;
           },
           [](const Setup& s) { return layers_of(s.sizes); }}},
     .example = {"tiled"},
     .is_about_training = false,
     .excludes = {{"tp", of_tiles}, {"cp", of_tiles}},
     .identity = {OnRanks::free, OnResume::told, "feed_forward",
                  [](const Setup&, const Model& model) -> std::optional<Saved> {
                    if (model.options().heads == 0) return std::nullopt;
                    return Saved{layers_of(model.options()), ""};
                  }},
     .variants = tiles,
     .words = [](const Setup&) -> std::string { return ", feed-forward layers in tiles"; },
     .document = {"feed-forward layers in tiles of tokens",
                  "the forward is equal, gradients of its weights summed in another order"}},
    {.flag = {"recomputes_blocks", "--recompute-blocks",
              "Transformers: keep only the input of each block, and run the block again in backward",
              fields::toggle<&Setup::recomputes_blocks>},
     .example = {"on", true},
     .identity = {OnRanks::with_plans},
     .document = {"blocks that run again in backward", "those of the run without it"}}};

}  // namespace

std::span<const Technique> of_layers() { return layer_techniques; }

}  // namespace thimble::models
