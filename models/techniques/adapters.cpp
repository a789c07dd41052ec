// Fine-tuning: initial weights, adapters over a frozen base, and the base's format (docs/lora.md).

#include <cmath>

#include <thimble/core/error.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::models {
namespace {

const std::vector<Need> needs_rank{{"lora_rank", "`lora_rank`: adapters over a frozen base"}};

/// A value that a resumed run must keep; the default is not written.
constexpr Identity kept(std::string_view key) { return {OnRanks::free, OnResume::same, key}; }

std::string rank_of(const Setup& setup) { return setup.lora.rank == 0 ? "" : std::to_string(setup.lora.rank); }

void check_rank(const Setup& setup, bool) {
  if (setup.lora.rank >= 0) return;
  throw ValueError("`lora_rank`: expected at least 1, or 0 for no adapters, got " + std::to_string(setup.lora.rank));
}

void check_alpha(const Setup& setup, bool) {
  if (!setup.lora.alpha || std::isfinite(*setup.lora.alpha)) return;
  throw ValueError("`lora_alpha`: expected a finite number, got " + format_real(*setup.lora.alpha));
}

void set_dropout(Setup& setup, const std::string& name, const std::string& text) {
  setup.lora.dropout = parse_number(name, text, 0, 0.99);
}

void check_dropout(const Setup& setup, bool) {
  if (setup.lora.dropout >= 0 && setup.lora.dropout < 1) return;
  throw ValueError("`lora_dropout`: " + format_real(setup.lora.dropout) + " is not in [0, 1)");
}

void set_base_of(Setup& setup, const std::string& name, const std::string& text) {
  try {
    set_base(setup, text);
  } catch (const ValueError&) {
    refuse_value(name, "one of f32, bf16, int8, nf4", text);
  }
}

void check_base(const Setup& setup, bool) {
  if (setup.lora.base.empty() || !setup.precision.policy.empty()) return;
  const bool fits = setup.lora.base == "f32"    ? setup.precision.dtype == DType::f32
                    : setup.lora.base == "bf16" ? setup.precision.dtype == DType::bf16
                                                : size_of(setup.precision.dtype) >= 2;
  if (fits) return;
  throw ValueError("`dtype`: " + std::string(to_string(setup.precision.dtype)) + " contradicts `base` " +
                   setup.lora.base + "; expected no `dtype`" + (base_code(setup) ? ", f32, f16 or bf16" : ""));
}

const Technique adapter_techniques[] = {
    {.flag = {"weights", "--weights PATH",
              "Initial parameters in safetensors: a file, an index or a Hugging Face folder (random values)",
              fields::plain_text<&Setup::weights>, "everyday"},
     .detail_of = "lora_rank"},
    {.flag = {"lora_rank",
              "--lora N",
              "LoRA rank: freeze the model and train adapters of its linear layers (off: full training)",
              {fields::number<&LoraSetup::rank, 1, 1 << 20>.set, rank_of}},
     .example = {"2"},
     .check = check_rank,
     .excludes = {{"zero", "it shards what is trained, and the base is frozen",
                   [](const Setup& s) { return s.lora.rank > 0 && s.layout.ranks > 1 && s.layout.zero == 3; }}},
     .identity = kept("lora_rank"),
     .document = {"adapters over a frozen base ([fine-tuning](lora.md))", "another training: only of the adapters"}},
    {.flag = {"lora_alpha", "--lora-alpha X",
              "LoRA alpha: adapters are scaled by alpha / rank (the rank: a scale of 1)",
              fields::real<&LoraSetup::alpha>},
     .detail_of = "lora_rank",
     .check = check_alpha,
     .needs = needs_rank,
     .identity = {OnRanks::free, OnResume::same, "lora_alpha",
                  [](const Setup& s, const Model&) -> std::optional<Saved> {
                    const std::string alpha = fields::in_words(s.lora.alpha);
                    return Saved{alpha == rank_of(s) ? "" : alpha, ""};
                  }}},
    {.flag = {"lora_targets", "--lora-targets PATTERN,",
              "Linear layers with adapters, by the ends of their names; * matches any characters (all in blocks)",
              fields::list<&LoraSetup::targets>},
     .detail_of = "lora_rank",
     .needs = needs_rank,
     .identity = kept("lora_targets")},
    {.flag = {"lora_dropout",
              "--lora-dropout X",
              "Dropout of the adapters' inputs (0)",
              {set_dropout, fields::value_of<&LoraSetup::dropout>}},
     .detail_of = "lora_rank",
     .check = check_dropout,
     .needs = needs_rank,
     .identity = kept("lora_dropout")},
    // After the rows that set_adapters refuses: flags are read in this order.
    {.flag = {"adapters",
              "--adapters FOLDER",
              "PEFT adapter folder to begin with, in place of --lora; it sets rank, alpha, dropout and layers",
              {[](Setup& s, const std::string&, const std::string& text) { set_adapters(s, text); },
               fields::value_of<&LoraSetup::adapters>}},
     .detail_of = "lora_rank"},
    {.flag = {"base",
              "--base B",
              "With --lora: frozen weights in f32, bf16, int8 or nf4, decoded to --dtype before use (as --dtype)",
              {set_base_of, fields::value_of<&LoraSetup::base>}},
     .example = {"nf4"},
     .check = check_base,
     .excludes = {{"precision", "it sets the dtype of parameters itself"}},
     .needs = needs_rank,
     .why_not_captured = "whose weights come and go in each step; expected bf16",
     .identity = kept("base"),
     .document = {"frozen weights in fewer bits ([fine-tuning](lora.md))", "another training: only of the adapters"}}};

}  // namespace

std::span<const Technique> of_adapters() { return adapter_techniques; }

}  // namespace thimble::models
