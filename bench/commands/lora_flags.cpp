// The flags of fine-tuning: weights to begin with, adapters, and how frozen weights are kept.

#include <limits>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/models/training/adapting.h>

namespace thimble::bench {

void add_lora_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  constexpr std::int64_t most_rank = 1 << 20;
  constexpr double any = std::numeric_limits<double>::max();
  models::Setup& s = *setup;
  command
      .add_option("--weights", s.weights,
                  "Initial parameters in safetensors: a file, an index or a Hugging Face folder (random values)")
      ->type_name("PATH");
  add_integer(command, "--lora", s.lora_rank, 1, most_rank,
              "LoRA rank: freeze the model and train adapters of its linear layers (off: full training)");
  command
      .add_option_function<std::string>(
          "--lora-alpha",
          [setup](const std::string& text) { setup->lora_alpha = parse_number("--lora-alpha", text, 0, any); },
          "LoRA alpha: adapters are scaled by alpha / rank (the rank: a scale of 1)")
      ->type_name("X");
  command
      .add_option("--lora-targets", s.lora_targets,
                  "Linear layers with adapters, by the ends of their names; * matches any characters (all in blocks)")
      ->type_name("PATTERN")
      ->delimiter(',');
  add_number(command, "--lora-dropout", s.lora_dropout, 0, 0.99, "Dropout of the adapters' inputs (0)");
  command  // after the flags that it is not with: callbacks run in this order
      .add_option_function<std::string>(
          "--adapters", [setup](const std::string& text) { set_adapters(*setup, text); },
          "PEFT adapter folder to begin with, in place of --lora; it sets rank, alpha, dropout and layers")
      ->type_name("FOLDER");
  const CLI::Option* const dtype = command.get_option("--dtype");
  command  // after --dtype: callbacks run in this order
      .add_option_function<std::string>(
          "--base",
          [setup, dtype](const std::string& text) {
            const DType asked = setup->dtype;
            try {
              set_base(*setup, text);
            } catch (const ValueError&) {
              refuse_value("--base", "one of f32, bf16, int8, nf4", text);
            }
            if (dtype->count() > 0) setup->dtype = asked;
          },
          "With --lora: frozen weights in f32, bf16, int8 or nf4, decoded to --dtype before use (as --dtype)")
      ->type_name("B");
}

}  // namespace thimble::bench
