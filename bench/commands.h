#pragma once
// The commands of the program `thimble`, one file each in bench/commands/. Each adds its flags to the parser; its
// callback runs it.

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
struct TrainOptions;
}  // namespace thimble::models

namespace thimble::bench {

/// Exit statuses of the program; docs/training.md has the table.
inline constexpr int bad_input_status = 2;      ///< one line on standard error, nothing written
inline constexpr int memory_status = 3;         ///< no plan keeps the budget, a limit has no room, or memory ran out
inline constexpr int not_finite_status = 4;     ///< the last loss of `train`; what was asked for is written
inline constexpr int not_predicted_status = 5;  ///< measured otherwise than predicted, or a certificate does not hold
inline constexpr int output_lost_status = 6;    ///< done, but standard output or the curves of --log are not whole

/// The status of a command that ended by this error: memory_status where it is about memory, or was thrown for one that
/// is; else bad_input_status.
int status_of(const std::exception_ptr& error);

/// What a std::bad_alloc says.
inline constexpr const char* out_of_memory = "the process is out of memory outside of its arena";

/// Writes an error to standard error, on one line, in the program's words.
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
/// All commands, in the order of the program's help.
inline constexpr Command commands[] = {
    {"reproduce", add_reproduce}, {"plan", add_plan},       {"train", add_train},       {"generate", add_generate},
    {"certify", add_certify},     {"pack", add_pack},       {"quantize", add_quantize}, {"inspect", add_inspect},
    {"tokenizer", add_tokenizer}, {"devices", add_devices}, {"models", add_models},     {"chain", add_chain},
    {"pipeline", add_pipeline},   {"book", add_book}};

/// The flags that name a model and its sizes, for all that make one.
void add_model_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup);

/// These, --tokenizer, and the flags of techniques of dtypes and steps (models/techniques/technique.h), for `train` and
/// `plan` alike.
void add_setup_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup);

/// These, the optimizer's, and --data --device --tf32 --budget --plan with what plans may do, for `train` and
/// `certify`. The setup lives inside of the options and is shared with them.
void add_training_flags(CLI::App& command, const std::shared_ptr<models::TrainOptions>& options);

/// --isa --cpu-dot --threads: what CPU kernels run on, for `train`, `plan`, `reproduce`, `devices` and benchmarks. Set
/// when the command line is read, before the command runs. What the machine lacks is a ValueError that lists what it
/// has. THIMBLE_ISA, THIMBLE_UNITS and OMP_NUM_THREADS say the same for whoever gives no flag.
void add_compute_flags(CLI::App& command);

/// --profile and --profile-file, for both as well.
void add_cost_flags(CLI::App& command, const std::shared_ptr<models::CostOptions>& costs);

}  // namespace thimble::bench
