// Optimizers by the bytes of their state, and the dtype that it is kept in (docs/optimizers.md).

#include <thimble/models/techniques/technique.h>

namespace thimble::models {
namespace optimizer_states_detail {

const Technique list[] = {
    {.flag = {"optimizer",
              "--optimizer O",
              "sgd, momentum, adam, adamw, adafactor, muon, apollo-mini, galore, adam-mini, momentum8, adam8, adamw8 "
              "(text: adamw, images: momentum)",
              {[](Setup& s, const std::string&, const std::string& text) {
                 s.optimizer = text;
                 optimizer_name(s, false);
               },
               fields::value_of<&Setup::optimizer>},
              "everyday"},
     .example = {"adafactor"},
     .identity = {OnRanks::alike, OnResume::free, "",
                  [](const Setup& s, const Model& model) -> std::optional<Saved> {
                    return Saved{optimizer_name(s, model.is_text()), ""};
                  }},
     .document =
         {"a factored second moment; Muon, APOLLO, GaLore and Adam-mini ([optimizers](optimizers.md)); adamw8 and "
          "fellows",
          "another optimizer"}},
    {.flag = {"optimizer_rank", "--optimizer-rank N", "GaLore: rank of the projection (128)",
              fields::number<&Setup::optimizer_rank, 1, 1 << 20>},
     .detail_of = "optimizer",
     .identity = {OnRanks::alike}},
    {.flag = {"state",
              "--state D",
              "Dtype of the moments of momentum, adam and adamw: f32, bf16, u8 (f32)",
              {[](Setup& s, const std::string& name, const std::string& text) {
                 s.state = parse_dtype_of(name, text, "f32, bf16, u8");
               },
               fields::value_of<&Setup::state>}},
     .example = {"bf16"},
     .identity = {OnRanks::alike},
     .document = {"the optimizer's state in bf16 or 8 bits ([fewer bits](eight-bits.md))", "updates are rounded"}},
    {.flag = {"full_state", "--full-state NAME,",
              "Parameters whose state stays f32 with a narrower --state, by name or prefix (no parameter)",
              fields::list<&Setup::full_state>},
     .detail_of = "state",
     .identity = {OnRanks::alike}}};

}  // namespace optimizer_states_detail

std::span<const Technique> of_optimizers() { return optimizer_states_detail::list; }

}  // namespace thimble::models
