#pragma once
// Commands of the program `thimble`, one file each in bench/commands/. Each adds its flags to the parser and runs in
// its callback.

#include <exception>
#include <memory>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace thimble::models {
struct CostOptions;
struct Setup;
struct RunOptions;
}  // namespace thimble::models

namespace thimble::bench {

/// Exit statuses of the program; docs/training.md has the table.
inline constexpr int bad_input_status = 2;      ///< one line on standard error, nothing written
inline constexpr int memory_status = 3;         ///< no plan keeps the budget, a limit is too small, or memory ran out
inline constexpr int not_finite_status = 4;     ///< the last loss of `train`; all outputs are written
inline constexpr int not_predicted_status = 5;  ///< measured bytes differ from the prediction, or a certificate fails
inline constexpr int output_lost_status = 6;    ///< done, but standard output or the curves of --log are incomplete

/// Exit status of a command that threw `error`: memory_status for errors about memory, also nested ones, else
/// bad_input_status.
int status_of(const std::exception_ptr& error);

/// Message for std::bad_alloc.
inline constexpr const char* out_of_memory = "the process is out of memory outside of its arena";

/// Writes an error to standard error on one line, with options named as flags.
void print_error(const std::string& what);

void add_train(CLI::App& program);
void add_certify(CLI::App& program);
void add_plan(CLI::App& program);
void add_generate(CLI::App& program);
void add_reproduce(CLI::App& program);
void add_pack(CLI::App& program);
void add_quantize(CLI::App& program);
void add_inspect(CLI::App& program);
void add_tokenizer(CLI::App& program);
void add_devices(CLI::App& program);
void add_models(CLI::App& program);
void add_chain(CLI::App& program);
void add_pipeline(CLI::App& program);
void add_book(CLI::App& program);

struct Command {
  std::string_view name;
  void (*add)(CLI::App& program);
};
/// All commands in the order of the program's help.
inline constexpr Command commands[] = {
    {"reproduce", add_reproduce}, {"plan", add_plan},       {"train", add_train},       {"generate", add_generate},
    {"certify", add_certify},     {"pack", add_pack},       {"quantize", add_quantize}, {"inspect", add_inspect},
    {"tokenizer", add_tokenizer}, {"devices", add_devices}, {"models", add_models},     {"chain", add_chain},
    {"pipeline", add_pipeline},   {"book", add_book}};

/// Adds MODEL and the flags of its sizes, for all commands that make a model.
void add_model_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup);

/// Adds the model's flags, --tokenizer, and flags of techniques for dtypes and steps (models/techniques/technique.h).
void add_setup_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup);

/// Adds the setup's flags, the optimizer's, the planner's, and --data --device --tf32 --budget --plan, for `train` and
/// `certify`. The setup is part of `options` and shares its lifetime.
void add_training_flags(CLI::App& command, const std::shared_ptr<models::RunOptions>& options);

/// Adds --isa --cpu-dot --threads for CPU kernels. They apply once the command line is parsed, before the command runs.
/// Throws ValueError that lists the machine's sets or units for one that it lacks. THIMBLE_ISA, THIMBLE_UNITS and
/// OMP_NUM_THREADS set the defaults.
void add_compute_flags(CLI::App& command);

/// Adds --profile and --profile-file.
void add_cost_flags(CLI::App& command, const std::shared_ptr<models::CostOptions>& costs);

}  // namespace thimble::bench
